//! What a history had in it: how often each sort of event, which states and ways between them, which faults. A suite says with this
//! what it covered, and fails if that is too little.

use super::letters::answer_word;
use super::view::View;
use super::{Came, Crash, Deed, How, Memo, Moved, Said, Told, What};
use onceward::{JobId, State};
use std::collections::{BTreeMap, BTreeSet};

/// States, ways between them, and faults that histories had in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    pub(crate) states: BTreeSet<String>,
    /// From which state to which, as somebody saw them one after the other.
    pub(crate) edges: BTreeSet<(String, String)>,
    pub(crate) faults: BTreeSet<&'static str>,
}

/// What there was in a history; those of several are added up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Events by sort.
    pub(crate) events: BTreeMap<&'static str, u64>,
    /// How many things each invariant looked at.
    pub(crate) looked_at: BTreeMap<&'static str, u64>,
    pub(crate) coverage: Coverage,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in [(&mut self.events, &other.events), (&mut self.looked_at, &other.looked_at)] {
            for (name, n) in more {
                *sum.entry(name).or_default() += n;
            }
        }
        self.coverage.states.extend(other.coverage.states.iter().cloned());
        self.coverage.edges.extend(other.coverage.edges.iter().cloned());
        self.coverage.faults.extend(&other.coverage.faults);
    }
}

pub(super) fn count(view: &View<'_>) -> Counts {
    let mut counts = Counts::default();
    let mut states: BTreeMap<JobId, State> = BTreeMap::new();
    let mut see = |coverage: &mut Coverage, job: JobId, state: State| {
        coverage.states.insert(format!("{state:?}"));
        if let Some(before) = states.insert(job, state)
            && before != state
        {
            coverage.edges.insert((format!("{before:?}"), format!("{state:?}")));
        }
    };
    for (_, event) in view.events() {
        let (word, fault) = word(&event.what);
        *counts.events.entry(word).or_default() += 1;
        if fault {
            counts.coverage.faults.insert(word);
        }
        match event.what {
            What::Saw { job, state: Some(state), .. } => see(&mut counts.coverage, job, state),
            What::Began { job, .. } => see(&mut counts.coverage, job, State::Running),
            _ => {}
        }
    }
    for job in view.jobs {
        see(&mut counts.coverage, job.id, job.state);
    }
    counts
}

/// The name of a sort of event, and whether it is a fault.
fn word(what: &What) -> (&'static str, bool) {
    match what {
        What::Started { clocks: false, .. } => ("started with a calendar that stood still", true),
        What::Started { review: true, .. } => ("started under review", true),
        What::Started { .. } => ("started", false),
        What::Crashed(Crash::Kill) => ("killed", true),
        What::Crashed(Crash::PowerCut) => ("power cut", true),
        What::Stopped => ("stopped", false),
        What::Healed => ("healed", true),
        What::Moved(Moved::Advance) => ("time passed", false),
        What::Moved(Moved::Jump) => ("calendar set", true),
        What::Moved(Moved::Suspend(_)) => ("suspended", true),
        What::DiskFull(true) => ("disk full", true),
        What::DiskFull(false) => ("disk has room", false),
        What::Idle => ("idle", false),
        What::Asking { .. } => ("asked for a job", false),
        What::Asked { answer, .. } => (answer_word(*answer), false),
        What::Transacting { .. } => ("asked for a transaction", false),
        What::Transacted { done: Some(true), .. } => ("transaction done", false),
        What::Transacted { done: Some(false), .. } => ("transaction not done", true),
        What::Transacted { done: None, .. } => ("transaction unknown", true),
        What::Rows(_) => ("rows read", false),
        What::Saw { .. } => ("looked at a job", false),
        What::Began { .. } => ("handler began", false),
        What::Ended { how, .. } => match how {
            How::Ok => ("handler ended: ok", false),
            How::Transient(_) => ("handler ended: transient", true),
            How::Permanent => ("handler ended: permanent", true),
            How::Unknown => ("handler ended: unknown", true),
            How::Interrupted => ("handler ended: interrupted", true),
            How::Snoozed(_) => ("handler ended: snoozed", false),
            How::Panicked => ("handler ended: panicked", true),
        },
        What::Finishing { .. } => ("finish", false),
        What::Remember { commit: false, memo, .. } => match memo {
            Memo::Asked => ("step asked", false),
            Memo::Ran => ("step ran", false),
            Memo::Told(_) => ("step given back", false),
        },
        What::Remember { commit: true, memo, .. } => match memo {
            Memo::Asked => ("commit asked", false),
            Memo::Ran => ("commit ran", false),
            Memo::Told(_) => ("commit given back", false),
        },
        What::EffectAsked { .. } => ("effect asked", false),
        What::EffectTold { told, .. } => match told {
            Told::Done(_) => ("effect done", false),
            Told::Refused => ("effect refused", true),
            Told::NotSent => ("effect not sent", true),
            Told::Failed => ("effect failed", true),
        },
        What::Entered { .. } => ("provider called", false),
        What::Applied { .. } => ("provider did it", false),
        What::Returned { came, .. } => match came {
            Came::Back(_) => ("provider answered", false),
            Came::Refused => ("provider refused", true),
            Came::NotSent => ("provider not reached", true),
            Came::ToNothing => ("provider lost the line", true),
        },
        What::Probing { .. } => ("probe asked", false),
        What::Probed { said, .. } => match said {
            Said::Found(_) => ("probe: found", false),
            Said::NotThere => ("probe: not there", false),
            Said::CannotTell => ("probe: cannot tell", true),
        },
        What::Acting { deed, .. } => match deed {
            Deed::Decide(_) => ("person decides", false),
            Deed::Restore => ("person restores", false),
            Deed::Cancel => ("person cancels", false),
            Deed::Lift => ("person lifts the review", false),
        },
        What::Acted { .. } => ("person answered", false),
        What::Replaying { .. } => ("replayed", false),
        What::Pausing { .. } => ("pausing or resuming", false),
        What::Paused { on: true, .. } => ("paused", false),
        What::Paused { on: false, .. } => ("resumed", false),
        What::Owing { .. } => ("message asked", false),
        What::Owed { .. } => ("message committed", false),
        What::Tossing { .. } => ("message thrown away", false),
        What::Delivered { .. } => ("message delivered", false),
        What::Topic { .. } => ("topic read", false),
    }
}

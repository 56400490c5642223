//! Policies: what an app asks for, and what the rules work with once defaults and risk have been applied.
//!
//! The defaults table of [`Policy`] is [`Policy::resolve`]; risk narrows it, an explicit setting beats the narrowing and is
//! remembered as `widened`.

use super::effect::{EffectCard, Risk};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Between the attempts of a risky kind.
const NARROW_WAITS: [Duration; 3] = [MINUTE, Duration::from_secs(5 * 60), Duration::from_secs(15 * 60)];

/// When to come back after a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backoff {
    /// Full jitter over an exponentially growing ceiling: uniformly within `[0, min(cap, first * 2^(n-1))]`.
    Exponential {
        /// The ceiling of the first retry.
        first: Duration,
        /// The ceiling of ceilings.
        cap: Duration,
    },
    /// Exactly these waits; the last one repeats.
    Steps(Vec<Duration>),
}

impl Backoff {
    /// Exactly these waits, one per retry; the last one repeats.
    pub fn steps<const N: usize>(steps: [Duration; N]) -> Self {
        Self::Steps(steps.to_vec())
    }
    /// Exponential with full jitter: the n-th retry waits between nothing and `first * 2^(n-1)`, at most `cap`.
    pub fn exponential(first: Duration, cap: Duration) -> Self {
        Self::Exponential { first, cap }
    }
    /// Comes back earlier than the narrow default would: 1, 5 and 15 minutes.
    fn is_hasty(&self) -> bool {
        match self {
            // Full jitter may draw no wait at all.
            Self::Exponential { .. } => true,
            Self::Steps(steps) => {
                let last = steps.last();
                let at = |n: usize| steps.get(n).or(last).copied().unwrap_or_default();
                NARROW_WAITS.iter().enumerate().any(|(n, narrow)| at(n) < *narrow)
            }
        }
    }
}

/// What happens to a job whose attempt was interrupted by the end of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnInterrupt {
    /// It runs again; its effects still guard themselves.
    #[default]
    RunAgain,
    /// A person is asked first.
    Hold,
}

/// What happens to a job that cannot go forward: its tries are used up, its failure is permanent, its deadline has passed, or it
/// killed its process too often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDead {
    /// A person is asked.
    #[default]
    Hold,
    /// What it did is undone, the last first, if all of it can be; otherwise, and where nothing was done, a person is asked.
    Undo,
}

/// How long something is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keep {
    /// For this long after the end.
    For(Duration),
    /// For ever.
    Forever,
}

/// What a kind asks for; everything left out takes its default, narrower if the kind has a risky effect.
///
/// | setting | default | with a risky effect |
/// |---|---|---|
/// | `retries` | 5 | 3 |
/// | `backoff` | exponential from 1 s, at most 15 min | 1, 5, 15 min |
/// | `deadline` | none | 1 day |
/// | `stall_timeout` | 5 min | 1 min |
/// | `attempt_timeout` | 1 h | 15 min |
/// | `remember` | 90 days | for ever |
/// | `keep_done` | 7 days | 90 days |
/// | `keep_discarded` | 30 days | 90 days |
///
/// A setting wider than the narrow default is taken, and named wherever the kind is shown to a person.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    pub(crate) retries: Option<u32>,
    pub(crate) backoff: Option<Backoff>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) stall_timeout: Option<Duration>,
    pub(crate) attempt_timeout: Option<Duration>,
    pub(crate) on_interrupt: OnInterrupt,
    pub(crate) on_dead: OnDead,
    pub(crate) remember: Option<Keep>,
    pub(crate) keep_done: Option<Keep>,
    pub(crate) keep_discarded: Option<Keep>,
    pub(crate) success: Option<String>,
    pub(crate) review: Option<String>,
    pub(crate) second_person_above: Option<u64>,
}

impl Policy {
    /// Retries after the first attempt: `retries(3)` is four attempts.
    pub fn retries(mut self, n: u32) -> Self {
        self.retries = Some(n);
        self
    }
    /// When to come back after a failure.
    pub fn backoff(mut self, b: Backoff) -> Self {
        self.backoff = Some(b);
        self
    }
    /// No attempt begins later than this after the enqueue; then a person decides.
    pub fn deadline(mut self, d: Duration) -> Self {
        self.deadline = Some(d);
        self
    }
    /// How long a handler may show no sign of progress before its lease expires.
    pub fn stall_timeout(mut self, d: Duration) -> Self {
        self.stall_timeout = Some(d);
        self
    }
    /// How long a whole attempt may take.
    pub fn attempt_timeout(mut self, d: Duration) -> Self {
        self.attempt_timeout = Some(d);
        self
    }
    /// What happens after the process ended while the handler ran.
    pub fn on_interrupt(mut self, o: OnInterrupt) -> Self {
        self.on_interrupt = o;
        self
    }
    /// What happens when the job cannot go forward.
    pub fn on_dead(mut self, o: OnDead) -> Self {
        self.on_dead = o;
        self
    }
    /// How long the intent is remembered after the job's end, so that a duplicate is recognised.
    pub fn remember(mut self, k: Keep) -> Self {
        self.remember = Some(k);
        self
    }
    /// How long the rows of a succeeded job are kept.
    pub fn keep_done(mut self, k: Keep) -> Self {
        self.keep_done = Some(k);
        self
    }
    /// How long the rows of a discarded or cancelled job are kept.
    pub fn keep_discarded(mut self, k: Keep) -> Self {
        self.keep_discarded = Some(k);
        self
    }
    /// In plain words: what is true when the job succeeded. Required for risky kinds.
    pub fn success(mut self, what: &str) -> Self {
        self.success = Some(what.to_owned());
        self
    }
    /// In plain words: when a person is asked. Required for risky kinds.
    pub fn review(mut self, when: &str) -> Self {
        self.review = Some(when.to_owned());
        self
    }

    /// Two people have to decide about a dead letter whose [`stake`](crate::Job::stake) is above this, in the app's own unit:
    /// the first one's decision waits until another person decides the same (the same effect, reference and wish for a new key;
    /// anything else replaces what was proposed). A limit of 0 asks for it always; with any other, implement
    /// [`stake`](crate::Job::stake), too: its default is 0.
    pub fn second_person_above(mut self, stake: u64) -> Self {
        self.second_person_above = Some(stake);
        self
    }

    /// Applies the defaults table; the riskiest declared effect narrows what was not set explicitly.
    pub fn resolve(&self, effects: &[EffectCard]) -> KindRules {
        let risky = effects.iter().any(|e| e.risk.is_risky());
        let pick = |plain: Duration, narrow: Duration| if risky { narrow } else { plain };
        let keep = |k: Option<Keep>, plain: Duration, narrow: Duration| k.unwrap_or(Keep::For(pick(plain, narrow)));
        let narrow_retries = 3;
        let mut widened = Vec::new();
        if risky {
            if self.retries.is_some_and(|n| n > narrow_retries) {
                widened.push("retries");
            }
            if self.attempt_timeout.is_some_and(|d| d > 15 * MINUTE) {
                widened.push("attempt timeout");
            }
            if self.stall_timeout.is_some_and(|d| d > MINUTE) {
                widened.push("stall timeout");
            }
            if self.deadline.is_some_and(|d| d > DAY) {
                widened.push("deadline");
            }
            if matches!(self.remember, Some(Keep::For(_))) {
                widened.push("dedupe memory");
            }
            let short = |k: Option<Keep>| matches!(k, Some(Keep::For(d)) if d < 90 * DAY);
            if short(self.keep_done) {
                widened.push("keeping of what is done");
            }
            if short(self.keep_discarded) {
                widened.push("keeping of what was discarded");
            }
            if effects.iter().any(EffectCard::is_hasty) {
                widened.push("settle time");
            }
            if self.backoff.as_ref().is_some_and(Backoff::is_hasty) {
                widened.push("backoff");
            }
        }
        KindRules {
            max_attempts: self.retries.unwrap_or(if risky { narrow_retries } else { 5 }).saturating_add(1),
            backoff: self.backoff.clone().unwrap_or_else(|| {
                if risky { Backoff::steps(NARROW_WAITS) } else { Backoff::exponential(SECOND, 15 * MINUTE) }
            }),
            stall_timeout: self.stall_timeout.unwrap_or(pick(5 * MINUTE, MINUTE)),
            attempt_timeout: self.attempt_timeout.unwrap_or(pick(HOUR, 15 * MINUTE)),
            deadline: self.deadline.or(risky.then_some(DAY)),
            on_interrupt: self.on_interrupt,
            on_dead: self.on_dead,
            remember: self.remember.unwrap_or(if risky { Keep::Forever } else { Keep::For(90 * DAY) }),
            keep_done: keep(self.keep_done, 7 * DAY, 90 * DAY),
            keep_discarded: keep(self.keep_discarded, 30 * DAY, 90 * DAY),
            old_call_bound: pick(15 * MINUTE, 5 * MINUTE),
            cannot_tell_bound: DAY,
            second_person_above: self.second_person_above,
            risky,
            widened,
            effects: effects.to_vec(),
        }
    }
}

/// What the rules know of a kind: its policy after defaults and risk, and its declared effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindRules {
    /// Attempts in all: retries + 1.
    pub max_attempts: u32,
    /// When to come back.
    pub backoff: Backoff,
    /// Longest time without a sign of progress.
    pub stall_timeout: Duration,
    /// Longest time of one attempt.
    pub attempt_timeout: Duration,
    /// From the enqueue to the last instant an attempt may begin.
    pub deadline: Option<Duration>,
    /// After the process ended while the handler ran.
    pub on_interrupt: OnInterrupt,
    /// When it cannot go forward.
    pub on_dead: OnDead,
    /// Memory of the intent after the end.
    pub remember: Keep,
    /// Rows of succeeded jobs.
    pub keep_done: Keep,
    /// Rows of discarded, cancelled and outside-handled jobs.
    pub keep_discarded: Keep,
    /// How long an old call may go on before a person is asked.
    pub old_call_bound: Duration,
    /// How long a probe may be unable to tell before a person is asked.
    pub cannot_tell_bound: Duration,
    /// Two people decide about a job whose stake is above this.
    pub second_person_above: Option<u64>,
    /// It has a risky effect.
    pub risky: bool,
    /// Settings wider than the risky default, for the safety card.
    pub widened: Vec<&'static str>,
    /// What it declared.
    pub effects: Vec<EffectCard>,
}

impl KindRules {
    /// The declared effect that owns records named `name`: its name or one of its former names.
    pub fn card(&self, name: &str) -> Option<&EffectCard> {
        self.effects.iter().find(|c| c.owns(name))
    }
}

impl Risk {
    /// Whether the defaults narrow for it.
    pub fn is_risky(self) -> bool {
        match self {
            Self::Routine => false,
            Self::Charge | Self::Publish | Self::BulkDelete | Self::Email | Self::Order => true,
        }
    }
    /// Whether `repeat()` is refused for it.
    pub fn forbids_repeat(self) -> bool {
        match self {
            Self::Charge | Self::Order | Self::BulkDelete => true,
            Self::Routine | Self::Publish | Self::Email => false,
        }
    }
}

//! What can happen in a world, and what it costs: every [`Event`] that a state allows, within the troubles that are left.

use super::{Hand, Setting, Step, World};
use crate::model::id::EffectId;
use crate::model::job::{End, JobState};
use crate::rules::effect::Same;
use crate::rules::letter;

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Event {
    Claim,
    Start,
    Ask(Same),
    Land(usize),
    Return(usize, Ret),
    WireLands(usize),
    Look,
    Answer(bool),
    Finish,
    End(Ending),
    Death(Death),
    LateAnswer,
    Tick,
    Sleep,
    Wake,
    Distrust,
    Cancel,
    Person(usize, Word),
    /// The undo job that is under way ends.
    Undo(End),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Ret {
    Ok,
    /// The answer was lost; the request may still be on the wire.
    Lost(bool),
    Refused,
    NotSent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Ending {
    Stop,
    Transient,
    Permanent,
    NotYet,
    Early,
    Lapse,
    Interrupt,
    NeverStarted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Death {
    Alone,
    BesideOthers,
    Reboot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Word {
    Happened,
    HappenedNoReference,
    DidNot,
    DidNotNewKey,
    TryAgain,
    Outside,
    Discard,
    Undo,
}

impl World {
    /// Every event that costs no more troubles than are left, with its cost.
    pub(in super::super) fn events(&self, s: &Setting<'_>, left: usize) -> Vec<(Event, usize)> {
        let mut out = Vec::new();
        let mut add = |event, cost: usize| {
            if cost <= left {
                out.push((event, cost));
            }
        };
        match &self.job.state {
            JobState::Ready { .. } => add(Event::Claim, 0),
            JobState::Delayed { .. } | JobState::Waiting { .. } => add(Event::Wake, 0),
            JobState::NeedsDecision | JobState::Dead => self.words(s, &mut add),
            JobState::Compensating { .. } => {
                add(Event::Undo(End::Done), 0);
                add(Event::Undo(End::HandledOutside), 1);
                add(Event::Undo(End::Discarded), 1);
            }
            JobState::Running { .. } | JobState::Ended { .. } => {}
        }
        if let Some(hand) = &self.hand {
            self.hand_events(hand, &mut add);
            for death in [Death::Alone, Death::BesideOthers, Death::Reboot] {
                add(Event::Death(death), 1);
            }
        }
        for (i, call) in self.calls.iter().enumerate() {
            if call.landed {
                add(Event::Return(i, Ret::Ok), 0);
                add(Event::Return(i, Ret::Lost(false)), 1);
            } else {
                if self.may_land(s, &call.effect, call.since) {
                    add(Event::Land(i), 0);
                    add(Event::Return(i, Ret::Lost(true)), 1);
                }
                add(Event::Return(i, Ret::Lost(false)), 1);
                add(Event::Return(i, Ret::Refused), 1);
                add(Event::Return(i, Ret::NotSent), 1);
            }
        }
        for i in 0..self.wires.len() {
            add(Event::WireLands(i), 0);
        }
        if self.late.is_some() {
            add(Event::LateAnswer, 0);
        }
        if self.hand.is_some() || !self.calls.is_empty() || !self.wires.is_empty() {
            add(Event::Tick, usize::from(self.wires.is_empty()));
        }
        if self.sleeps == 0 && !self.effects.is_empty() && !self.rests() {
            add(Event::Sleep, 1);
            if self.trusted {
                add(Event::Distrust, 1);
            }
        }
        let cancellable = !self.rests() && !self.job.cancel;
        if cancellable {
            add(Event::Cancel, 1);
        }
        out
    }

    fn hand_events(&self, hand: &Hand, add: &mut impl FnMut(Event, usize)) {
        if !hand.started {
            add(Event::Start, 0);
            add(Event::End(Ending::NeverStarted), 1);
            return;
        }
        add(Event::End(Ending::Lapse), 1);
        add(Event::End(Ending::Interrupt), 1);
        if hand.stop.is_some() {
            add(Event::End(Ending::Stop), 0);
            return;
        }
        match hand.step {
            Step::Ask(_) => {
                add(Event::Ask(Same::Yes), 0);
                add(Event::Ask(Same::No), 1);
                add(Event::Ask(Same::Unreadable), 1);
                add(Event::End(Ending::Transient), 1);
                add(Event::End(Ending::Permanent), 1);
                add(Event::End(Ending::NotYet), 1);
                add(Event::End(Ending::Early), 1);
            }
            Step::Calling(_) => {}
            Step::Probing(_, None) => {
                add(Event::Look, 0);
                add(Event::Answer(false), 1);
            }
            Step::Probing(_, Some(_)) => add(Event::Answer(true), 0),
            Step::Finish => {
                add(Event::Finish, 0);
                add(Event::End(Ending::Transient), 1);
            }
        }
    }

    fn words(&self, s: &Setting<'_>, add: &mut impl FnMut(Event, usize)) {
        let Some(letter) = &self.letter else { return };
        // An honest person answers once nothing is under way any more, and then says what is so.
        let still =
            |id: &EffectId| self.calls.iter().any(|c| c.effect == *id) || self.wires.iter().any(|w| w.effect == *id);
        for choice in letter::choices(letter, &self.effects) {
            let index = |id: &EffectId| self.effects.iter().position(|e| e.id == *id).unwrap_or(0);
            match choice {
                letter::Choice::Happened(id) => {
                    if !s.honest || (!still(&id) && self.happened(&id)) {
                        add(Event::Person(index(&id), Word::Happened), 0);
                        add(Event::Person(index(&id), Word::HappenedNoReference), 1);
                    }
                }
                letter::Choice::DidNotHappen(id) => {
                    if !s.honest || (!still(&id) && !self.happened(&id)) {
                        add(Event::Person(index(&id), Word::DidNot), 0);
                        add(Event::Person(index(&id), Word::DidNotNewKey), 0);
                    }
                }
                letter::Choice::TryAgain => add(Event::Person(0, Word::TryAgain), 1),
                letter::Choice::HandledOutside => add(Event::Person(0, Word::Outside), 0),
                letter::Choice::Undo => add(Event::Person(0, Word::Undo), 0),
                letter::Choice::Discard => add(Event::Person(0, Word::Discard), 0),
            }
        }
    }
}

//! The child: opens the queue, brings work and moves the clock in rounds, is the person at the desk, and reports; until it is killed,
//! or told that it is enough. Then it brings everything to its end, and waits until nothing is left of it in the file.

use super::app::{DAY, DONE, Gate, HOUR, NEWS, PATIENCE, Pay, Post, Stage, Task, What, finished, queue, what};
use super::port::Port;
use onceward::testkit::{ManualClock, Wall, run_until_idle};
use onceward::{DeadLetter, Decision, Enqueued, Error, JobId, Jobs, Outgoing, Question, Refusal, State, Tx, Why};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Tells the child what to be: `directory|calendar|steady|first job|rounds between rests`.
pub(super) const CHILD: &str = "ONCEWARD_SOAK_CHILD";

/// Jobs of one round: most in one transaction with a message, the last of them one by one.
pub(super) const ROUND: u64 = 48;
const TOGETHER: u64 = 46;
/// The stopwatch runs so long before the calendar is set again: rows are pruned only after a day without that.
const STEADY: Duration = Duration::from_secs(40 * 3600);
/// The newest jobs, of which some have rows; every so-many-th of them is looked at.
const RECENT: u64 = 8_192;
const STEP: usize = 32;

/// Told what to be, this process is a child; otherwise nothing happens.
pub(super) fn main() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let told: Vec<&str> = told.split('|').collect();
    let [dir, numbers @ ..] = &told[..] else { panic!("not a child: {told:?}") };
    let numbers: Vec<u64> = numbers.iter().map(|n| n.parse().expect("a number")).collect();
    let [wall, steady, first, rounds] = numbers[..] else { panic!("not a child: {told:?}") };
    let (port, gate) = (Arc::new(Port::open()), Arc::new(Gate::default()));
    let clock = ManualClock::at(Wall(wall));
    port.tell("opening");
    let started = queue(Path::new(dir), &port, &gate).clock(Arc::new(clock.clone())).start();
    let jobs = started.expect("a kill leaves a file that opens");
    port.tell("open");
    let rng = fastrand::Rng::with_seed(wall ^ first);
    let mut child = Child { jobs, port, gate, clock, wall, steady: Duration::from_millis(steady), next: first, rng };
    let mut round = 0;
    loop {
        child.round(round);
        round += 1;
        if round % rounds == 0 && child.rest() == "end" {
            break;
        }
    }
    child.finish();
}

/// How the clock moves.
enum Move {
    Advance(Duration),
    /// Somebody sets the calendar, by so many ms.
    Jump(i64),
    /// The machine sleeps.
    Suspend(Duration),
}

/// Nothing in it grows.
struct Child {
    jobs: Jobs,
    port: Arc<Port>,
    gate: Arc<Gate>,
    clock: ManualClock,
    wall: u64,
    steady: Duration,
    next: u64,
    rng: fastrand::Rng,
}

impl Child {
    fn round(&mut self, round: u64) {
        let first = self.next;
        self.next += ROUND;
        let slow = (first..self.next).find(|n| what(*n) == What::Slow);
        self.gate.arm(slow.unwrap_or(0));
        let told = self.bring(first);
        let hangs = slow.is_some_and(|n| told[(n - first) as usize].is_new());
        self.drop_some(first, &told);
        self.ask_again(first);
        if hangs {
            self.outlast_a_lease();
        }
        self.idle();
        self.desk();
        if round % 3 == 2 {
            self.collect();
        }
        self.pass(round);
    }

    /// Enqueues the jobs of this round, those that a killed process did not get to among them.
    fn bring(&self, first: u64) -> Vec<Enqueued> {
        self.port.tell(&format!("try {first}"));
        let together = self.jobs.transact(move |tx| {
            tx.send(Outgoing::new(NEWS, format!("round/{first}"), &first).key("rounds"))?;
            (first..first + TOGETHER).map(|n| enqueue(tx, n)).collect::<Result<Vec<_>, Error>>()
        });
        let mut told = together.expect("a round is handed in");
        for n in first + TOGETHER..first + ROUND {
            told.push(self.jobs.transact(move |tx| enqueue(tx, n)).expect("a job is handed in"));
        }
        self.port.tell(&format!("ack {first}"));
        told
    }

    fn drop_some(&self, first: u64, told: &[Enqueued]) {
        for (n, told) in (first..).zip(told).filter(|(n, _)| what(*n) == What::Dropped) {
            self.port.tell(&format!("dropping {n}"));
            match self.jobs.cancel(told.id()) {
                Ok(()) => self.port.tell(&format!("dropped {n}")),
                // It ran in the life before this one.
                Err(Error::Refused(Refusal::WrongState(_)) | Error::NotFound(_)) if !told.is_new() => {}
                Err(e) => panic!("job {n}: {e}"),
            }
        }
    }

    /// The same intent once more, of the round before: its rows may be gone, its memory is not.
    fn ask_again(&mut self, first: u64) {
        let Some(n) = first.checked_sub(1 + self.rng.u64(0..ROUND)) else { return };
        let told = self.jobs.transact(move |tx| enqueue(tx, n)).expect("it can be asked again");
        let known = matches!(told, Enqueued::Existing { differs: false, .. });
        assert!(known, "job {n} of the round before is {told:?}");
        self.port.tell("again");
    }

    /// The lease of a handler that hangs runs out, and its thread is replaced; then it comes back.
    fn outlast_a_lease(&mut self) {
        self.gate.wait_for(Stage::Inside);
        self.go(Move::Advance(Duration::from_secs(360)));
        self.gate.wait_for(Stage::Told);
        self.go(Move::Advance(Duration::from_secs(60)));
        self.idle();
        self.gate.comes_to(Stage::Open);
        self.gate.wait_for(Stage::Nobody);
        self.port.tell("outlasted");
    }

    /// As far as it gets by now.
    fn idle(&self) {
        run_until_idle(&self.jobs).expect("what is due is done");
    }

    /// Reports what has finished, then deletes the rows; a death in between reports the same rows again.
    fn collect(&self) {
        for part in finished(&self.jobs).chunks(64) {
            let rows: Vec<String> = part.iter().map(|(n, token)| format!(" {n}:{token}")).collect();
            self.port.tell(&format!("done{}", rows.concat()));
            let part = part.to_vec();
            let deleted = self.jobs.transact(move |tx| {
                let mut table = tx.open_table(DONE)?;
                for row in &part {
                    table.remove(row)?;
                }
                Ok::<_, onceward::Fail>(())
            });
            deleted.expect("rows can be deleted");
        }
    }

    fn desk(&self) {
        for letter in self.jobs.dead_letters().expect("a list of letters") {
            let n: u64 = letter.key().parse().expect("keys are numbers");
            let decision = self.answer(n, &letter).by("the suite", "the ledger says so");
            self.port.tell(&format!("letter {:?}", letter.why()));
            match self.jobs.decide(&letter, decision) {
                Ok(_) | Err(Error::Refused(Refusal::Stale { .. })) => {}
                Err(e) => panic!("{e}: {letter:#?}"),
            }
        }
    }

    fn answer(&self, n: u64, letter: &DeadLetter) -> Decision {
        let lawful = match what(n) {
            What::Doomed => letter.why() == Why::Permanent,
            // Deaths, and calls that nobody is sure of: tries enough are left for everything else.
            _ => matches!(letter.why(), Why::ProcessDied | Why::InterruptedTooOften | Why::EffectUnresolved),
        };
        assert!(lawful, "no rule makes this letter: {letter:#?}");
        match letter.questions().first() {
            Some(Question::DidItHappen { effect }) => match self.port.find(&effect.name, n) {
                Some(receipt) => Decision::happened(effect, Some(&receipt)),
                None => Decision::did_not_happen(effect),
            },
            Some(Question::WhatNow) if what(n) == What::Doomed => Decision::discard(),
            Some(Question::WhatNow) => Decision::try_again(),
            other => panic!("no kill makes such a question: {other:?} in {letter:#?}"),
        }
    }

    /// Time passes: mostly as it should.
    fn pass(&mut self, round: u64) {
        let to = if round % 8 == 5 {
            Move::Suspend(Duration::from_secs(self.rng.u64(600..12 * 3600)))
        } else if self.steady >= STEADY && self.rng.bool() {
            let by = if self.rng.bool() { HOUR } else { DAY }.as_millis() as i64;
            Move::Jump(if self.rng.bool() { by } else { -by })
        } else {
            Move::Advance(Duration::from_secs(self.rng.u64(60..4 * 3600)))
        };
        self.go(to);
    }

    /// Told before it is done: the next process never begins earlier than this one got.
    fn go(&mut self, to: Move) {
        let ms = |d: Duration| d.as_millis() as u64;
        let word = match to {
            Move::Advance(d) => {
                self.wall += ms(d);
                self.steady += d;
                "advance"
            }
            Move::Suspend(d) => {
                self.wall += ms(d);
                "suspend"
            }
            Move::Jump(by) => {
                self.wall = self.wall.saturating_add_signed(by);
                self.steady = Duration::ZERO;
                "jump"
            }
        };
        self.port.tell(&format!("clock {word} {} {}", self.wall, ms(self.steady)));
        match to {
            Move::Advance(d) => self.clock.advance(d),
            Move::Suspend(d) => self.clock.suspend(d),
            Move::Jump(by) => self.clock.jump_wall(by),
        }
    }

    /// Stands still while the parent measures.
    fn rest(&self) -> String {
        self.idle();
        let looked_at = (self.next.saturating_sub(RECENT)..self.next).step_by(STEP);
        let rows = looked_at.filter(|n| self.has_rows(*n)).count() * STEP;
        self.port.ask(&format!("rest {} {} {rows}", std::process::id(), self.open()))
    }

    /// Jobs that are not over, and messages that are not delivered.
    fn open(&self) -> u64 {
        let gauges = self.jobs.snapshot().expect("a snapshot").gauges;
        let jobs: u64 = gauges.queue_depth.values().flat_map(|states| states.values()).sum();
        jobs + gauges.outbox.values().map(|t| t.depth).sum::<u64>()
    }

    fn find(&self, n: u64) -> Option<JobId> {
        let key = n.to_string().into();
        let found = match what(n) {
            What::Pay => self.jobs.find::<Pay>(&key),
            What::Post => self.jobs.find::<Post>(&key),
            _ => self.jobs.find::<Task>(&key),
        };
        found.expect("it can be looked for")
    }

    /// It is more than remembered.
    fn has_rows(&self, n: u64) -> bool {
        self.find(n).is_some_and(|id| self.jobs.state(id).is_ok_and(|state| state != State::Remembered))
    }

    /// The intent or the message of a job is still known.
    fn is_known(&self, n: u64) -> bool {
        let message = self.jobs.outbox().find(NEWS, &format!("done/{n}")).expect("it can be looked for");
        message.is_some() || self.find(n).is_some()
    }

    /// Everything ends; and then nothing is known of it any more.
    fn finish(mut self) {
        let recent = self.next.saturating_sub(RECENT)..self.next;
        for _ in 0..500 {
            self.idle();
            self.desk();
            if self.open() == 0 {
                break;
            }
            self.go(Move::Advance(HOUR));
        }
        self.collect();
        let known_before = recent.clone().filter(|n| self.is_known(*n)).count();
        // A day until the clock is believed, another one if the calendar was set back, and the longest memory.
        for _ in 0..(2 + 3 + 1) * 12 {
            self.go(Move::Advance(2 * HOUR));
            self.idle();
        }
        let known = recent.filter(|n| self.is_known(*n)).count();
        self.port.tell(&format!("over {} {known_before} {known}", self.open()));
        self.jobs.shutdown(PATIENCE).expect("it closes");
    }
}

fn enqueue(tx: &mut Tx<'_>, n: u64) -> Result<Enqueued, Error> {
    match what(n) {
        What::Pay => tx.enqueue(&Pay::new(n)),
        What::Post => tx.enqueue(&Post::new(n)),
        What::Later(d) => tx.enqueue_after(d, &Task::new(n)),
        What::Dropped => tx.enqueue_after(DAY, &Task::new(n)),
        What::Plain | What::Flaky(_) | What::Doomed | What::Slow => tx.enqueue(&Task::new(n)),
    }
}

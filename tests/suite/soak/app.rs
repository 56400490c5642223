//! The app of the soak: jobs that just run, that fail and come back, that wait, that call a provider, that nobody can carry out, and
//! one that hangs. Each leaves one row with its token when it finishes, and some a message; what a job is follows from its number.

use super::port::Port;
use onceward::redb::{ReadableTable, TableDefinition};
use onceward::{
    Builder, Cx, Effect, EffectCard, Fail, IdempotencyKey, Job, JobKey, Jobs, Keep, Message, Outcome, Outgoing, Policy,
    Recovery, Topic,
};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// (job, token) of every finish. The child reports the rows and then deletes them.
pub(super) const DONE: TableDefinition<(u64, u64), ()> = TableDefinition::new("done");
/// What the step of a letter drew: written by its commit, taken away by its finish.
const DRAWN: TableDefinition<u64, u64> = TableDefinition::new("drawn");

pub(super) const NEWS: &str = "news";
pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);
const MINUTE: Duration = Duration::from_secs(60);
/// Longer than any step may take on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// What job `n` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Plain,
    /// Its first attempts fail, so many of them.
    Flaky(u32),
    /// Enqueued for later.
    Later(Duration),
    /// Charges, at a provider that honours keys.
    Pay,
    /// Mails, at a provider that does not, and can be asked.
    Post,
    /// Nobody can carry it out: a person throws it away.
    Doomed,
    /// Enqueued for the next day, and cancelled.
    Dropped,
    /// Hangs until its lease is over and its thread replaced.
    Slow,
}

pub(super) fn what(n: u64) -> What {
    match (n % 512, n % 128, n % 8) {
        (100, ..) => What::Slow,
        (300, ..) => What::Doomed,
        (_, 50, _) => What::Dropped,
        (.., 0..=2) => What::Plain,
        (.., 3) => What::Flaky(1 + (n / 8 % 3) as u32),
        (.., 4) => What::Later(MINUTE * (n / 8 % 1_440) as u32),
        (.., 5 | 6) => What::Pay,
        _ => What::Post,
    }
}

/// Whether the finish of job `n` also hands in a message.
pub(super) fn has_news(n: u64) -> bool {
    n.is_multiple_of(3)
}

macro_rules! jobs {
    ($($name:ident $kind:literal [$($effect:ident),*];)*) => {$(
        #[derive(Serialize, Deserialize)]
        pub(super) struct $name {
            pub(super) n: u64,
            /// Rows of all lengths: their room is used again by others.
            filler: String,
        }
        impl $name {
            pub(super) fn new(n: u64) -> Self {
                Self { n, filler: "-".repeat((n * 37 % 1_500) as usize) }
            }
        }
        impl Job for $name {
            const KIND: &'static str = $kind;
            fn key(&self) -> JobKey {
                self.n.to_string().into()
            }
            fn effects() -> Vec<EffectCard> {
                vec![$($effect::card()),*]
            }
            fn policy() -> Policy {
                // Short, so that rows go as fast as they come.
                Policy::default()
                    .retries(8)
                    .keep_done(Keep::For(HOUR))
                    .keep_discarded(Keep::For(2 * HOUR))
                    .remember(Keep::For(3 * DAY))
            }
        }
    )*};
}

jobs! {
    Task "task" [];
    Pay "pay" [Charge];
    Post "post" [Mail];
}

macro_rules! effects {
    ($($name:ident $word:literal $recovery:expr;)*) => {$(
        #[derive(Serialize, Deserialize)]
        struct $name {
            n: u64,
        }
        impl Effect for $name {
            type Result = String;
            const NAME: &'static str = $word;
            fn says(&self) -> String {
                format!("{} {}", $word, self.n)
            }
            fn recovery() -> Recovery {
                $recovery
            }
            fn reference(done: &String) -> Option<String> {
                Some(done.clone())
            }
            fn from_reference(&self, reference: &str) -> Option<String> {
                Some(reference.to_owned())
            }
        }
        impl $name {
            fn call(&self, port: &Port, key: &IdempotencyKey) -> Outcome<String> {
                let answer = port.ask(&format!("call {} {} {key}", $word, self.n));
                match answer.split_once(' ').unwrap_or((&answer, "")) {
                    ("ok", receipt) => Ok(receipt.to_owned()),
                    ("lost", _) => Err(Fail::new("no answer")),
                    ("away", _) => Err(Fail::not_sent("no connection")),
                    ("no", _) => Err(Fail::refused("not now")),
                    _ => panic!("not an answer: {answer:?}"),
                }
            }
            fn find(&self, port: &Port) -> Outcome<Option<String>> {
                Ok(port.find($word, self.n))
            }
        }
    )*};
}

effects! {
    Charge "charge" Recovery::same_key(DAY).or_probe(MINUTE);
    Mail "mail" Recovery::probe(MINUTE);
}

fn task(cx: &Cx, n: u64, gate: &Gate) -> Outcome {
    match what(n) {
        What::Flaky(times) if cx.attempt() <= times => {
            let failed = Fail::new("not this time");
            return Err(if n.is_multiple_of(2) { failed.retry_after(10 * MINUTE) } else { failed });
        }
        What::Doomed => return Err(Fail::permanent("there is no such thing")),
        What::Slow if gate.shuts_behind(n) => {
            gate.hang(cx);
            return Err(Fail::new("nobody waits for this any more"));
        }
        _ => {}
    }
    finish(cx, n)
}

fn post(cx: &Cx, n: u64) -> Outcome {
    let drawn: u64 = cx.step("draw", || Ok(fastrand::u64(..)))?;
    cx.effect(Mail { n })?;
    if n.is_multiple_of(3) && cx.attempt() == 1 {
        // The next attempt gets the recorded result: this provider would mail again.
        return Err(Fail::new("fails behind its mail"));
    }
    cx.commit("keep", move |tx| {
        tx.open_table(DRAWN)?.insert(n, drawn)?;
        Ok(())
    })?;
    let token = cx.token();
    cx.finish(move |tx| {
        let kept = tx.open_table(DRAWN)?.remove(n)?.map(|row| row.value());
        if kept != Some(drawn) {
            return Err(Fail::permanent(format!("the step drew {drawn}, the commit kept {kept:?}")));
        }
        done(tx, n, token)
    })
}

fn finish(cx: &Cx, n: u64) -> Outcome {
    let token = cx.token();
    cx.finish(move |tx| done(tx, n, token))
}

fn done(tx: &mut onceward::Tx<'_>, n: u64, token: u64) -> Outcome {
    tx.open_table(DONE)?.insert((n, token), ())?;
    if has_news(n) {
        tx.send(Outgoing::new(NEWS, format!("done/{n}"), &n).key(format!("done/{}", n % 8)))?;
    }
    Ok(())
}

/// All rows of [`DONE`].
pub(super) fn finished(jobs: &Jobs) -> Vec<(u64, u64)> {
    let all = jobs.read(|r| {
        let Ok(table) = r.open_table(DONE) else { return Vec::new() };
        table.iter().expect("the table can be read").map(|row| row.expect("a row can be read").0.value()).collect()
    });
    all.expect("the file can be read")
}

/// The queue in `dir`, with its providers at the other end of the port.
pub(super) fn queue(dir: &Path, port: &Arc<Port>, gate: &Arc<Gate>) -> Builder {
    let p = || port.clone();
    let (charge, charged, mail, mailed, deliver, gate) = (p(), p(), p(), p(), p(), gate.clone());
    Jobs::open(dir.join("q.redb"))
        .workers(4)
        // Small, so that it is full long before the levels are compared.
        .cache_bytes(4 << 20)
        .on(move |cx, job: Task| task(cx, job.n, &gate))
        .on(|cx, job: Pay| {
            cx.effect(Charge { n: job.n })?;
            finish(cx, job.n)
        })
        .on(|cx, job: Post| post(cx, job.n))
        .effect(move |e: &Charge, key| e.call(&charge, key))
        .probe(move |e: &Charge, _| e.find(&charged))
        .effect(move |e: &Mail, key| e.call(&mail, key))
        .probe(move |e: &Mail, _| e.find(&mailed))
        .publisher(NEWS, move |m: &Message| match &deliver.ask(&format!("deliver {}", m.id))[..] {
            "ok" => Ok(()),
            _ => Err(Fail::new("no acknowledgement")),
        })
        .topic(NEWS, Topic::default().keep(Keep::For(HOUR)).remember(Keep::For(3 * DAY)))
}

/// Where a slow job hangs, and what the child knows of it. A job hangs only if the child waits for it: one that comes back in the
/// next process runs through.
#[derive(Default)]
pub(super) struct Gate {
    armed: AtomicU64,
    stage: Mutex<Stage>,
    moved: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Nobody,
    Inside,
    /// The handler was told to stop.
    Told,
    Open,
}

impl Gate {
    pub(super) fn arm(&self, n: u64) {
        self.armed.store(n, Ordering::SeqCst);
    }
    fn shuts_behind(&self, n: u64) -> bool {
        self.armed.compare_exchange(n, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
    fn hang(&self, cx: &Cx) {
        self.comes_to(Stage::Inside);
        while !cx.cancelled() {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        self.comes_to(Stage::Told);
        self.wait_for(Stage::Open);
        self.comes_to(Stage::Nobody);
    }
    pub(super) fn comes_to(&self, stage: Stage) {
        *self.stage.lock().expect("no panic holds it") = stage;
        self.moved.notify_all();
    }
    pub(super) fn wait_for(&self, stage: Stage) {
        let at = self.stage.lock().expect("no panic holds it");
        let (at, over) = self.moved.wait_timeout_while(at, PATIENCE, |at| *at != stage).expect("no panic holds it");
        assert!(!over.timed_out(), "a slow job is {:?} and never comes to {stage:?}", *at);
    }
}

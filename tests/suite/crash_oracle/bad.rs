//! Histories that must never be accepted: a rich life is recorded as the crash suites do it, its file is read, one thing is spoilt, and
//! the oracle has to say which promise was broken. Without the change it accepts the file. An oracle that accepts one of these would
//! not see the crash that makes such a file.

use super::super::crash_life::{self, Life, left_behind};
use super::super::crash_scripts::{Script, secs};
use super::super::crash_world::{Call, Told};
use super::super::oracle::tests::rejected;
use super::*;
use onceward::Decision;
use onceward::clock::ManualClock;
use onceward::model::id::Token;
use onceward::store::disk::crash_points;
use onceward::store::{Place, StoreOptions};
use onceward::testkit::SimDisk;
use std::sync::Arc;

fn work(key: &str) -> Name {
    (Work::KIND, key.to_owned())
}

fn note(key: &str) -> Name {
    (Note::KIND, key.to_owned())
}

/// Something of everything that the oracle knows: what is done, dead, asked, proposed, thrown away, forgotten, delayed and paused.
const RICH: Script = Script {
    name: "a rich life",
    run: |c| {
        let _told = c.enqueue(&Brief { key: "brief".into(), body: "b".repeat(20) });
        c.idle();
        c.world.tell(Told::Aged(false));
        c.pass(secs(25 * 3_600));
        let again = c.enqueue(&Work::new("again", &[Do::Charge, Do::Step, Do::Fail(3), Do::Finish]));
        let bad = c.enqueue(&Work::new("bad", &[Do::Charge, Do::Fail(99)]));
        c.idle();
        c.pass(secs(10));
        c.pass(secs(20));
        let _told = c.enqueue(&Work::new("pay", &[Do::Step, Do::Charge, Do::Commit, Do::Finish]));
        let lost = c.enqueue(&Work::new("lost-wire", &[Do::Wire, Do::Commit]));
        let gone = c.enqueue(&Work::new("gone-wire", &[Do::Wire]));
        let dear = c.enqueue(&Work::new("dear-one", &[Do::Charge, Do::Never]));
        let tossed = c.enqueue(&Work::new("tossed", &[Do::Never]));
        let _told = c.enqueue_many(&["n1", "n2"].map(|key| Note { key: key.into() }));
        c.transact("a");
        c.idle();
        let ids = [&again, &bad, &lost, &gone, &dear, &tossed].map(|told| told.as_ref().expect("a healthy disk").id());
        let [again, bad, lost, gone, dear, tossed] = ids;
        c.again(work("again"), again, None);
        c.decide(work("lost-wire"), lost, Decision::happened(&effect_id("wire"), Some("wire-lost-wire-1")));
        c.decide(work("dear-one"), dear, Decision::handled_outside());
        c.decide(work("tossed"), tossed, Decision::discard());
        c.idle();
        for (name, id) in [("bad", bad), ("gone-wire", gone), ("tossed", tossed)] {
            c.look(work(name), id);
        }
        c.pause(true);
        let _told = c.enqueue(&Note { key: "kept".into() });
        let _told = c.after(secs(3_600), &Note { key: "later".into() });
        c.idle();
    },
};

/// The file as it was read, before and after it was put together, and what callers had been told.
#[derive(Clone)]
struct History {
    raw: Raw,
    whole: Whole,
    epoch: u32,
    facts: Facts,
    /// Up to when the process began.
    past: Facts,
}

fn rich() -> History {
    let life = Life::record(&RICH);
    let mut disk = None;
    crash_points(&life.start, &life.start_sidecar, &life.log, |point| {
        if point.index == life.log.len() {
            disk = Some(left_behind(point, crash_life::End::Kill, 0));
        }
    });
    let disk: SimDisk = disk.expect("it did something");
    let facts = Facts::of(&life.told);
    let clock = ManualClock::at(Wall(facts.time));
    let mut options = StoreOptions::new(Place::Disk(Arc::new(disk)), Arc::new(clock));
    options.cache_bytes = 1 << 20;
    let (store, opened) = Store::open(options).unwrap();
    let raw = store.read(|v| Ok(raw(v, most(&facts)))).unwrap().unwrap();
    let whole = check(&store, &opened, &facts).unwrap();
    store.close().unwrap();
    History { raw, whole, epoch: opened.epoch, past: facts.clone(), facts }
}

impl History {
    /// The rows of a job before they are compared.
    fn rows(&mut self, name: &Name) -> &mut Rows {
        let id = self.whole.jobs[name].id;
        self.raw.found.iter_mut().find(|r| r.id == id).unwrap()
    }
    fn job(&mut self, name: &Name) -> &mut Found {
        self.whole.jobs.get_mut(name).unwrap()
    }
    fn record(&mut self, key: &str) -> &mut JobRecord {
        &mut self.job(&work(key)).record
    }
    fn effect(&mut self, key: &str) -> &mut EffectRecord {
        &mut self.job(&work(key)).effects[0]
    }
    fn call(&mut self, order: &str) -> &mut Call {
        self.facts.calls.iter_mut().find(|c| c.order == order).unwrap()
    }
    /// The index row of a job.
    fn index_row(&self, name: &Name) -> (u64, String) {
        let id = self.whole.jobs[name].id.number();
        self.raw.index.iter().find(|(n, _)| *n == id).unwrap().clone()
    }
    fn forget_call(&mut self, order: &str) {
        self.facts.calls.retain(|c| c.order != order);
    }
}

fn tables(h: &History) -> Result<(), String> {
    jobs(h.raw.clone()).map(drop)
}

fn told(h: &History) -> Result<(), String> {
    judge(&h.whole, h.epoch, &h.facts)
}

/// The tables contradict each other: a job in two states or in none, half of it, two jobs for one key, a count that is wrong, an
/// act of a person in one place only (I3, I6, I27).
#[test]
fn tables_that_contradict_each_other_are_rejected() {
    rejected(
        &rich(),
        tables,
        &[
            ("has no index row \"ready", |h| {
                let row = h.index_row(&note("kept"));
                h.raw.index.remove(&row);
            }),
            ("has no index row \"due", |h| {
                let row = h.index_row(&note("later"));
                h.raw.index.remove(&row);
            }),
            ("has no index row \"letter", |h| {
                let row = h.index_row(&work("bad"));
                h.raw.index.remove(&row);
            }),
            ("has no index row \"prune", |h| {
                let row = h.index_row(&work("pay"));
                h.raw.index.remove(&row);
            }),
            ("has no index row \"run", |h| {
                let token = h.whole.jobs[&note("kept")].record.last_token;
                let record = h.rows(&note("kept")).record.as_mut().unwrap();
                record.state = JobState::Running { token, continuing: false };
            }),
            ("an index row of no job", |h| {
                let id = h.whole.jobs[&work("pay")].id.number();
                h.raw.index.insert((id, "letter".into()));
            }),
            ("an index row of no job", |h| {
                h.raw.index.insert((4_000, "prune".into()));
            }),
            ("half of job", |h| h.rows(&work("pay")).row = None),
            ("half of job", |h| h.rows(&work("pay")).record = None),
            ("is of no kind", |h| h.raw.kinds.clear()),
            ("that nobody registered", |h| h.raw.kinds.values_mut().for_each(|k| k.push('x'))),
            ("does not count its effects right", |h| h.rows(&work("pay")).effects.clear()),
            ("does not count its memory right", |h| drop(h.rows(&work("pay")).memos.pop())),
            ("does not count its memory right", |h| drop(h.rows(&work("bad")).journal.pop())),
            ("what is known of", |h| h.rows(&work("pay")).intent = None),
            ("what is known of", |h| {
                let other = h.whole.jobs[&work("bad")].id;
                h.rows(&work("pay")).intent = Some(other);
            }),
            ("two jobs for one key", |h| {
                let key = h.rows(&note("n1")).row.as_ref().unwrap().key.clone();
                h.rows(&note("n2")).row.as_mut().unwrap().key = key;
            }),
            ("jobs are stored", |h| h.raw.counted.0 += 1),
            ("memories are stored", |h| h.raw.counted.1 += 1),
            ("memories are stored", |h| h.raw.tombs.clear()),
            ("these in the list: []", |h| h.raw.acts.clear()),
            ("in its history: []", |h| {
                let id = h.whole.jobs[&work("pay")].id;
                let entry = h.raw.acts[0].1.clone();
                h.raw.acts.push((Some(id), entry));
            }),
        ],
    );
}

/// What was acknowledged is gone or is something else, and what nobody asked for is there (I1, I2, I18).
#[test]
fn a_lost_or_invented_job_is_rejected() {
    rejected(
        &rich(),
        told,
        &[
            ("and is lost", |h| drop(h.whole.jobs.remove(&note("n1")))),
            ("and is lost", |h| drop(h.whole.jobs.remove(&work("tossed")))),
            ("(\"brief\", \"brief\") was acknowledged", |h| h.whole.remembered.clear()),
            ("was acknowledged as", |h| h.job(&note("n1")).id = JobId::from_number(4_000)),
            ("was seen as Dead and is Some(Ready)", |h| h.record("bad").state = JobState::Ready { ticket: 1 }),
            ("was seen as Discarded and is Some(Done)", |h| {
                h.record("tossed").state = JobState::Ended { how: End::Done, at: Wall(1) };
            }),
            ("was finished and is", |h| h.record("pay").state = JobState::Ready { ticket: 1 }),
            ("decisions about", |h| {
                h.job(&work("tossed")).journal.retain(|e| !matches!(e, Entry::Decision { .. }));
            }),
            ("proposals about", |h| {
                h.job(&work("dear-one")).journal.retain(|e| !matches!(e, Entry::Proposed { .. }));
            }),
            ("nobody asked for", |h| drop(h.facts.asked.remove(&note("n1")))),
            ("nobody asked for", |h| h.job(&work("pay")).row.payload.push(b' ')),
            ("nobody asked for", |h| {
                let mut other = h.whole.jobs[&note("n1")].clone();
                other.id = JobId::from_number(4_000);
                h.whole.jobs.insert(note("phantom"), other);
            }),
            ("has a letter: false", |h| h.job(&work("bad")).letter = None),
            ("has a letter: true", |h| {
                let letter = h.whole.jobs[&work("bad")].letter.clone();
                h.job(&work("pay")).letter = letter;
            }),
        ],
    );
}

/// Half of a commit is there (I5), or a remembered step is not (I16).
#[test]
fn half_of_a_commit_is_rejected() {
    rejected(
        &rich(),
        told,
        &[
            ("nobody asked for (\"note\", \"pay/commit\")", |h| {
                h.whole.rows.remove("pay/commit");
            }),
            ("app row true, follow-up false", |h| {
                h.facts.stored.remove(&note("pay/finish"));
                h.whole.jobs.remove(&note("pay/finish"));
            }),
            ("progress false, app row true", |h| h.job(&work("pay")).memos.retain(|m| m.name != "commit")),
            ("done 1 times, app row Some(2)", |h| {
                h.whole.rows.insert("pay/commit".into(), 2);
            }),
            ("done 1 times, app row Some(2)", |h| {
                h.whole.rows.insert("pay/finish".into(), 2);
            }),
            ("the commit of", |h| {
                h.job(&work("pay")).memos.retain(|m| m.name != "commit");
                h.whole.rows.remove("pay/commit");
                h.whole.jobs.remove(&note("pay/commit"));
                h.whole.messages.remove("pay/commit");
            }),
            ("nobody committed the message lost", |h| {
                h.whole.messages.insert("lost".into());
            }),
            ("follow-up true, message false", |h| {
                h.whole.messages.remove("pay/commit");
            }),
            ("the step of", |h| h.job(&work("pay")).memos.retain(|m| m.name != "step")),
            ("nobody asked for (\"note\", \"outside/a\")", |h| {
                h.whole.rows.remove("outside/a");
            }),
            ("transaction outside/a: app row true, job false", |h| drop(h.whole.jobs.remove(&note("outside/a")))),
            ("transaction outside/a: app row false, job false", |h| {
                h.whole.rows.remove("outside/a");
                h.whole.jobs.remove(&note("outside/a"));
            }),
            ("app row outside/a was counted 2 times", |h| {
                h.whole.rows.insert("outside/a".into(), 2);
            }),
            ("app row nobody's was counted 1 times", |h| {
                h.whole.rows.insert("nobody's".into(), 1);
            }),
        ],
    );
}

/// Claims, attempts and tokens that cannot be (I7, I9), and a pause that was forgotten (I26).
#[test]
fn counts_tokens_and_pauses_that_cannot_be_are_rejected() {
    rejected(
        &rich(),
        told,
        &[
            ("claims, ", |h| h.record("pay").claims += 1),
            ("claims, ", |h| h.record("pay").attempts += 1),
            ("claims, ", |h| h.record("pay").given_back.settled += 1),
            ("7 attempts", |h| {
                h.record("bad").attempts = 7;
                h.record("bad").claims = 7;
            }),
            ("but handlers had", |h| {
                h.record("bad").attempts = 1;
                h.record("bad").claims = 1;
            }),
            ("tokens do not rise", |h| h.facts.began.get_mut(&work("bad")).unwrap().reverse()),
            ("tokens do not rise", |h| {
                let began = h.facts.began.get_mut(&work("bad")).unwrap();
                began[1] = began[0];
            }),
            ("but handlers had", |h| h.record("bad").last_token = Token::first_of(0)),
            ("was handed out twice", |h| {
                let token = h.facts.began[&work("bad")][0];
                h.facts.began.insert(note("n1"), vec![token]);
            }),
            ("would hand out the token", |h| h.epoch = 1),
            ("pause was acknowledged as true, and 0", |h| h.whole.pauses = 0),
            ("pause was acknowledged as false, and 1", |h| h.facts.paused = Some(false)),
        ],
    );
}

/// A call without its intent (I10), a confirmation that is gone or another one (I11, I12), another key (I14), an effect that happened
/// twice (I15), a success with an effect that nobody is sure of (I29), a replay that forgot (I19).
#[test]
fn a_broken_record_of_an_effect_is_rejected() {
    rejected(
        &rich(),
        told,
        &[
            ("has no intent", |h| {
                h.job(&work("gone-wire")).effects.clear();
                h.job(&work("gone-wire")).record.effects = 0;
            }),
            ("the record knows 0", |h| h.effect("gone-wire").calls = 0),
            ("was confirmed as", |h| h.job(&work("pay")).effects.clear()),
            ("was confirmed as", |h| h.effect("pay").state = EffectState::Unknown),
            ("was confirmed as", |h| h.effect("pay").result = Some(Stored::Json(b"\"other\"".to_vec()))),
            ("was confirmed as", |h| h.effect("pay").result = None),
            ("two results", |h| {
                let told = Told::Confirmed { job: work("pay"), effect: "charge", result: "charge-pay-2".into() };
                h.facts.add(&told);
            }),
            ("and it never happened", |h| h.call("pay").real = false),
            ("and it never happened", |h| h.forget_call("pay")),
            ("another key than its record's", |h| h.call("pay").key = "k".into()),
            ("happened 2 times", |h| {
                let call = h.call("pay").clone();
                h.effect("pay").calls = 9;
                h.facts.calls.push(call);
            }),
            ("nobody is sure of", |h| {
                h.facts.confirmed.remove(&(work("lost-wire"), "wire"));
                h.effect("lost-wire").state = EffectState::Intended;
            }),
            ("token", |h| {
                h.facts.replayed[0].1.token = u64::MAX;
            }),
            ("a replay made", |h| h.facts.replayed[0].1.effects[0].key = "k".into()),
            ("a replay made", |h| h.facts.replayed[0].1.effects[0].reference = Some("other".into())),
            ("a replay forgot", |h| h.facts.replayed[0].1.memos.push("draw".into())),
        ],
    );
}

/// At the end something still waits by itself or without a question (I28), a success did not do its work, a confirmed effect was
/// asked for again (I11), or what was paused ran (I26).
#[test]
fn an_end_that_is_none_is_rejected() {
    let mut good = rich();
    good.whole.jobs.retain(|_, found| State::from(&found.record.state).is_settled());
    let end = |h: &History| {
        never_again(&h.past, &h.facts)?;
        rested(&h.past, &h.facts)?;
        ended(&h.whole, &h.facts)
    };
    rejected(
        &good,
        end,
        &[
            ("is still", |h| h.record("bad").state = JobState::Ready { ticket: 1 }),
            ("is still", |h| h.record("bad").state = JobState::Compensating { left: 0 }),
            ("waits without a question", |h| {
                h.job(&work("bad")).letter.as_mut().unwrap().questions.clear();
            }),
            ("charge never happened", |h| {
                h.past.confirmed.clear();
                h.forget_call("pay");
            }),
            ("was called again", |h| {
                let call = h.call("pay").clone();
                h.facts.calls.push(call);
            }),
            ("a paused kind was run", |h| drop(h.facts.began.insert(note("kept"), vec![9]))),
        ],
    );
}

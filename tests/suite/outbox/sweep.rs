//! The outbox in the crash sweep: scripts on a disk that records every operation; the power is cut, or the process killed, at every
//! single one of them; then the queue is opened again and runs to its end. What callers had been told and what the other side has
//! seen, over both lives, is compared with the file: I17 of the design, and app rows beside their messages. What a killed process was
//! handing over goes out alone in the next one.

use super::super::ground::{PATIENCE, kind};
use super::super::oracle::{Post, Posted, i17};
use super::broker::steps;
use super::{Order, ROWS};
use onceward::clock::ManualClock;
use onceward::model::outbox::Standing;
use onceward::model::time::Wall;
use onceward::redb::ReadableTable;
use onceward::rules::outbox::tag;
use onceward::store::disk::{CrashPoint, crash_points};
use onceward::store::{Place, Store, StoreOptions};
use onceward::testkit::{SimDisk, run_until_idle};
use onceward::{
    Cx, Error, Fail, JobId, Jobs, Message, OnStuck, OutboxMessage, Outcome, Outgoing, Publisher, State, Topic, Tx,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

kind!(Note = "note");

const START: u64 = 1_767_225_600_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// What somebody outside of the process knows.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    /// A transaction with these messages is about to be asked for.
    Asks(&'static [&'static str]),
    /// It was acknowledged.
    Committed(&'static [&'static str]),
    /// The other side has this message.
    Arrived(Message),
    /// A person threw this one away, and was told that it is done.
    Discarded(&'static str),
    /// A person is about to.
    Discards(&'static str),
    /// A person is about to put this one on its way again: it will be taken from now on. Then that it is done.
    Retries(&'static str),
    Retried(&'static str),
    /// A person is about to have this one sent again, and was told that it will be.
    Resends(&'static str),
    Resent(&'static str),
    /// Somebody is about to enqueue a job that owes messages, and was told that it is stored.
    Orders(String),
    Ordered(String),
    /// The handler was told that its transaction with this message is committed.
    Handed(String),
    /// The clock went on, in ms.
    Time(u64),
}

/// The outside world of one or two lives.
#[derive(Clone)]
struct World {
    told: Arc<Mutex<Vec<Told>>>,
    tries: Arc<Mutex<BTreeMap<String, usize>>>,
    /// What was handed over together, in this life.
    batches: Arc<Mutex<Vec<Vec<String>>>>,
    disk: Option<SimDisk>,
}

impl World {
    fn new(past: &[Told], disk: Option<SimDisk>) -> Self {
        Self { told: Arc::new(Mutex::new(past.to_vec())), tries: Arc::default(), batches: Arc::default(), disk }
    }
    fn tell(&self, told: Told) {
        let mut all = self.told.lock().unwrap();
        all.push(told);
        if let Some(disk) = &self.disk {
            disk.mark(all.len() as u64 - 1);
        }
    }
    fn all(&self) -> Vec<Told> {
        self.told.lock().unwrap().clone()
    }
    /// Refuses `bad..` for good, `fix..` until a person retries it, and everything with `slow` in its id the first time of every life.
    fn take(&self, m: &Message) -> Outcome {
        let n = *self.tries.lock().unwrap().entry(m.id.clone()).and_modify(|n| *n += 1).or_insert(1);
        let mended = || self.all().iter().any(|t| matches!(t, Told::Retries(id) if *id == m.id));
        if m.id.starts_with("bad") || m.id.starts_with("fix") && !mended() {
            return Err(Fail::permanent("no"));
        }
        if m.id.contains("slow") && n == 1 {
            return Err(Fail::transient("not yet"));
        }
        self.tell(Told::Arrived(m.clone()));
        Ok(())
    }
}

impl Publisher for World {
    fn publish(&self, message: &Message) -> Outcome {
        self.take(message)
    }
    fn publish_all(&self, messages: &[Message]) -> Vec<Outcome> {
        self.batches.lock().unwrap().push(messages.iter().map(|m| m.id.clone()).collect());
        let mut told: Vec<Outcome> = Vec::new();
        for message in messages {
            told.push(self.publish(message));
            if told.last().is_some_and(Result::is_err) {
                break;
            }
        }
        told
    }
}

/// The messages that an order owes: one of its commit, one of its end.
fn owed(order: &str) -> [String; 2] {
    ["paid", "sent"].map(|what| format!("{what}-{order}"))
}

/// An app row and a message.
fn row_and_message(tx: &mut Tx<'_>, id: &str) -> Result<(), Error> {
    tx.open_table(ROWS)?.insert(id, 1).map_err(|e| Error::App(e.to_string()))?;
    tx.send(Outgoing::new("t", id, &id).key(key_of(id))).map(drop)
}

/// Commits a message with a follow-up job, fails as often as it was asked to, and finishes with another message.
fn carry_out(world: &World, cx: &Cx, job: &Order) -> Outcome {
    let [paid, sent] = owed(&job.key);
    let id = paid.clone();
    cx.commit("paid", move |tx| {
        row_and_message(tx, &id)?;
        tx.enqueue(&Note::new(&id, 0))?;
        Ok(())
    })?;
    world.tell(Told::Handed(paid));
    if u64::from(cx.attempt()) <= job.n {
        return Err(Fail::transient("not yet"));
    }
    let id = sent.clone();
    cx.finish(move |tx| Ok(row_and_message(tx, &id)?))?;
    world.tell(Told::Handed(sent));
    Ok(())
}

/// The process that ran first: its boot and its nonce.
const FIRST: (u8, u64) = (1, 1);

fn start(
    world: &World,
    disk: &SimDisk,
    clock: &ManualClock,
    (boot, nonce): (u8, u64),
    policy: &Topic,
) -> Result<Jobs, Error> {
    Jobs::on_disk(Arc::new(disk.clone()))
        .clock(Arc::new(clock.clone()))
        .process([boot; 16], nonce)
        .seed(7)
        .workers(1)
        .on({
            let world = world.clone();
            move |cx, job: Order| carry_out(&world, cx, &job)
        })
        .on(|_, _: Note| Ok(()))
        .publisher("t", world.clone())
        .topic("t", policy.clone())
        .start()
}

/// The ordering key of a message: what stands behind the slash of its id.
fn key_of(id: &str) -> &str {
    id.split('/').nth(1).unwrap_or("t")
}

struct Caller<'a> {
    jobs: &'a Jobs,
    world: &'a World,
    clock: &'a ManualClock,
}

impl Caller<'_> {
    fn send(&self, ids: &'static [&'static str]) {
        self.world.tell(Told::Asks(ids));
        let sent = self.jobs.transact(move |tx| ids.iter().try_for_each(|id| row_and_message(tx, id)));
        sent.unwrap();
        self.world.tell(Told::Committed(ids));
    }
    fn abort(&self, ids: &'static [&'static str]) {
        let failed = self.jobs.transact(move |tx| {
            for id in ids {
                tx.outbox("t", *id, id)?;
            }
            Err::<(), _>(Error::App("on purpose".into()))
        });
        assert!(failed.is_err());
    }
    fn idle(&self) {
        run_until_idle(self.jobs).unwrap();
    }
    fn pass(&self, d: Duration) {
        // A call that is under way would look like one that hangs.
        self.idle();
        self.clock.advance(d);
        self.world.tell(Told::Time(u64::try_from(d.as_millis()).unwrap()));
        self.idle();
    }
    fn discard(&self, id: &'static str) {
        self.world.tell(Told::Discards(id));
        self.jobs.outbox().discard("t", id, "ana", "it is bad").unwrap();
        self.world.tell(Told::Discarded(id));
        self.idle();
    }
    fn retry(&self, id: &'static str) {
        self.world.tell(Told::Retries(id));
        self.jobs.outbox().retry("t", id, "ana", "they take it now").unwrap();
        self.world.tell(Told::Retried(id));
        self.idle();
    }
    fn resend(&self, id: &'static str) {
        self.world.tell(Told::Resends(id));
        self.jobs.outbox().resend("t", id, "ana", "they lost it").unwrap();
        self.world.tell(Told::Resent(id));
        self.idle();
    }
    fn order(&self, key: &str, fails: u64) {
        self.world.tell(Told::Orders(key.to_owned()));
        self.jobs.enqueue(&Order::new(key, fails)).unwrap();
        self.world.tell(Told::Ordered(key.to_owned()));
        self.idle();
    }
}

struct Script {
    name: &'static str,
    policy: OnStuck,
    run: fn(&Caller<'_>),
}

/// A message is refused, others come behind it; one of these is sent again, the first is put on its way, and both are sent again.
fn helped(c: &Caller<'_>) {
    c.send(&["fix1/a"]);
    c.idle();
    c.send(&["m2/a", "m3/b"]);
    c.idle();
    c.resend("m3/b");
    c.retry("fix1/a");
    c.send(&["m4/a"]);
    c.idle();
    c.resend("fix1/a");
    c.resend("m3/b");
}

const SCRIPTS: [Script; 7] = [
    Script {
        name: "commits, an abort, deliveries",
        policy: OnStuck::Block,
        run: |c| {
            c.send(&["m1/a", "m2/b"]);
            c.abort(&["never/a"]);
            c.send(&["m3/a", "m4/a", "m5/c"]);
            c.idle();
            c.send(&["m6/b"]);
            c.idle();
        },
    },
    Script {
        name: "failures and order",
        policy: OnStuck::Block,
        run: |c| {
            c.send(&["slow1/a", "m2/a", "m3/b"]);
            c.send(&["slow4/b", "m5/a"]);
            c.idle();
            c.pass(HOUR);
            c.send(&["m6/a", "m7/b"]);
            c.idle();
        },
    },
    Script {
        name: "stuck, then discarded",
        policy: OnStuck::Block,
        run: |c| {
            c.send(&["bad1/a"]);
            c.idle();
            c.send(&["m2/a", "m3/b"]);
            c.idle();
            c.discard("bad1/a");
            c.send(&["m4/a"]);
            c.idle();
        },
    },
    Script {
        name: "put aside, then pruned",
        policy: OnStuck::DeadLetter,
        run: |c| {
            c.send(&["bad1/a", "m2/a"]);
            c.idle();
            c.send(&["m3/a"]);
            c.idle();
            // Trust in the clock takes a day, the memory of what was delivered two.
            c.pass(25 * HOUR);
            c.pass(25 * HOUR);
            c.send(&["m4/a"]);
            c.pass(2 * HOUR);
        },
    },
    Script { name: "retried in its place, and sent again", policy: OnStuck::Block, run: helped },
    Script { name: "put aside and retried, and sent again", policy: OnStuck::DeadLetter, run: helped },
    Script {
        name: "jobs that owe messages",
        policy: OnStuck::Block,
        run: |c| {
            c.order("one/a", 0);
            c.send(&["m1/a"]);
            c.order("two/a", 1);
            c.pass(HOUR);
        },
    },
];

fn policy(script: &Script) -> Topic {
    use onceward::Keep;
    steps().on_stuck(script.policy).keep(Keep::For(HOUR)).remember(Keep::For(100 * 24 * HOUR)).batch(2)
}

/// What outsiders know, in the oracle's words: everything but the file's own part.
fn known(told: &[Told]) -> Post {
    let mut post = Post::default();
    let owned = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
    for t in told {
        match t {
            Told::Asks(ids) => post.asked.extend(owned(ids)),
            Told::Committed(ids) => post.committed.extend(owned(ids)),
            Told::Orders(key) => post.asked.extend(owed(key)),
            // Whoever was told that the job is stored may rely on what it owes.
            Told::Ordered(key) => post.committed.extend(owed(key)),
            Told::Handed(id) => drop(post.committed.insert(id.clone())),
            Told::Arrived(m) => post.arrived.push((m.id.clone(), format!("{m:?}"))),
            Told::Discards(id) | Told::Discarded(id) => drop(post.discards.insert((*id).to_owned())),
            Told::Retries(_) | Told::Retried(_) | Told::Resends(_) | Told::Resent(_) | Told::Time(_) => {}
        }
    }
    post
}

/// Nobody has been told that something was done about this one.
fn may_be_stuck(id: &str, told: &[Told]) -> bool {
    let done = told.iter().any(|t| matches!(t, Told::Discarded(of) | Told::Retried(of) if *of == id));
    (id.starts_with("bad") || id.starts_with("fix")) && !done
}

/// Compares a queue that has come to rest with everything that was told.
fn check(script: &Script, jobs: &Jobs, told: &[Told]) -> Result<(), String> {
    let mut post = known(told);
    let rows = jobs.read(|r| {
        let Ok(table) = r.open_table(ROWS) else { return BTreeSet::new() };
        table.iter().unwrap().map(|row| row.unwrap().0.value().to_owned()).collect::<BTreeSet<String>>()
    });
    let rows = rows.map_err(|e| e.to_string())?;
    let outbox = jobs.outbox();
    let mut messages = Vec::new();
    for id in &post.asked {
        let found = outbox.find("t", id).map_err(|e| e.to_string())?;
        if found.is_some() != rows.contains(id) {
            return Err(format!("{id}: app row {}, message {}", rows.contains(id), found.is_some()));
        }
        messages.extend(found);
    }
    let stuck: Vec<_> = messages
        .iter()
        .filter(|m| m.stuck.is_some() && may_be_stuck(&m.id, told))
        .map(|m| (m.key.as_str(), m.number))
        .collect();
    let holds = |(key, n): &(&str, u64), m: &OutboxMessage| {
        *key == m.key && (*n == m.number || script.policy == OnStuck::Block && *n < m.number)
    };
    for m in &messages {
        let asks = |of: &Told| matches!(of, Told::Resends(id) if *id == m.id);
        let asked = told.iter().filter(|t| asks(t)).count();
        let done = told.iter().filter(|t| matches!(t, Told::Resent(id) if *id == m.id)).count();
        post.posted.push(Posted {
            id: m.id.clone(),
            key: m.key.clone(),
            number: m.number,
            marks: m.marks,
            again: (u32::try_from(done).unwrap(), u32::try_from(asked).unwrap()),
            ended: m.ended.map(|e| e.0),
            may_wait: stuck.iter().any(|s| holds(s, m)),
            overtaken: script.policy == OnStuck::DeadLetter && m.id.starts_with("fix"),
        });
    }
    post.last = outbox.topics().map_err(|e| e.to_string())?.first().map_or(0, |t| t.last_number);
    i17(&post)?;
    let has = |id: &str| messages.iter().any(|m| m.id == id);
    told.iter().filter_map(|t| if let Told::Orders(key) = t { Some(key) } else { None }).try_for_each(|key| {
        let [paid, sent] = owed(key);
        let end = |id: Result<Option<JobId>, Error>| match id.map_err(|e| e.to_string())? {
            Some(id) => jobs.state(id).map(Some).map_err(|e| e.to_string()),
            None => Ok(None),
        };
        let order = end(jobs.find::<Order>(&key.as_str().into()))?;
        let note = end(jobs.find::<Note>(&paid.as_str().into()))?;
        // At rest all of it is done, or none of it was ever stored.
        let expected = order.map(|_| State::Done);
        if (order, note, has(&paid), has(&sent)) != (expected, expected, order.is_some(), order.is_some()) {
            let messages = (has(&paid), has(&sent));
            return Err(format!("order {key} is {order:?}, its follow-up {note:?}, its messages {messages:?}"));
        }
        Ok(())
    })
}

/// What the dead process was handing over, by id, and whether it was at nothing else.
fn suspects(disk: &SimDisk) -> Result<BTreeMap<String, bool>, String> {
    let place = Place::Disk(Arc::new(disk.fork()));
    let (store, opened) = Store::open(StoreOptions::new(place, Arc::new(ManualClock::at(Wall(START)))))
        .map_err(|e| format!("it does not open: {e}"))?;
    let alone = opened.slots.len() == 1;
    let found = store.read(|v| {
        let mut found = BTreeMap::new();
        for slot in opened.slots.iter().filter(|s| s.job == tag("t")) {
            let Some(message) = v.message("t", slot.token.number())?.map(|row| row.message) else { continue };
            let delivery = v.delivery("t", &message.key, slot.token.number())?;
            if delivery.is_some_and(|d| matches!(d.standing, Standing::Waiting { .. })) {
                found.insert(message.id, alone);
            }
        }
        Ok(found)
    });
    let found = found.map_err(|e| e.to_string())?;
    store.close().map_err(|e| e.to_string())?;
    Ok(found)
}

/// Each of them goes out alone at first; a death with nothing else at work is a failed try, any other is none.
fn alone(jobs: &Jobs, suspects: &BTreeMap<String, bool>, batches: &[Vec<String>]) -> Result<(), String> {
    for (id, alone) in suspects {
        if batches.iter().find(|b| b.contains(id)).is_none_or(|b| b.len() != 1) {
            return Err(format!("a process died with {id} in its hands, and it went out like this: {batches:?}"));
        }
        let found = jobs.outbox().find("t", id).map_err(|e| e.to_string())?;
        let failures = found.filter(|f| f.stuck.is_some()).map(|f| f.failures);
        if failures.is_some_and(|n| n != 1 + u32::from(*alone)) {
            return Err(format!("{id}, which was refused once, has {failures:?} failures; alone: {alone}"));
        }
    }
    Ok(())
}

/// Opens what a crash left and lets it run to its end.
fn drive(
    script: &Script,
    point: &CrashPoint<'_>,
    kill: bool,
    told: &[Told],
    counts: &mut Counts,
) -> Result<Vec<Told>, String> {
    let disk = match (point.exists, kill) {
        (false, _) => SimDisk::new(),
        (true, true) => SimDisk::from_image(point.image(0), point.sidecar.to_vec()),
        (true, false) => SimDisk::from_image(point.image(point.index as u64), point.sidecar.to_vec()),
    };
    let passed: u64 = told.iter().map(|t| if let Told::Time(ms) = t { *ms } else { 0 }).sum();
    let clock = ManualClock::at(Wall(START + passed));
    let world = World::new(told, None);
    // Nobody is suspected for what another boot died with.
    let suspects = if kill && point.exists { suspects(&disk)? } else { BTreeMap::new() };
    counts.suspects += suspects.len();
    counts.alone += suspects.values().filter(|alone| **alone).count();
    let (boot, nonce) = FIRST;
    let process = (if kill { boot } else { boot + 1 }, nonce + 1);
    let jobs = start(&world, &disk, &clock, process, &policy(script)).map_err(|e| format!("it does not start: {e}"))?;
    let drive = || {
        run_until_idle(&jobs).map_err(|e| e.to_string())?;
        for _ in 0..3 {
            clock.advance(HOUR);
            run_until_idle(&jobs).map_err(|e| e.to_string())?;
        }
        alone(&jobs, &suspects, &world.batches.lock().unwrap())?;
        check(script, &jobs, &world.all())
    };
    let checked = drive();
    jobs.shutdown(PATIENCE).map_err(|e| format!("it does not shut down: {e}"))?;
    checked.map(|()| world.all())
}

#[derive(Default)]
struct Counts {
    /// Messages that a killed process had in its hands, and how many of them alone.
    suspects: usize,
    alone: usize,
}

/// Messages are committed, by callers and by jobs, delivered, refused, retried, discarded, sent again, pruned, and the machine dies at any single moment of it: what was
/// acknowledged goes out, what was aborted never does, each is marked once for every time it was sent, first deliveries keep their order, a repeated one is the
/// same message, and the numbers have no gap.
#[test]
fn a_crash_at_any_operation_of_the_outbox_loses_nothing_and_invents_nothing() {
    let (mut points, mut lives, operations) = (0_u64, 0_u64, AtomicU64::new(0));
    let (mut repeated, mut counts) = (0_usize, Counts::default());
    for script in &SCRIPTS {
        let disk = SimDisk::new();
        disk.record();
        let world = World::new(&[], Some(disk.clone()));
        let clock = ManualClock::at(Wall(START));
        let jobs = start(&world, &disk, &clock, FIRST, &policy(script)).unwrap();
        (script.run)(&Caller { jobs: &jobs, world: &world, clock: &clock });
        check(script, &jobs, &world.all()).unwrap();
        jobs.shutdown(PATIENCE).unwrap();
        let (log, told) = (disk.log(), world.all());
        operations.fetch_add(log.len() as u64, Ordering::Relaxed);
        crash_points(&[], &[], &log, |point| {
            points += 1;
            let known = &told[..point.mark.map_or(0, |n| usize::try_from(n).unwrap() + 1)];
            for kill in [true, false] {
                lives += 1;
                match drive(script, point, kill, known, &mut counts) {
                    Ok(all) => {
                        let arrived: Vec<_> = all.iter().filter(|t| matches!(t, Told::Arrived(_))).collect();
                        repeated += arrived.iter().enumerate().filter(|(n, t)| arrived[..*n].contains(t)).count();
                    }
                    Err(why) => panic!("{}, crash after {} operations, kill {kill}: {why}", script.name, point.index),
                }
            }
        });
    }
    let operations = operations.into_inner();
    println!(
        "outbox sweep: {} scripts, {operations} operations, {points} crash points, {lives} lives driven to the end, {repeated} deliveries repeated, {} suspects, {} of them alone",
        SCRIPTS.len(),
        counts.suspects,
        counts.alone
    );
    assert_eq!((points, lives), (operations, 2 * operations));
    assert!(points > 100 && repeated > 0, "nothing was repeated: no crash fell between a delivery and its mark");
    assert!(
        counts.alone > 0 && counts.suspects > counts.alone,
        "no process was killed with a message, or with two, in its hands"
    );
}

//! The outbox in the crash sweep: scripts on a disk that records every operation; the power is cut, or the process killed, at every
//! single one of them; then the queue is opened again and runs to its end. What callers had been told and what the other side has
//! seen, over both lives, is compared with the file: I17 of the design, and app rows beside their messages. What a killed process was
//! handing over goes out alone in the next one.

use super::super::ground::PATIENCE;
use super::super::oracle::{Post, Posted, i17};
use super::ROWS;
use super::broker::steps;
use onceward::clock::ManualClock;
use onceward::model::outbox::Standing;
use onceward::model::time::Wall;
use onceward::redb::ReadableTable;
use onceward::rules::outbox::tag;
use onceward::store::disk::{CrashPoint, crash_points};
use onceward::store::{Place, Store, StoreOptions};
use onceward::testkit::{SimDisk, run_until_idle};
use onceward::{Error, Fail, Jobs, Message, OnStuck, Outcome, Outgoing, Publisher, Topic};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

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
    /// Refuses `bad..` for good, and everything with `slow` in its id the first time of every life.
    fn take(&self, m: &Message) -> Outcome {
        let n = *self.tries.lock().unwrap().entry(m.id.clone()).and_modify(|n| *n += 1).or_insert(1);
        if m.id.starts_with("bad") {
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
        let sent = self.jobs.transact(move |tx| {
            for id in ids {
                tx.open_table(ROWS)?.insert(*id, 1).map_err(|e| Error::App(e.to_string()))?;
                tx.send(Outgoing::new("t", *id, id).key(key_of(id)))?;
            }
            Ok::<_, Error>(())
        });
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
}

struct Script {
    name: &'static str,
    policy: OnStuck,
    run: fn(&Caller<'_>),
}

const SCRIPTS: [Script; 4] = [
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
];

fn policy(script: &Script) -> Topic {
    use onceward::Keep;
    steps().on_stuck(script.policy).keep(Keep::For(HOUR)).remember(Keep::For(100 * 24 * HOUR)).batch(2)
}

/// Compares a queue that has come to rest with everything that was told.
fn check(script: &Script, jobs: &Jobs, told: &[Told]) -> Result<(), String> {
    let mut post = Post::default();
    for t in told {
        match t {
            Told::Asks(ids) => post.asked.extend(ids.iter().map(|id| (*id).to_owned())),
            Told::Committed(ids) => post.committed.extend(ids.iter().map(|id| (*id).to_owned())),
            Told::Arrived(m) => post.arrived.push((m.id.clone(), format!("{m:?}"))),
            Told::Discards(id) | Told::Discarded(id) => {
                post.discards.insert((*id).to_owned());
            }
            Told::Time(_) => {}
        }
    }
    let rows = jobs.read(|r| {
        let Ok(table) = r.open_table(ROWS) else { return BTreeSet::new() };
        table.iter().unwrap().map(|row| row.unwrap().0.value().to_owned()).collect::<BTreeSet<String>>()
    });
    let rows = rows.map_err(|e| e.to_string())?;
    let outbox = jobs.outbox();
    for id in &post.asked {
        let found = outbox.find("t", id).map_err(|e| e.to_string())?;
        if found.is_some() != rows.contains(id) {
            return Err(format!("{id}: app row {}, message {}", rows.contains(id), found.is_some()));
        }
        let Some(found) = found else { continue };
        let stuck = found.stuck.is_some() && id.starts_with("bad");
        post.posted.push(Posted {
            id: id.clone(),
            key: key_of(id).to_owned(),
            number: found.number,
            marks: found.marks,
            ended: found.ended.map(|e| e.0),
            may_wait: stuck || (script.policy == OnStuck::Block && blocked(id)),
        });
    }
    post.last = outbox.topics().map_err(|e| e.to_string())?.first().map_or(0, |t| t.last_number);
    i17(&post)
}

/// Stands behind `bad1/a`, while nobody has decided about that one.
fn blocked(id: &str) -> bool {
    key_of(id) == "a"
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

/// Messages are committed, delivered, refused, discarded, pruned, and the machine dies at any single moment of it: what was
/// acknowledged goes out, what was aborted never does, each is marked once, first deliveries keep their order, a repeated one is the
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

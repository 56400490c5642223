//! Payloads that today's app does not know or cannot read wait visibly and stop nothing; payloads of other versions and of the
//! compact encoding are read.

use crate::ground::{Ground, HOUR, PATIENCE, is, kind};
use onceward::{Codec, Decision, Error, Fail, Job, JobKey, State, Why};
use serde::{Deserialize, Serialize};

kind!(Plain = "plain");
kind!(Stranger = "stranger");

/// The app is started without the handler of one kind. Its jobs wait and are named in the snapshot, everybody else runs; with
/// the handler back they run, none is lost.
#[test]
fn an_unknown_kind_waits_visibly_and_stops_nothing() {
    let ground = Ground::new();
    let jobs = ground.builder().on(|_, _: Plain| Ok(())).start().unwrap();
    let strangers: Vec<_> = (0..50).map(|n| jobs.enqueue(&Stranger::new(&format!("s{n}"), n)).unwrap().id()).collect();
    let plain: Vec<_> = (0..50).map(|n| jobs.enqueue(&Plain::new(&format!("p{n}"), n)).unwrap().id()).collect();
    ground.settle(&jobs);
    strangers.iter().for_each(|id| is(&jobs, *id, State::Ready));
    plain.iter().for_each(|id| is(&jobs, *id, State::Done));
    let gauges = jobs.snapshot().unwrap().gauges;
    assert!(gauges.unknown_kinds.contains("stranger"), "{:?}", gauges.unknown_kinds);
    assert_eq!(gauges.queue_depth["default"]["ready"], 50);
    // What is done about them while they wait is done.
    jobs.cancel(strangers[0]).unwrap();
    ground.close(jobs);

    let jobs = ground.builder().on(|_, _: Plain| Ok(())).on(|_, _: Stranger| Ok(())).start().unwrap();
    ground.settle(&jobs);
    is(&jobs, strangers[0], State::Cancelled);
    strangers[1..].iter().for_each(|id| is(&jobs, *id, State::Done));
    assert!(jobs.snapshot().unwrap().gauges.unknown_kinds.is_empty());
    println!("unknown kinds: {} jobs waited and ran", strangers.len() - 1);
    ground.close(jobs);
}

/// As the app of today has it.
#[derive(Serialize, Deserialize)]
struct Report {
    key: String,
    pages: u64,
}
impl Job for Report {
    const KIND: &'static str = "report";
    fn key(&self) -> JobKey {
        self.key.as_str().into()
    }
}
/// As a broken build of it has it.
#[derive(Serialize, Deserialize)]
struct Broken {
    key: String,
    pages: Vec<String>,
}
impl Job for Broken {
    const KIND: &'static str = "report";
    fn key(&self) -> JobKey {
        self.key.as_str().into()
    }
}

/// A new build cannot read the payloads that wait. They are put before a person with the reason, the other jobs run, no attempt
/// is spent; the repaired build runs them when told to.
#[test]
fn an_unreadable_payload_waits_for_a_person_and_stops_nothing() {
    let ground = Ground::new();
    let jobs = ground.builder().workers(0).on(|_, _: Report| Ok(())).start().unwrap();
    let reports: Vec<_> =
        (0..5).map(|n| jobs.enqueue(&Report { key: format!("r{n}"), pages: n }).unwrap().id()).collect();
    // Nobody can run them here: nothing is waited for.
    jobs.drain(PATIENCE).unwrap();
    ground.settle(&jobs);
    jobs.shutdown(PATIENCE).unwrap();

    let jobs = ground.builder().workers(1).on(|_, _: Broken| Ok(())).on(|_, _: Plain| Ok(())).start().unwrap();
    let plain = jobs.enqueue(&Plain::new("p", 0)).unwrap().id();
    ground.settle(&jobs);
    is(&jobs, plain, State::Done);
    for id in &reports {
        is(&jobs, *id, State::Dead);
        let letter = jobs.dead_letter(*id).unwrap();
        assert_eq!(letter.why(), Why::Unreadable);
        assert!(letter.error().contains("invalid type"), "{}", letter.error());
    }
    ground.close(jobs);

    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .on(move |_, r: Report| {
            signs.say(format!("{} {}", r.key, r.pages));
            Ok(())
        })
        .start()
        .unwrap();
    ground.pass(&jobs, HOUR);
    assert!(ground.signs.words().is_empty(), "a letter stays until it is decided");
    for letter in jobs.dead_letters().unwrap() {
        jobs.decide(&letter, Decision::try_again().by("ann", "the build is repaired")).unwrap();
    }
    ground.settle(&jobs);
    reports.iter().for_each(|id| is(&jobs, *id, State::Done));
    let recount = ground.close(jobs);
    println!("unreadable: {} payloads, {} attempts", reports.len(), recount.job("r0").attempts);
    assert!((0..5).all(|n| recount.job(&format!("r{n}")).attempts == 1), "reading is no attempt");
}

mod v1 {
    use super::{Deserialize, Job, JobKey, Serialize};
    #[derive(Serialize, Deserialize)]
    pub(super) struct Invoice {
        pub(super) no: u64,
        pub(super) euros: u64,
    }
    impl Job for Invoice {
        const KIND: &'static str = "invoice";
        fn key(&self) -> JobKey {
            format!("inv{}", self.no).into()
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Invoice {
    no: u64,
    cents: u64,
    #[serde(default)]
    note: Option<String>,
}
impl Job for Invoice {
    const KIND: &'static str = "invoice";
    const VERSION: u32 = 2;
    fn key(&self) -> JobKey {
        format!("inv{}", self.no).into()
    }
    fn upgrade(from: u32, payload: serde_json::Value) -> Result<Self, Fail> {
        match (from, payload["no"].as_u64(), payload["euros"].as_u64()) {
            (1, Some(no), Some(euros)) => Ok(Self { no, cents: 100 * euros, note: Some("from version 1".into()) }),
            other => Err(Fail::permanent(format!("no upgrade from {other:?}"))),
        }
    }
}

/// Jobs of the last version wait in the file when the new one is installed: they are read by its upgrade, beside new ones; one
/// that the upgrade refuses waits for a person.
#[test]
fn payloads_of_an_older_version_are_upgraded() {
    #[derive(Serialize, Deserialize)]
    struct Ancient {
        no: u64,
    }
    impl Job for Ancient {
        const KIND: &'static str = "invoice";
        const VERSION: u32 = 0;
        fn key(&self) -> JobKey {
            format!("inv{}", self.no).into()
        }
    }
    let ground = Ground::new();
    let jobs = ground.builder().workers(0).on(|_, _: v1::Invoice| Ok(())).start().unwrap();
    let old = jobs.enqueue(&v1::Invoice { no: 1, euros: 12 }).unwrap().id();
    let ancient = jobs.enqueue(&Ancient { no: 3 }).unwrap().id();
    jobs.shutdown(PATIENCE).unwrap();

    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .workers(1)
        .on(move |_, i: Invoice| {
            signs.say(format!("{} {} {:?}", i.no, i.cents, i.note));
            Ok(())
        })
        .start()
        .unwrap();
    let new = jobs.enqueue(&Invoice { no: 2, cents: 999, note: None }).unwrap().id();
    ground.settle(&jobs);
    is(&jobs, old, State::Done);
    is(&jobs, new, State::Done);
    is(&jobs, ancient, State::Dead);
    assert!(jobs.dead_letter(ancient).unwrap().error().contains("no upgrade from"));
    assert_eq!(ground.signs.words(), ["1 1200 Some(\"from version 1\")", "2 999 None"]);
    ground.close(jobs);
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Packed {
    id: u64,
    name: String,
    parts: Vec<(u8, Option<i64>)>,
    blob: Vec<u8>,
}
impl Job for Packed {
    const KIND: &'static str = "packed";
    const CODEC: Codec = Codec::Bincode;
    const VERSION: u32 = 2;
    fn key(&self) -> JobKey {
        format!("p{}", self.id).into()
    }
    fn upgrade_bytes(from: u32, payload: &[u8]) -> Result<Self, Fail> {
        Ok(Self { id: 0, name: format!("from version {from}"), parts: Vec::new(), blob: payload.to_vec() })
    }
}
#[derive(Serialize, Deserialize)]
struct PackedV1 {
    id: u64,
}
impl Job for PackedV1 {
    const KIND: &'static str = "packed";
    const CODEC: Codec = Codec::Bincode;
    fn key(&self) -> JobKey {
        format!("p{}", self.id).into()
    }
}

/// Hot kinds are stored in the compact encoding: the same value comes back, duplicates and differences are recognised, and an
/// older version is handed over as bytes.
#[test]
fn the_compact_encoding_carries_payloads_too() {
    let ground = Ground::new();
    let jobs = ground.builder().workers(0).on(|_, _: PackedV1| Ok(())).start().unwrap();
    let old = jobs.enqueue(&PackedV1 { id: 7 }).unwrap().id();
    jobs.shutdown(PATIENCE).unwrap();
    let make = |name: &str| Packed {
        id: 1,
        name: name.into(),
        parts: vec![(0, None), (255, Some(i64::MIN))],
        blob: (0..=255).cycle().take(100_000).collect(),
    };
    let signs = ground.signs.clone();
    let jobs = ground
        .builder()
        .workers(1)
        .on(move |cx, p: Packed| {
            signs.say(format!("{} {} {}", p.name, p.parts.len(), p.blob.len()));
            cx.output(&p)
        })
        .start()
        .unwrap();
    let new = jobs.enqueue(&make("new")).unwrap();
    assert!(new.is_new());
    let same = jobs.enqueue(&make("new")).unwrap();
    assert!(matches!(same, onceward::Enqueued::Existing { differs: false, .. }), "{same:?}");
    let other = jobs.enqueue(&make("other")).unwrap();
    assert!(matches!(other, onceward::Enqueued::Existing { differs: true, .. }), "{other:?}");
    ground.settle(&jobs);
    is(&jobs, old, State::Done);
    assert_eq!(jobs.output::<Packed>(new.id()).unwrap(), Some(make("new")));
    assert_eq!(ground.signs.words(), ["from version 1 0 1", "new 2 100000"]);
    let too_big = jobs.enqueue(&Packed { id: 2, blob: vec![1; 1 << 20], ..make("big") }).unwrap_err();
    assert!(matches!(too_big, Error::TooBig { what: "payload", .. }));
    ground.close(jobs);
}

/// As large as a payload may be.
#[derive(Serialize, Deserialize)]
struct Large {
    n: u64,
    blob: String,
}
impl Job for Large {
    const KIND: &'static str = "large";
    fn key(&self) -> JobKey {
        self.n.to_string().into()
    }
}

/// Most of the places are taken by slow jobs with large payloads: those that are at work are no reason to give the others nothing ahead.
#[test]
fn large_jobs_at_work_hold_up_no_others() {
    let ground = Ground::new();
    let signs = ground.signs.clone();
    let builder = ground.builder().workers(12).on(|_, _: Plain| Ok(()));
    let slow = move |_: &onceward::Cx, _: Large| {
        signs.wait("slow");
        Ok(())
    };
    let jobs = builder.on(slow).start().unwrap();
    let small = |from: u64, n: u64| {
        let some: Vec<_> = (from..from + n).map(|n| Plain::new(&n.to_string(), n)).collect();
        let all = jobs.enqueue_many(&some).unwrap();
        move |jobs: &onceward::Jobs| all.iter().all(|e| jobs.state(e.id()).unwrap() == State::Done)
    };
    // From these it is known that handlers are fast.
    let done = small(0, 200);
    while !done(&jobs) {}
    let large: Vec<_> = (0..9).map(|n| Large { n, blob: "x".repeat(1_000_000) }).collect();
    for job in &large {
        assert!(jobs.enqueue(job).unwrap().is_new());
    }
    ground.signs.until("slow", 9);
    let done = small(200, 2_000);
    let mut most = 0;
    while !done(&jobs) {
        most = most.max(jobs.snapshot().unwrap().gauges.queue_depth["default"]["running"]);
    }
    println!("beside 9 large jobs at work up to {} others were claimed at a time", most - 9);
    assert!(most > 12, "no more than the places: {most}");
    ground.signs.open("slow");
    ground.close(jobs);
}

/// Handlers that are faster than a commit are given work ahead, but not so much that its payloads fill the memory: of jobs of nearly a
/// MiB each about as many are claimed at a time as come to 8 MiB.
#[test]
fn large_jobs_are_not_claimed_ahead_without_bound() {
    const JOBS: u64 = 48;
    let ground = Ground::new();
    let jobs = ground.builder().on(|_, _: Plain| Ok(())).on(|_, _: Large| Ok(())).start().unwrap();
    // From these it is known that handlers are fast.
    let small: Vec<_> = (0..200).map(|n| Plain::new(&format!("p{n}"), n)).collect();
    jobs.enqueue_many(&small).unwrap();
    ground.settle(&jobs);
    jobs.pause(onceward::Scope::kind("large"), "not yet").unwrap();
    for n in 0..JOBS {
        jobs.enqueue(&Large { n, blob: "x".repeat(1_000_000) }).unwrap();
    }
    jobs.resume(onceward::Scope::kind("large")).unwrap();
    let (mut most, mut left) = (0, JOBS);
    while left > 0 {
        let depth = jobs.snapshot().unwrap().gauges.queue_depth;
        let count = |word| depth["default"].get(word).copied().unwrap_or(0);
        most = most.max(count("running"));
        left = count("ready") + count("running");
    }
    println!("large jobs: {JOBS}, at most {most} claimed at a time");
    assert!(most <= 9 + 2, "{most} were claimed at a time");
    ground.close(jobs);
}

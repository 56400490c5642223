//! What the crash suites play: each script is a short life of an app, with the people who decide in it.

use super::crash_world::{Brief, Caller, Do, Name, Note, START, Told, Work, effect_id};
use onceward::{Decision, Job};
use std::time::Duration;

pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Caller<'_>),
}

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn name<J: Job>(key: &str) -> Name {
    (J::KIND, key.to_owned())
}

pub(crate) const SCRIPTS: [Script; 17] = [
    Script {
        name: "create, enqueue, run later",
        run: |c| {
            let _told = c.enqueue(&Work::new("one", &[]));
            let _told = c.after(secs(30), &Note { key: "later".into() });
            c.idle();
            c.pass(secs(30));
        },
    },
    Script {
        name: "enqueue_many and duplicates",
        run: |c| {
            let notes: Vec<Note> = (0..6).map(|n| Note { key: format!("n{}", n % 4) }).collect();
            let _told = c.enqueue_many(&notes);
            let _told = c.enqueue(&Note { key: "n1".into() });
            let _told = c.enqueue(&Work::new("w", &[Do::Step]));
            let _differs = c.enqueue(&Work::new("w", &[Do::Charge]));
            c.idle();
            let _told = c.enqueue_many(&notes);
        },
    },
    Script {
        name: "many intents, in runs that are merged",
        run: |c| {
            for n in 0..10 {
                let _told = c.enqueue(&Note { key: format!("a{n}") });
            }
            let notes: Vec<Note> = (0..5).map(|n| Note { key: format!("b{n}") }).collect();
            let _told = c.enqueue_many(&notes);
            let _told = c.enqueue(&Note { key: "a0".into() });
            for n in 0..6 {
                let _told = c.enqueue(&Note { key: format!("c{n}") });
                c.idle();
            }
            let _told = c.enqueue_many(&notes);
        },
    },
    Script {
        name: "commit, finish and transact with follow-ups",
        run: |c| {
            c.transact("a");
            let _told = c.enqueue(&Work::new("joint", &[Do::Step, Do::Commit, Do::Finish]));
            c.idle();
            c.transact("b");
            // Fails between its commit and its finish: what was committed is not committed again.
            let _told = c.enqueue(&Work::new("twice", &[Do::Commit, Do::Fail(1), Do::Finish]));
            c.idle();
            c.pass(secs(10));
        },
    },
    Script {
        name: "effects",
        run: |c| {
            let _told = c.enqueue(&Work::new("pay", &[Do::Charge, Do::Finish]));
            let _told = c.enqueue(&Work::new("refused-pay", &[Do::Charge, Do::Reserve]));
            let _told = c.enqueue(&Work::new("unsent-pay", &[Do::Reserve, Do::Wire]));
            c.idle();
            c.pass(secs(10));
        },
    },
    Script {
        name: "same key after an unknown",
        run: |c| {
            let _told = c.enqueue(&Work::new("lost-pay", &[Do::Charge, Do::Commit]));
            let _told = c.enqueue(&Work::new("gone-pay", &[Do::Charge]));
            c.idle();
            c.pass(secs(10));
        },
    },
    Script {
        name: "unknown, then probe",
        run: |c| {
            let _told = c.enqueue(&Work::new("lost-item", &[Do::Reserve, Do::Finish]));
            let _told = c.enqueue(&Work::new("gone-item", &[Do::Reserve]));
            c.idle();
            c.pass(secs(60));
            c.pass(secs(10));
        },
    },
    Script {
        name: "late proof",
        run: |c| {
            c.world.gate.shut();
            let _told = c.enqueue(&Work::new("late-item", &[Do::Reserve, Do::Commit]));
            c.world.gate.wait_for(1);
            // No sign of progress for longer than the stall timeout: fenced, and then the answer comes.
            c.world.tell(Told::Time(START + 61_000));
            c.process.clock.advance(secs(61));
            let _settled = onceward::testkit::run_until_idle(c.jobs);
            c.world.gate.open();
            c.idle();
            c.pass(secs(60));
            c.pass(secs(10));
        },
    },
    Script {
        name: "retry to dead",
        run: |c| {
            let told = c.enqueue(&Work::new("bad", &[Do::Step, Do::Charge, Do::Fail(99)]));
            c.idle();
            c.pass(secs(10));
            c.pass(secs(20));
            if let Some(told) = told {
                c.look(name::<Work>("bad"), told.id());
            }
        },
    },
    Script {
        name: "replay",
        run: |c| {
            let told = c.enqueue(&Work::new("bad", &[Do::Charge, Do::Fail(3), Do::Finish]));
            let never = c.enqueue(&Work::new("never", &[Do::Never]));
            c.idle();
            c.pass(secs(10));
            c.pass(secs(20));
            if let (Some(told), Some(never)) = (told, never) {
                c.look(name::<Work>("bad"), told.id());
                c.decide(name::<Work>("bad"), told.id(), Decision::try_again());
                c.decide(name::<Work>("never"), never.id(), Decision::discard());
                c.idle();
                c.look(name::<Work>("bad"), told.id());
                c.look(name::<Work>("never"), never.id());
            }
        },
    },
    Script {
        name: "into the trash and back",
        run: |c| {
            let told = c.enqueue(&Work::new("tossed", &[Do::Charge, Do::Step, Do::Fail(3), Do::Finish]));
            c.idle();
            c.pass(secs(10));
            c.pass(secs(20));
            if let Some(told) = told {
                let name = || name::<Work>("tossed");
                c.decide(name(), told.id(), Decision::discard());
                c.look(name(), told.id());
                c.restore(name(), told.id());
                c.look(name(), told.id());
                c.decide(name(), told.id(), Decision::try_again());
                c.idle();
                c.look(name(), told.id());
            }
        },
    },
    Script {
        name: "decide about unknown effects",
        run: |c| {
            let lost = c.enqueue(&Work::new("lost-wire", &[Do::Wire, Do::Commit]));
            let gone = c.enqueue(&Work::new("gone-wire", &[Do::Wire]));
            c.idle();
            if let (Some(lost), Some(gone)) = (lost, gone) {
                c.look(name::<Work>("lost-wire"), lost.id());
                c.look(name::<Work>("gone-wire"), gone.id());
                let wire = effect_id("wire");
                c.decide(name::<Work>("lost-wire"), lost.id(), Decision::happened(&wire, Some("wire-lost-wire-1")));
                c.decide(name::<Work>("gone-wire"), gone.id(), Decision::did_not_happen(&wire));
                c.idle();
                c.look(name::<Work>("lost-wire"), lost.id());
                c.look(name::<Work>("gone-wire"), gone.id());
            }
        },
    },
    Script {
        name: "pause, cancel, resume",
        run: |c| {
            c.pause(true);
            let kept = c.enqueue(&Note { key: "kept".into() });
            let cancelled = c.enqueue(&Note { key: "cancelled".into() });
            c.idle();
            if let (Some(kept), Some(cancelled)) = (kept, cancelled) {
                c.look(name::<Note>("kept"), kept.id());
                c.cancel(name::<Note>("cancelled"), cancelled.id());
                c.look(name::<Note>("cancelled"), cancelled.id());
                c.pause(false);
                c.idle();
                c.look(name::<Note>("kept"), kept.id());
            }
        },
    },
    Script {
        name: "long payloads and retention",
        run: |c| {
            let body: String = "0123456789abcdef".repeat(900);
            let told = c.enqueue(&Brief { key: "brief".into(), body });
            c.idle();
            if let Some(told) = told {
                c.look(name::<Brief>("brief"), told.id());
            }
            c.world.tell(Told::Aged(false));
            c.pass(secs(25 * 3_600));
            c.world.tell(Told::Aged(true));
            c.pass(secs(30 * 3_600));
        },
    },
    Script {
        name: "run again from a step",
        run: |c| {
            let does = [Do::Step, Do::Charge, Do::Commit, Do::Fail(3), Do::Finish];
            let step = c.enqueue(&Work::new("from-step", &does));
            let commit = c.enqueue(&Work::new("from-commit", &does));
            c.idle();
            c.pass(secs(10));
            c.pass(secs(20));
            if let (Some(step), Some(commit)) = (step, commit) {
                c.look(name::<Work>("from-step"), step.id());
                c.again(name::<Work>("from-step"), step.id(), Some("step"));
                c.again(name::<Work>("from-commit"), commit.id(), Some("commit"));
                c.idle();
                c.look(name::<Work>("from-step"), step.id());
                c.look(name::<Work>("from-commit"), commit.id());
            }
        },
    },
    Script {
        name: "run again by filter, in slices",
        run: |c| {
            let does = [Do::Charge, Do::Step, Do::Fail(3), Do::Finish];
            let keys = ["f1", "f2", "f3"];
            let told: Vec<_> =
                keys.iter().filter_map(|k| Some((name::<Work>(k), c.enqueue(&Work::new(k, &does))?.id()))).collect();
            // Nobody knows about this one: it is in no slice.
            let doubt = c.enqueue(&Work::new("gone-doubt", &[Do::Wire]));
            c.idle();
            c.pass(secs(10));
            c.pass(secs(20));
            c.release(&told, 2);
            c.idle();
            for (name, id) in told {
                c.look(name, id);
            }
            if let Some(doubt) = doubt {
                c.look(name::<Work>("gone-doubt"), doubt.id());
            }
        },
    },
    Script {
        name: "two people decide",
        run: |c| {
            let told = c.enqueue(&Work::new("dear-one", &[Do::Charge, Do::Never]));
            let other = c.enqueue(&Work::new("dear-two", &[Do::Charge, Do::Never]));
            c.idle();
            if let (Some(told), Some(other)) = (told, other) {
                let (one, two) = (|| name::<Work>("dear-one"), || name::<Work>("dear-two"));
                c.look(one(), told.id());
                c.decide_as("ana", one(), told.id(), Decision::handled_outside());
                c.look(one(), told.id());
                c.decide_as("ben", one(), told.id(), Decision::handled_outside());
                c.look(one(), told.id());
                // The second person wants something else: that is the proposal now.
                c.decide_as("ana", two(), other.id(), Decision::try_again());
                c.decide_as("ben", two(), other.id(), Decision::discard());
                c.decide_as("ana", two(), other.id(), Decision::discard());
                c.look(two(), other.id());
            }
        },
    },
];

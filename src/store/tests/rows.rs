//! Rows: what is written is read back, indexes move with records, long values and long histories stay small.

use super::*;
use crate::model::effect::{EffectRecord, EffectState, Reach, Risk};
use crate::model::id::{EffectId, IdempotencyKey, Lease, Token};
use crate::model::job::{End, Identity, Memo};
use crate::model::letter::Entry;
use crate::rules::Change;
use redb::{ReadableTable, ReadableTableMetadata};
use std::collections::BTreeMap;
use std::time::Duration;

/// A change as the rules would make it.
fn change(record: &JobRecord, to: JobState) -> Change {
    Change::bare(record, to)
}

/// A change with more to it.
fn with(mut change: Change, more: impl FnOnce(&mut Change)) -> Change {
    more(&mut change);
    change
}

fn put(store: &Store, id: JobId, f: impl Fn(&JobRecord) -> Change + Send + 'static) -> JobRecord {
    ask(store, move |tx| {
        let record = tx.record(id)?.unwrap();
        tx.put(&f(&record))?;
        Ok(tx.record(id)?.unwrap())
    })
}

fn effect(name: &str, part: &str, request: Vec<u8>) -> EffectRecord {
    EffectRecord {
        id: EffectId { name: name.to_owned(), part: part.to_owned() },
        state: EffectState::Intended,
        generation: 0,
        key: IdempotencyKey("00".repeat(32)),
        request,
        version: 1,
        says: "Charge 5 cents".to_owned(),
        look_up: None,
        risk: Risk::Charge,
        undo: None,
        undoing: crate::model::effect::Undoing::No,
        confirmed: 0,
        attempt: 1,
        token: Token(1),
        calls: 1,
        unresolved: vec![1],
        reach: Reach::Never,
        first_call: Wall(1),
        last_call: Wall(1),
        result: None,
        reference: None,
        cannot_tell_since: None,
        error: None,
        conflict: false,
        accept_changed: false,
    }
}

fn running() -> JobState {
    JobState::Running { token: Token(9), continuing: false }
}

/// A job goes through every sort of state: at each step exactly the index row of that state exists.
#[test]
fn index_rows_move_with_the_record() {
    let store = open(&SimDisk::new());
    let id = ask(&store, |tx| enqueue(tx, "a")).unwrap();
    assert_eq!(record(&store, id).state, JobState::Ready { ticket: id.0 }, "a new job's ticket is its number");
    let counts = |d: Depth| (d.ready, d.timers, d.running);
    assert_eq!(counts(check_rows(&store)), (1, 0, 0));
    put(&store, id, |r| change(r, running()));
    assert_eq!(counts(check_rows(&store)), (0, 0, 1));
    assert_eq!(store.read(|r| r.running()).unwrap(), [(id, Token(9))]);
    let delayed = JobState::Delayed { due: Wall(50), delay_ms: 5, why: crate::model::job::Delay::Backoff };
    put(&store, id, move |r| change(r, delayed.clone()));
    assert_eq!(counts(check_rows(&store)), (0, 1, 0));
    assert_eq!(store.read(|r| r.due(Wall(50), 9)).unwrap(), []);
    assert_eq!(store.read(|r| r.due(Wall(51), 9)).unwrap(), [(Wall(50), id)]);
    let back = put(&store, id, |r| change(r, JobState::Ready { ticket: crate::model::job::NEXT_TICKET }));
    assert!(matches!(back.state, JobState::Ready { ticket } if ticket > id.0), "it goes behind those that are ready");
    assert_eq!(counts(check_rows(&store)), (1, 0, 0));
    put(&store, id, |r| change(r, running()));
    put(&store, id, |r| change(r, JobState::Dead));
    assert_eq!(counts(check_rows(&store)), (0, 0, 0));
    let ended = JobState::Ended { how: End::Done, at: Wall(60) };
    put(&store, id, move |r| with(change(r, ended.clone()), |c| c.prune = Some(Wall(1_070))));
    // Rows go at whole seconds, never earlier than they may.
    assert_eq!(store.read(|r| r.prunable(Wall(2_000), 9)).unwrap(), []);
    assert_eq!(store.read(|r| r.prunable(Wall(2_001), 9)).unwrap(), [(Wall(2_000), id)]);
    // Over is over: late news about an ended job says nothing about how long its rows are kept.
    put(&store, id, |r| change(r, r.state.clone()));
    assert_eq!(store.read(|r| r.prunable(Wall(u64::MAX), 9)).unwrap(), [(Wall(2_000), id)]);
}

/// A letter is created, changed, told and answered, and another one follows: somebody has to be told of each, the new one not taken for
/// the old one, and of an answered one nobody.
#[test]
fn a_new_letter_is_noted_until_somebody_was_told() {
    let store = open(&SimDisk::new());
    let id = ask(&store, |tx| enqueue(tx, "a")).unwrap();
    let letter = || crate::model::letter::LetterRecord {
        why: crate::model::letter::Why::Permanent,
        created: Wall(1),
        class: crate::model::attempt::Class::Permanent,
        error: String::new(),
        questions: Vec::new(),
        proposed: None,
    };
    let write = |to: JobState, letter: crate::rules::LetterMove| {
        put(&store, id, move |r| {
            let letter = letter.clone();
            with(change(r, to.clone()), |c| (c.record.revision, c.letter) = (c.record.revision + 1, letter))
        });
    };
    let untold = || store.read(|r| Ok((r.untold(None, 9)?, r.untold_count()?))).unwrap();
    let told = |revision| {
        ask(&store, move |tx| tx.told(id, revision));
    };
    write(JobState::Dead, crate::rules::LetterMove::Put(letter()));
    assert_eq!(untold(), (vec![(id, 1)], 1));
    write(JobState::Dead, crate::rules::LetterMove::Put(letter()));
    assert_eq!(untold(), (vec![(id, 1)], 1), "changed: still the same letter");
    told(1);
    assert_eq!(untold(), (vec![], 0));
    write(JobState::Dead, crate::rules::LetterMove::Put(letter()));
    assert_eq!(untold(), (vec![], 0), "told already");
    write(running(), crate::rules::LetterMove::Remove);
    write(JobState::NeedsDecision, crate::rules::LetterMove::Put(letter()));
    assert_eq!(untold(), (vec![(id, 5)], 1));
    told(1);
    assert_eq!(untold(), (vec![(id, 5)], 1), "another one was told");
    write(running(), crate::rules::LetterMove::Remove);
    assert_eq!(untold(), (vec![], 0), "answered: nobody has to be told");
}

/// What the file should say about a job.
#[derive(Clone)]
struct Kept {
    row: JobRow,
    state: JobState,
    prune: Option<Wall>,
}

/// Hundreds of jobs that share pages go through random states, long reasons among them, several in one round; rounds fail, the
/// store is opened anew. Whatever happens to one, its neighbours stay as they were; at the end nothing of any is left.
#[test]
fn neighbours_in_a_pack_do_not_touch_each_other() {
    let disk = SimDisk::new();
    let mut store = open(&disk);
    let mut rng = fastrand::Rng::with_seed(23);
    let mut model: BTreeMap<JobId, Kept> = BTreeMap::new();
    let (mut moved, mut undone) = (0, 0);
    for round in 0..160 {
        let mut next = model.clone();
        let mut made: Vec<JobRow> = Vec::new();
        let mut puts: Vec<(JobId, JobState, Option<Wall>)> = Vec::new();
        let mut gone = Vec::new();
        if round < 60 {
            for n in 0..rng.usize(..9) {
                let len = if rng.u8(..8) == 0 { 5_000 } else { rng.usize(..300) };
                made.push(row(&format!("{round}/{n}"), vec![rng.u8(..); len]));
            }
        }
        for (id, kept) in &model {
            if rng.u8(..6) > 0 {
                continue;
            }
            if let JobState::Ended { .. } = kept.state {
                gone.push(*id);
                next.remove(id);
                continue;
            }
            let (state, prune) = match rng.u8(if round < 100 { 0..5 } else { 4..5 }) {
                0 => (JobState::Running { token: Token(rng.u64(1..99)), continuing: false }, None),
                1 => {
                    let why = crate::model::job::Delay::Snooze("z".repeat(rng.usize(..400)));
                    (JobState::Delayed { due: Wall(rng.u64(1..9_000)), delay_ms: 5, why }, None)
                }
                2 => (JobState::Dead, None),
                3 => (JobState::Ready { ticket: crate::model::job::NEXT_TICKET }, None),
                _ => (JobState::Ended { how: End::Done, at: Wall(5) }, Some(Wall(rng.u64(1..9_000)))),
            };
            puts.push((*id, state, prune));
        }
        let fails = rng.u8(..10) == 0;
        let (new, old, away) = (made.clone(), puts.clone(), gone.clone());
        let heard = send(&store, Lane::Outcome, move |tx| {
            let mut ids = Vec::new();
            for row in &new {
                let id = tx.next_id();
                tx.insert(row, &admit::create(id, row.kind, 128, Start::Now, &rules(), ManualClock::default().now()))?;
                ids.push(id);
            }
            let mut tickets = Vec::new();
            for (id, state, prune) in &old {
                let record = tx.record(*id)?.unwrap();
                tx.put(&with(change(&record, state.clone()), |c| c.prune = *prune))?;
                tickets.push(tx.record(*id)?.unwrap().state);
            }
            for id in &away {
                tx.prune(*id)?;
                assert!(tx.record(*id)?.is_none() && tx.job(*id)?.is_none());
            }
            if fails { Err(StoreError::Bug("on purpose".to_owned())) } else { Ok((ids, tickets)) }
        });
        match heard.recv().unwrap() {
            Heard::Settled((ids, states)) => {
                for (row, id) in made.into_iter().zip(ids) {
                    next.insert(id, Kept { row, state: JobState::Ready { ticket: id.0 }, prune: None });
                }
                for ((id, _, prune), state) in puts.into_iter().zip(states) {
                    moved += 1;
                    next.entry(id).and_modify(|k| (k.state, k.prune) = (state, prune));
                }
                model = next;
            }
            Heard::Failed(_) if fails => undone += 1,
            Heard::Failed(e) => panic!("{e}"),
            Heard::Unknown => panic!("unknown"),
        }
        if round % 16 == 0 {
            store.close().unwrap();
            store = open(&disk);
        }
        let depth = check_rows(&store);
        assert_eq!(depth.jobs, model.len() as u64);
        let ending = model.values().filter(|k| k.prune.is_some()).count();
        store
            .read(|r| {
                assert_eq!(r.prunable(Wall(u64::MAX), usize::MAX)?.len(), ending);
                assert_eq!(r.ready_count(KindId(1))?, depth.ready);
                for (id, kept) in &model {
                    assert_eq!(r.job(*id)?.as_ref(), Some(&kept.row));
                    assert_eq!(r.record(*id)?.unwrap().state, kept.state, "job {id} in round {round}");
                }
                Ok(())
            })
            .unwrap();
    }
    assert!(moved > 800 && undone > 5, "{moved} moves, {undone} undone rounds");
    assert!(model.is_empty(), "{} are left", model.len());
    let tx = store.inner.shared.begin_read().unwrap().0;
    let rows = Rows::new(&tx, &store.inner.shared.memory);
    assert!(rows.tables.job.read(&tx).unwrap().is_empty().unwrap(), "rows are left");
    assert!(rows.tables.state.read(&tx).unwrap().is_empty().unwrap(), "records are left");
    assert!(rows.tables.chunk.read(&tx).unwrap().is_empty().unwrap(), "pieces of long values are left");
    assert!(rows.tables.ready.read(&tx).unwrap().is_empty().unwrap(), "ready words are left");
    assert!(rows.tables.prune.read(&tx).unwrap().is_empty().unwrap(), "words of ended jobs are left");
}

/// A pack rots: what is in it is reported, never run and never "not there"; jobs elsewhere are as they were. If it is the one that
/// the next jobs would go into, they go behind it, at once and after a start.
#[test]
fn a_damaged_pack_stops_no_new_job() {
    let disk = SimDisk::new();
    let store = open(&disk);
    let ids: Vec<JobId> = (0..80).map(|n| ask(&store, move |tx| enqueue(tx, &n.to_string())).unwrap()).collect();
    ask(&store, |tx| {
        tx.touch();
        let Rows { tx, tables, .. } = &mut tx.rows;
        let states = tables.state.write(tx)?;
        let mut value = states.get(1)?.unwrap().value().to_vec();
        value[5] ^= 1;
        states.insert(1, value.as_slice())?;
        Ok(())
    });
    // What the writer has at hand is sound.
    store.close().unwrap();
    let store = open(&disk);
    let new = ask(&store, |tx| enqueue(tx, "new")).unwrap();
    assert_eq!((new, record(&store, new).state), (JobId(128), JobState::Ready { ticket: 128 }));
    store.close().unwrap();
    let store = open(&disk);
    let (mut well, mut damaged) = (0, 0);
    for id in ids {
        match store.read(|r| r.record(id)) {
            Ok(Some(_)) => well += 1,
            Err(StoreError::Corrupt { .. }) => damaged += 1,
            other => panic!("{id}: {other:?}"),
        }
    }
    assert_eq!((well, damaged), (63, 17));
    assert_eq!(ask(&store, |tx| enqueue(tx, "newer")), Some(JobId(129)));
}

/// A decision on a state that the file does not show is damage, and nothing of it is written.
#[test]
fn a_missing_index_row_is_damage() {
    let store = open(&SimDisk::new());
    let id = ask(&store, |tx| enqueue(tx, "a")).unwrap();
    let heard = send(&store, Lane::Outcome, move |tx| {
        let mut wrong = tx.record(id)?.unwrap();
        wrong.state = running();
        tx.put(&change(&wrong, JobState::Dead))
    });
    assert!(matches!(heard.recv().unwrap(), Heard::Failed(e) if e.contains("no index row")));
    assert_eq!(record(&store, id).state, JobState::Ready { ticket: id.0 });
}

/// Ready jobs come by priority, then by ticket, and only those of the kind that is asked for.
#[test]
fn ready_jobs_come_in_order() {
    let store = open(&SimDisk::new());
    let ids = ask(&store, |tx| {
        let (a, b) = (tx.add_kind("test")?, tx.add_kind("other")?);
        assert_eq!((tx.add_kind("test")?, tx.kind("other")?, tx.kind("never")?), (a, Some(b), None));
        let mut made = Vec::new();
        for (i, (kind, priority)) in [(a, 9), (a, 1), (b, 0), (a, 9), (a, 1)].into_iter().enumerate() {
            let id = tx.next_id();
            let change = admit::create(id, kind, priority, Start::Now, &rules(), ManualClock::default().now());
            tx.insert(&JobRow { kind, ..row(&i.to_string(), vec![]) }, &change)?;
            made.push(id);
        }
        Ok(made)
    });
    let ready = store.read(|r| r.ready(KindId(1), 3)).unwrap();
    assert_eq!(ready.iter().map(|r| r.2).collect::<Vec<_>>(), [ids[1], ids[4], ids[0]]);
    let kinds = store.read(|r| r.kinds()).unwrap();
    assert_eq!(kinds, [(KindId(2), "other".to_owned()), (KindId(1), "test".to_owned())]);
}

/// Values of every length around a page and a chunk come back as they were; replacing and pruning them leaves no piece behind.
#[test]
fn long_values_are_kept_in_pieces_and_leave_none_behind() {
    let disk = SimDisk::new();
    let store = open(&disk);
    let lengths = [0, 1, 3_500, 3_584, 3_600, 4_000, 4_096, 8_000, 100_000, 1 << 20];
    let mut tried = 0;
    for (i, len) in lengths.into_iter().enumerate() {
        let payload: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
        let sent = payload.clone();
        let id = ask(&store, move |tx| enqueue_at(tx, &i.to_string(), Start::Now, sent.clone())).unwrap();
        assert!(store.read(|r| r.job(id)).unwrap().unwrap().payload == payload, "{len}");
        for again in [payload.clone(), payload[..len / 2].to_vec()] {
            let output = again.clone();
            ask(&store, move |tx| tx.put_output(id, output.clone()));
            assert!(store.read(|r| r.output(id)).unwrap().unwrap() == again);
            tried += 1;
        }
    }
    assert_eq!(tried, 20);
    let pieces = |store: &Store| {
        let tx = store.inner.shared.begin_read().unwrap().0;
        redb::ReadableTableMetadata::len(Rows::new(&tx, &store.inner.shared.memory).tables.chunk.read(&tx).unwrap())
            .unwrap()
    };
    assert!(pieces(&store) > 300);
    for id in 1..=lengths.len() as u64 * 10 {
        let id = JobId(id);
        if store.read(|r| r.record(id)).unwrap().is_some() {
            put(&store, id, |r| change(r, JobState::Ended { how: End::Done, at: Wall(1) }));
            ask(&store, move |tx| tx.prune(id));
        }
    }
    assert_eq!((pieces(&store), check_rows(&store).jobs), (0, 0));
}

/// A job with effects, steps, history and a letter ends and is pruned: nothing is left but the memory of its intent.
#[test]
fn pruning_removes_everything_but_the_memory_of_the_intent() {
    let store = open(&SimDisk::new());
    let id = ask(&store, |tx| enqueue(tx, "a")).unwrap();
    let other = ask(&store, |tx| enqueue(tx, "b")).unwrap();
    for id in [id, other] {
        put(&store, id, |r| {
            let mut c = change(r, running());
            c.record.effects = 2;
            c.record.memos = 1;
            c.effects = vec![effect("charge", "", vec![1]), effect("charge", "x", vec![2; 9_000])];
            c.memo = Some(Memo { name: "look".to_owned(), commit: false, value: b"1".to_vec(), number: 0 }.into());
            c.journal = vec![Entry::Strike { at: Wall(1) }, Entry::Strike { at: Wall(2) }];
            c
        });
        ask(&store, move |tx| tx.put_output(id, b"out".to_vec()));
    }
    assert_eq!(store.read(|r| r.effects(id)).unwrap().len(), 2);
    let x = EffectId { name: "charge".to_owned(), part: "x".to_owned() };
    assert_eq!(store.read(|r| r.effect(id, &x)).unwrap().unwrap().request, vec![2; 9_000]);
    assert_eq!(store.read(|r| r.memos(id)).unwrap().len(), 1);
    assert_eq!(record(&store, id).journal, 2);
    assert_eq!(store.read(|r| r.journal(id)).unwrap().len(), 2);

    let early = send(&store, Lane::Outcome, move |tx| tx.prune(id));
    assert!(matches!(early.recv().unwrap(), Heard::Failed(e) if e.contains("has not ended")));
    put(&store, id, |r| {
        let ended = JobState::Ended { how: End::Done, at: Wall(3) };
        with(change(r, ended), |c| c.prune = Some(Wall(4)))
    });
    ask(&store, move |tx| tx.prune(id));
    store
        .read(|r| {
            assert_eq!((r.job(id)?, r.record(id)?, r.output(id)?), (None, None, None));
            assert_eq!((r.effects(id)?, r.memos(id)?, r.journal(id)?), (vec![], vec![], vec![]));
            assert_eq!(r.prunable(Wall(u64::MAX), 9)?, []);
            assert!(r.intent(KindId(1), "a")?.is_none(), "nobody remembered it");
            assert_eq!((r.effects(other)?.len(), r.journal(other)?.len()), (2, 2), "its neighbour keeps everything");
            assert_eq!(r.output(other)?, Some(b"out".to_vec()));
            Ok(())
        })
        .unwrap();
    ask(&store, move |tx| tx.prune(id));
}

/// A record of an effect is gone although the job counts it: that is damage, never "not done".
#[test]
fn a_missing_effect_record_is_damage() {
    let store = open(&SimDisk::new());
    let id = ask(&store, |tx| enqueue(tx, "a")).unwrap();
    put(&store, id, |r| {
        let mut c = change(r, running());
        c.record.effects = 2;
        c.effects = vec![effect("charge", "", vec![])];
        c
    });
    let error = store.read(|r| r.effects(id)).unwrap_err();
    assert!(matches!(&error, StoreError::Corrupt { what } if what.contains("counts 2")), "{error}");
}

/// A job snoozes for a year: its history stays short, the count tells how often.
#[test]
fn claims_given_back_for_one_reason_stay_one_entry() {
    let store = open(&SimDisk::new());
    let id = ask(&store, |tx| enqueue(tx, "a")).unwrap();
    put(&store, id, |r| change(r, running()));
    let back = |why: &str, at| Entry::GivenBack { why: why.to_owned(), count: 1, at: Wall(at) };
    for entry in
        [back("snoozed", 1), back("snoozed", 2), back("snoozed", 3), back("interrupted", 4), back("snoozed", 5)]
    {
        put(&store, id, move |r| with(change(r, running()), |c| c.journal = vec![entry.clone()]));
    }
    let merged = Entry::GivenBack { why: "snoozed".to_owned(), count: 3, at: Wall(3) };
    let journal = store.read(|r| r.journal(id)).unwrap();
    assert_eq!(journal, [merged, back("interrupted", 4), back("snoozed", 5)]);
    assert_eq!(record(&store, id).journal, 3);
}

/// Settings, tombs and memories are kept apart from our own and come back page by page.
#[test]
fn settings_tombs_and_memories_come_back() {
    let store = open(&SimDisk::new());
    ask(&store, |tx| {
        tx.put_meta("pause/a", b"1")?;
        tx.put_meta("pause/b", &vec![5; 10_000])?;
        tx.put_meta("uptime", b"3")?;
        tx.put_meta("epoch", b"mine")?;
        tx.remove_meta("pause/a")?;
        let memory = |until| Identity {
            id: JobId(4),
            incarnation: 2,
            digest: [3; 16],
            how: End::Done,
            until: Some(Wall(until)),
        };
        for (until, key) in [(5, "x"), (3, "y"), (9, "z")] {
            tx.remember(KindId(7), key, &memory(until))?;
        }
        tx.forget(KindId(7), "x", &memory(5))?;
        tx.remember(KindId(8), "x", &Identity { until: None, ..memory(0) })
    });
    store
        .read(|r| {
            assert_eq!(r.metas("pause/")?, [("pause/b".to_owned(), vec![5; 10_000])]);
            assert_eq!((r.meta("epoch")?, r.meta("none")?), (Some(b"mine".to_vec()), None));
            assert_eq!(r.tombs(Wall(9), 9)?, [(Wall(3), KindId(7), "y".to_owned())]);
            assert_eq!(r.intent(KindId(8), "x")?.unwrap().incarnation(), 2);
            assert_eq!((r.intent(KindId(7), "x")?, r.intent(KindId(7), "")?), (None, None));
            Ok(())
        })
        .unwrap();
}

/// Payload, key, step and kind at the limit are taken, one byte more is refused, and nothing of it is written.
#[test]
fn limits_refuse_before_anything_is_written() {
    let disk = SimDisk::new();
    let mut options = on_disk(&disk);
    options.limits = crate::model::Limits { payload: 50, key: 10, name: 4, ..Default::default() };
    let store = Store::open(options).unwrap().0;
    let try_it = |key: usize, payload: usize| {
        let f = move |tx: &mut Write<'_>| enqueue_at(tx, &"k".repeat(key), Start::Now, vec![0; payload]);
        send(&store, Lane::Enqueue, f).recv().unwrap()
    };
    assert!(matches!(try_it(10, 50), Heard::Settled(Some(_))));
    let Heard::Failed(long) = try_it(11, 50) else { panic!() };
    assert!(long.contains("11 bytes, at most 10"), "{long}");
    let Heard::Failed(heavy) = try_it(9, 51) else { panic!() };
    assert!(heavy.contains("51 bytes, at most 50"), "{heavy}");
    let kind = send(&store, Lane::Enqueue, |tx| tx.add_kind("12345")).recv().unwrap();
    assert!(matches!(kind, Heard::Failed(e) if e.contains("5 bytes")));
    let step = send(&store, Lane::Enqueue, |tx| {
        let record = tx.record(JobId(1))?.unwrap();
        let memo = Some(Memo { name: "s".to_owned(), commit: false, value: vec![0; 51], number: 0 });
        tx.put(&with(change(&record, running()), |c| c.memo = memo.map(Box::new)))
    });
    assert!(matches!(step.recv().unwrap(), Heard::Failed(e) if e.contains("step's value")));
    assert_eq!((check_rows(&store).jobs, check_rows(&store).running), (1, 0));
}

/// The rules and the store together: a delayed job, a claim and a finish, read back through the indexes.
#[test]
fn decisions_of_the_rules_are_stored_as_they_are() {
    let store = open(&SimDisk::new());
    let start = Start::After(Duration::from_secs(5));
    let id = ask(&store, move |tx| enqueue_at(tx, "a", start, vec![])).unwrap();
    let timers = store.read(|r| r.timers((Wall(0), JobId(0)), 9)).unwrap();
    assert_eq!(timers.iter().map(|t| t.1).collect::<Vec<_>>(), [id]);
    assert_eq!(store.read(|r| r.timers(timers[0], 9)).unwrap(), []);
    assert_eq!(check_rows(&store).timers, 1);
    let _ = Lease { job: id, token: Token(1) };
}

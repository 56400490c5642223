//! Bad histories of jobs, transactions, messages, letters and replays: I1 to I5, I17 to I19, I30.

use super::*;
use crate::history::{jobs, letters};

fn id(n: u64) -> JobId {
    JobId::from_number(n)
}

fn is_row(what: &What) -> bool {
    matches!(what, What::Rows(_))
}

fn set_rows(c: &mut Case, rows: &[(&str, u64)]) {
    *c.what(is_row) = What::Rows(rows.iter().map(|(k, n)| ((*k).to_owned(), *n)).collect());
}

/// The transaction of the story was answered with this.
fn transacted(c: &mut Case, answer: Option<bool>) {
    *c.what(|w| matches!(w, What::Transacted { .. })) = What::Transacted { ask: 20, done: answer };
}

fn saw(job: u64, state: Option<State>) -> What {
    What::Saw { job: id(job), state, due: None }
}

/// An acknowledged job is lost, is another one, is there twice, or is taken up again after its end (I1).
#[test]
fn a_lost_job_is_rejected() {
    rejected(
        jobs::i1,
        &[
            ("was acknowledged and is lost", |c| c.jobs.retain(|j| j.id != id(5))),
            ("was acknowledged as", |c| c.job(5).name.1 = "other".into()),
            ("there twice", |c| {
                let again = c.job(5).clone();
                c.jobs.push(again);
            }),
            ("nobody found it", |c| c.append(saw(5, None))),
            ("was over as Done and is Ready", |c| c.job(1).state = State::Ready),
            ("was over as Done and is Remembered", |c| c.job(1).state = State::Remembered),
            ("was over as Discarded and is NeedsDecision", |c| {
                c.append(saw(8, Some(State::Discarded)));
                c.append(saw(8, Some(State::NeedsDecision)));
            }),
            ("before its retention was over", |c| c.job(9).state = State::Remembered),
        ],
    );
}

/// A discarded job comes back because somebody asked for that, and an ended one is pruned when its retention is over (I1).
#[test]
fn a_restored_or_pruned_job_is_accepted() {
    let mut case = story();
    case.append(saw(8, Some(State::Discarded)));
    case.append(What::Acting { act: 9, job: Some(id(8)), deed: Deed::Restore });
    case.append(saw(8, Some(State::Dead)));
    jobs::i1(&View::of(&case.history, &case.jobs).unwrap()).unwrap();
    case.job(9).state = State::Remembered;
    case.append(What::Moved(Moved::Jump));
    let last = case.history.events.last_mut().unwrap();
    last.now.wall.0 += 7 * 24 * 3_600_000;
    jobs::i1(&View::of(&case.history, &case.jobs).unwrap()).unwrap();
}

/// A job that nobody asked for, that was asked for with other bytes, or whose caller was told that nothing was done (I2).
#[test]
fn a_phantom_is_rejected() {
    rejected(
        jobs::i2,
        &[
            ("nobody asked for", |c| c.jobs.push(done(40, ("note", "phantom"), 0))),
            ("nobody asked for", |c| c.job(5).payload = 9),
            ("is there", |c| c.jobs.push(done(40, ("note", "no"), 0))),
            ("is there", |c| {
                let at = c.at(|w| matches!(w, What::Asked { ask: 105, .. }));
                c.history.events[at].what = What::Asked { ask: 105, answer: Answer::NotDone };
            }),
            ("nobody asked for (\"note\", \"a/commit\")", |c| transacted(c, Some(false))),
            ("nobody asked for", |c| {
                c.jobs.push(FinalJob { undoes: Some((id(8), "wire".into())), ..done(40, ("note", "undo"), 0) });
            }),
            ("which is not there", |c| c.jobs.retain(|j| j.id != id(9))),
        ],
    );
}

/// Two jobs for one key, or an existing one that is another one's (I3).
#[test]
fn two_jobs_for_one_key_are_rejected() {
    rejected(
        jobs::i3,
        &[
            ("and was run again 0 times", |c| c.jobs.push(done(40, ("pay", "a"), 0))),
            ("and was run again 0 times", |c| {
                c.append(What::Asking { ask: 90, name: ("pay", "a".into()), payload: 7, due: Due::AtOnce });
                c.append(What::Asked { ask: 90, answer: Answer::Stored(id(40)) });
            }),
            ("and was run again 0 times", |c| {
                c.append(What::Asking { ask: 90, name: ("pay", "a".into()), payload: 7, due: Due::Again });
                c.append(What::Asked { ask: 90, answer: Answer::NotDone });
                c.jobs.push(done(40, ("pay", "a"), 0));
            }),
            ("another one or none", |c| {
                *c.what(|w| matches!(w, What::Asked { ask: 2, .. })) =
                    What::Asked { ask: 2, answer: Answer::Existing { id: id(5), differs: true } };
            }),
        ],
    );
}

/// Another payload under a known key is not reported, or replaces the stored one (I4).
#[test]
fn an_unreported_conflict_is_rejected() {
    rejected(
        jobs::i4,
        &[
            ("differs = false", |c| {
                *c.what(|w| matches!(w, What::Asked { ask: 2, .. })) =
                    What::Asked { ask: 2, answer: Answer::Existing { id: id(1), differs: false } };
            }),
            ("differs = true", |c| {
                *c.what(|w| matches!(w, What::Asking { ask: 2, .. })) =
                    What::Asking { ask: 2, name: ("pay", "a".into()), payload: 7, due: Due::AtOnce };
            }),
            ("another one than was acknowledged", |c| c.job(1).payload = 8),
        ],
    );
}

/// Half of a transaction is there (I5).
#[test]
fn half_of_a_transaction_is_rejected() {
    rejected(
        jobs::i5,
        &[
            ("row a false, job", |c| set_rows(c, &[])),
            ("row a true, job", |c| c.jobs.retain(|j| j.id != id(4))),
            ("row a true, message m1 false", |c| c.remove(|w| matches!(w, What::Topic { .. }))),
            ("row a false, message m1 true", |c| {
                set_rows(c, &[]);
                c.jobs.retain(|j| j.id != id(4));
            }),
            ("no rows at the end", |c| c.remove(is_row)),
        ],
    );
}

/// An answer rested on rows that are not there, or a request was applied twice (I30).
#[test]
fn an_answer_that_rests_on_nothing_is_rejected() {
    rejected(
        jobs::i30,
        &[
            ("was acknowledged 1 times and counts 0", |c| set_rows(c, &[])),
            ("was done at most 1 times and counts 2", |c| set_rows(c, &[("a", 2)])),
            ("was done at most 0 times and counts 1", |c| transacted(c, Some(false))),
            ("was done at most 1 times and counts 2", |c| {
                transacted(c, None);
                set_rows(c, &[("a", 2)]);
            }),
            ("nobody asked for the row b", |c| set_rows(c, &[("a", 1), ("b", 1)])),
            ("1 to 1 acts of people about job 8 were done, 0 are kept", |c| c.job(8).history.clear()),
            ("1 to 1 acts of people about job 8 were done, 2 are kept", |c| {
                let again = c.job(8).history[0].clone();
                c.job(8).history.push(again);
            }),
            ("0 to 0 acts of people about job 8", |c| {
                *c.what(|w| matches!(w, What::Acted { act: 2, .. })) = What::Acted { act: 2, done: Some(false) };
            }),
        ],
    );
}

/// The whole of I17 is tried by the oracle's own tests; here that the history is handed on to it.
#[test]
fn a_bad_outbox_is_rejected() {
    rejected(
        letters::i17,
        &[
            ("nobody committed it", |c| c.remove(|w| matches!(w, What::Owing { .. }))),
            ("arrived: false", |c| c.remove(|w| matches!(w, What::Delivered { .. }))),
            ("nobody looked at the topic owed", |c| c.remove(|w| matches!(w, What::Topic { .. }))),
            ("acknowledged and is lost", |c| {
                c.append(What::Owing { topic: "owed", id: "m2".into() });
                c.append(What::Owed { topic: "owed", id: "m2".into() });
            }),
            ("two different messages", |c| {
                c.append(What::Delivered { topic: "owed", id: "m1".into(), message: "other".into() });
            }),
        ],
    );
}

/// A letter is missing, hides an effect, or went away although nobody answered (I18).
#[test]
fn a_lost_letter_is_rejected() {
    rejected(
        letters::i18,
        &[
            ("has a letter: false", |c| c.job(8).letter = None),
            ("has a letter: true", |c| {
                let letter = c.job(8).letter.clone();
                c.job(1).letter = letter;
            }),
            ("the letter lists []", |c| c.job(8).letter.as_mut().unwrap().lists.clear()),
        ],
    );
    rejected(
        letters::i18_seen,
        &[
            ("asked about job 1", |c| {
                c.remove(|w| matches!(w, What::Acting { act: 1, .. } | What::Acted { act: 1, .. }))
            }),
            ("asked about job 8", |c| {
                *c.what(|w| matches!(w, What::Acted { act: 2, .. })) = What::Acted { act: 2, done: Some(false) };
            }),
            ("it is Discarded without an answer", |c| c.job(8).state = State::Discarded),
            ("it is Ready without an answer", |c| {
                c.append(saw(8, Some(State::NeedsDecision)));
                c.append(saw(8, Some(State::Ready)));
            }),
        ],
    );
}

/// A replay kept the token, lost what was recorded, or made another request of an effect (I19).
#[test]
fn a_replay_that_forgets_is_rejected() {
    rejected(
        letters::i19,
        &[
            ("token 305 before the replay, 305 after", |c| {
                c.job(8).last_token = 305;
            }),
            ("a replay made None", |c| c.job(8).effects.clear()),
            ("a replay made", |c| c.effect(8, "charge").key = "k7".into()),
            ("a replay made", |c| c.effect(8, "charge").state = EffectState::Unknown),
            ("a replay made", |c| c.effect(8, "charge").reference = None),
            ("a replay forgot draw", |c| c.job(8).memos.clear()),
            ("has the generation 2", |c| c.effect(8, "charge").generation = 2),
        ],
    );
}

//! Hostile input, table by table: texts that forge lines or move what stands beside them, lengths around every limit and far beyond
//! it, values that JSON cannot carry back, times at both ends. Each is a typed error that says what to do, or is stored and given back
//! byte for byte, also by the next process; people see one plain line, and the queue goes on working.

mod outside;

use super::ground::{Ground, MINUTE, PATIENCE, is};
use onceward::observe::parse_line;
use onceward::prelude::*;
use onceward::{Backoff, Builder, DeadLetter, EffectId, EffectState, Entry, Error, LookUp, Refusal, Shown, Why};
use serde::{Deserialize, Serialize};
use std::panic::resume_unwind;

/// What somebody typed, pasted or sent; `true`: it is one line as it stands, so a person may sign with it.
const TEXTS: [(&str, bool); 18] = [
    ("x", true),
    ("a\0b", false),
    ("\0", false),
    ("\u{1b}[2J\u{1b}[1;31mpaid", false),
    ("a\r\nbob decided: discard (seen)", false),
    ("a\tb", false),
    ("a\u{85}b", false),
    ("a\u{2028}b", false),
    ("a\u{202e}diap\u{202c}", false),
    ("\u{2067}a\u{2069}", false),
    ("a\u{200b}b\u{feff}", true),
    ("a\u{e0041}\u{e007f}", true),
    ("<script>alert('x')</script>", true),
    ("| \"a\", 'b'; `c` | **d** \\ %s {} outcome=success |", true),
    ("../../q/x:y*?", true),
    ("\u{301}", true),
    ("\u{ffff}", true),
    ("\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{1f1e9}\u{1f1ea}", true),
];

/// Nothing in it ends the line, turns round its neighbours or hides.
#[track_caller]
fn one_line(said: &str) {
    let moves = |c: char| match c {
        '\u{200b}' | '\u{feff}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{e0000}'..='\u{e0fff}' => true,
        _ => c.is_control(),
    };
    assert!(!said.chars().any(moves), "not one plain line: {said:?}");
}
/// Everything that a screen takes from a letter as it stands, and what it puts through `Shown`.
#[track_caller]
fn seen(letter: &DeadLetter) {
    one_line(&letter.headline());
    letter.history().iter().for_each(|entry| one_line(&entry.says()));
    for choice in letter.choices() {
        std::iter::once(&choice.label).chain(&choice.will).chain(&choice.will_not).for_each(|text| one_line(text));
    }
    [letter.title(), letter.error(), letter.key()].iter().for_each(|text| one_line(&Shown(text).to_string()));
}
/// What is kept of a text: all of it, or its beginning up to a whole character, which says so.
#[track_caller]
fn kept(is: &str, of: &str, limit: usize) {
    if of.len() <= limit {
        return assert_eq!(is, of);
    }
    let begins = is.strip_suffix("... (cut)").unwrap();
    assert!(is.len() <= limit && is.len() + 4 > limit && of.starts_with(begins), "{} of {}", is.len(), of.len());
}
/// Refused for what was said, in one line.
#[track_caller]
fn refused<T: std::fmt::Debug>(told: Result<T, Error>) {
    match told {
        Err(e @ Error::Refused(Refusal::NotAChoice(_))) => one_line(&e.to_string()),
        other => panic!("{other:?}"),
    }
}
#[track_caller]
fn too_big<T: std::fmt::Debug>(told: Result<T, Error>, what: &str, bytes: usize, next: &str) {
    let e = told.unwrap_err();
    let fits = matches!(&e, Error::TooBig { what: said, len, .. } if *said == what && *len == bytes);
    assert!(fits && e.to_string().contains(next), "{e}");
}

macro_rules! holds {
    ($name:ident = $kind:literal, $value:ty { $($items:tt)* }) => {
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        struct $name {
            key: String,
            value: $value,
        }
        impl Job for $name {
            const KIND: &'static str = $kind;
            fn key(&self) -> JobKey {
                self.key.as_str().into()
            }
            $($items)*
        }
    };
}
holds!(Row = "row", String {
    fn title(&self) -> String {
        self.value.clone()
    }
    fn policy() -> Policy {
        Policy::default().backoff(Backoff::steps([MINUTE]))
    }
});
holds!(Broken = "broken", String {
    fn title(&self) -> String {
        self.value.clone()
    }
});
holds!(Nested = "nested", Deep {});
holds!(Float = "float", f64 {});
holds!(Numbers = "numbers", (u64, i64, f64) {});

fn row(key: impl Into<String>, value: impl Into<String>) -> Row {
    Row { key: key.into(), value: value.into() }
}
/// Rows fail once with their text and are then given back as their output; broken ones fail for good.
fn rows(ground: &Ground) -> Jobs {
    let run = |cx: &Cx, row: Row| {
        cx.note(&row.value, &row.value);
        if cx.attempt() == 1 { Err(Fail::transient(row.value)) } else { cx.output(&row) }
    };
    ground.builder().on(run).on(|_, job: Broken| Err(Fail::permanent(job.value))).start().unwrap()
}
fn broken(jobs: &Jobs, key: &str, error: &str) -> JobId {
    jobs.enqueue(&Broken { key: key.into(), value: error.into() }).unwrap().id()
}

/// A key, a payload, a title, a note and an error of every text: exact in the file and in the log, one line to look at.
#[test]
fn any_text_is_a_key_a_payload_a_title_and_an_error() {
    let ground = Ground::new();
    let jobs = rows(&ground);
    let all: Vec<(Row, JobId)> =
        TEXTS.iter().map(|(text, _)| row(*text, *text)).map(|r| (r.clone(), jobs.enqueue(&r).unwrap().id())).collect();
    ground.settle(&jobs);
    ground.pass(&jobs, MINUTE);
    let check = |jobs: &Jobs| {
        for (row, id) in &all {
            is(jobs, *id, State::Done);
            assert_eq!(jobs.output::<Row>(*id).unwrap().as_ref(), Some(row));
            assert_eq!(jobs.find::<Row>(&row.key()).unwrap(), Some(*id));
            let again = jobs.enqueue(row).unwrap();
            assert!(again.id() == *id && matches!(again, Enqueued::Existing { differs: false, .. }), "{again:?}");
            let history = jobs.history(*id).unwrap();
            assert!(history.iter().any(|e| matches!(e, Entry::Attempt { text, .. } if *text == row.value)));
            history.iter().for_each(|entry| one_line(&entry.says()));
        }
    };
    check(&jobs);
    for (row, _) in &all {
        let lines = ground.lines.of(&row.key);
        assert_eq!((lines.len(), lines[0].error.as_deref()), (2, Some(row.value.as_str())));
        for line in lines {
            one_line(&line.to_string());
            let read = parse_line(&line.to_string()).unwrap();
            assert_eq!((read.job, read.notes, read.error), (line.job, line.notes, line.error));
        }
    }
    ground.close(jobs);
    let jobs = rows(&ground);
    check(&jobs);
    let recount = ground.close(jobs);
    println!("hostile: {} texts as key, payload, title, note and error", all.len());
    assert_eq!((recount.jobs.len(), recount.attempts()), (18, 36));
}

/// Up to the limit as it is, above it cut between two characters, in letter and title; the next process reads the same.
#[test]
fn any_error_is_a_letter() {
    let ground = Ground::new();
    let long = [("", 0), ("x", 4_096), ("x", 4_097), ("é", 3_000), ("\u{1f468}", 2_000), ("\0", 600), ("y", 1_000_000)];
    let mut texts: Vec<String> = long.iter().map(|(text, n)| text.repeat(*n)).collect();
    texts.extend(TEXTS.iter().map(|(text, _)| (*text).to_owned()));
    let jobs = rows(&ground);
    let ids: Vec<JobId> = texts.iter().enumerate().map(|(n, text)| broken(&jobs, &n.to_string(), text)).collect();
    ground.settle(&jobs);
    jobs.shutdown(PATIENCE).unwrap();
    let jobs = rows(&ground);
    for (n, (text, id)) in texts.iter().zip(&ids).enumerate() {
        is(&jobs, *id, State::Dead);
        let letter = jobs.dead_letter(*id).unwrap();
        seen(&letter);
        kept(letter.error(), text, 4_096);
        let title = if text.is_empty() { format!("broken {n}") } else { text.clone() };
        kept(letter.title(), &title, 512);
        jobs.decide(&letter, Decision::discard().by("ann", "seen")).unwrap();
    }
    assert_eq!(jobs.trash().unwrap().len(), texts.len());
    println!("hostile: {} errors of up to 1 MB in letters", texts.len());
    assert_eq!(ground.close(jobs).jobs.len(), 25);
}

/// Empty, at the limit, one above it, 100 MB: taken, or refused with what to do, and nothing of it is there.
#[test]
fn a_key_and_a_payload_fit_or_are_refused() {
    const LIMIT: usize = 1 << 20;
    let ground = Ground::new();
    let jobs = rows(&ground);
    let around = serde_json::to_vec(&row("k", "")).unwrap().len();
    let of = |n: usize| row("k", "x".repeat(n));
    too_big(jobs.enqueue(&of(LIMIT - around + 1)), "payload", LIMIT + 1, "pass a reference");
    too_big(jobs.enqueue(&of(100_000_000)), "payload", 100_000_000 + around, "pass a reference");
    too_big(jobs.enqueue(&row("k".repeat(100_000_000), "")), "key", 100_000_000, "use a shorter one");
    too_big(jobs.enqueue(&row("k".repeat(513), "")), "key", 513, "use a shorter one");
    too_big(jobs.transact(|tx| tx.enqueue(&row("é".repeat(257), ""))), "key", 514, "use a shorter one");
    assert!(matches!(jobs.enqueue(&row("", "text")), Err(Error::EmptyKey { kind }) if kind == "row"));
    let list = jobs.enqueue_many(&[row("m1", ""), row("", ""), row("m2", "")]);
    assert!(matches!(&list, Err(Error::Item { index: 1, .. })), "{list:?}");
    assert_eq!(jobs.find::<Row>(&"m1".into()).unwrap(), None);
    let fits = [of(LIMIT - around), row("k".repeat(512), ""), row("é".repeat(256), ""), row(" ", "")];
    let ids = fits.clone().map(|row| jobs.enqueue(&row).unwrap().id());
    ground.settle(&jobs);
    ground.pass(&jobs, MINUTE);
    ground.close(jobs);
    let jobs = rows(&ground);
    for (row, id) in fits.iter().zip(ids) {
        is(&jobs, id, State::Done);
        assert!(jobs.output::<Row>(id).unwrap().as_ref() == Some(row), "{} bytes", row.value.len());
    }
    println!("hostile: 7 keys and payloads refused, {} taken", fits.len());
    assert_eq!(ground.close(jobs).jobs.len(), fits.len());
}

/// Arrays in arrays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Deep(Vec<Deep>);
impl Deep {
    fn new(levels: usize) -> Self {
        (1..levels).fold(Self(Vec::new()), |inner, _| Self(vec![inner]))
    }
}
/// Serde goes down level by level: the caller of the deepest value has room for that.
#[expect(clippy::disallowed_methods, reason = "a caller with a large stack")]
fn with_room<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().stack_size(256 << 20).spawn(f).unwrap().join().unwrap()
}

macro_rules! call {
    ($($name:ident = $shown:literal, $result:ty, $refers:expr, $reads:expr;)*) => {$(
        #[derive(Serialize, Deserialize)]
        struct $name {
            text: String,
        }
        impl Effect for $name {
            type Result = $result;
            const NAME: &'static str = $shown;
            fn says(&self) -> String {
                self.text.repeat(if Self::NAME == "huge" { 5_000 } else { 1 })
            }
            fn part(&self) -> String {
                self.text.clone()
            }
            fn look_up(&self) -> Option<LookUp> {
                Some(LookUp::at(&self.text, &self.text))
            }
            fn reference(done: &$result) -> Option<String> {
                let refers: fn(&$result) -> Option<String> = $refers;
                refers(done)
            }
            fn from_reference(&self, reference: &str) -> Option<$result> {
                let reads: fn(&str) -> Option<$result> = $reads;
                reads(reference)
            }
        }
    )*};
}
call! {
    Does = "does", String, |done| Some(done.clone()), |_| None;
    Loses = "loses", String, |_| None, |reference| Some(reference.to_owned());
    Huge = "huge", String, |done| done.get(..600).map(str::to_owned), |reference| Some(reference.to_owned());
    Nests = "nests", Deep, |_| None, |_| None;
    Floats = "floats", f64, |_| None, |_| None;
}

holds!(Order = "order", (String, usize, String) {
    fn policy() -> Policy {
        Policy::default().retries(1).backoff(Backoff::steps([MINUTE]))
    }
    fn effects() -> Vec<EffectCard> {
        vec![Does::card(), Loses::card(), Huge::card(), Nests::card(), Floats::card()]
    }
});
fn order(cx: &Cx, Order { value: (how, n, text), .. }: Order) -> Outcome {
    let long = "x".repeat(n);
    match how.as_str() {
        "texts" => {
            let value = text.clone();
            let step = cx.step(&text, || Ok(text.clone()))?;
            let commit = cx.commit(&format!("{text}!"), move |_| Ok(value.clone()))?;
            let done = cx.effect(Does { text: text.clone() })?;
            if cx.attempt() == 1 {
                return Err(Fail::transient(text));
            }
            let lost = cx.effect(Loses { text })?;
            cx.output(&[step, commit, done, lost])
        }
        "step" => cx.step(&long, || Ok(())),
        "commit" => cx.commit(&long, |_| Ok(())),
        "part" => cx.effect(Does { text: long }).map(|_| ()),
        "step value" => cx.step("s", || Ok(long)).map(|_| ()),
        "commit value" => cx.commit("c", move |_| Ok(long.clone())).map(|_| ()),
        "output value" => cx.output(&long),
        "fails" => Err(Fail::new(long)),
        "is refused" => Err(Fail::refused(long)),
        "panics" => resume_unwind(Box::new(long)),
        "huge" => cx.output(&cx.effect(Huge { text })?),
        "deep step" => cx.step("deep", || Ok(Deep::new(1_000))).and_then(|_| Err(Fail::transient("once more"))),
        "nan step" => cx.step("nan", || Ok(f64::NAN)).and_then(|_| Err(Fail::transient("once more"))),
        "nan commit" => cx.commit("nan", |_| Ok(f64::NAN)).map(|_| ()),
        "nan output" => cx.output(&f64::NAN),
        "deep result" => cx.effect(Nests { text }).map(|_| ()),
        _ => cx.effect(Floats { text }).map(|_| ()),
    }
}
fn orders(ground: &Ground) -> Builder {
    let signs = ground.signs.clone();
    let does = move |e: &Does, _: &IdempotencyKey| {
        signs.say("done");
        Ok(e.text.clone())
    };
    let b = ground.builder().payload_limit(10_000).on(order).effect(does);
    let b = b.effect(|e: &Loses, _: &IdempotencyKey| Err(Fail::new(e.text.clone())));
    let b = b.effect(|_: &Huge, _: &IdempotencyKey| Ok("r".repeat(12_000)));
    b.effect(|_: &Nests, _: &IdempotencyKey| Ok(Deep::new(1_000))).effect(|_: &Floats, _: &IdempotencyKey| Ok(f64::NAN))
}
fn ask(jobs: &Jobs, how: &str, n: usize, text: &str) -> JobId {
    jobs.enqueue(&Order { key: format!("{how} {n} {text}"), value: (how.into(), n, text.into()) }).unwrap().id()
}

/// Names and values of steps and commits, part, words, answer, reference and lost error of effects, and what a person looked up.
#[test]
fn any_text_is_remembered_and_asked_about() {
    let ground = Ground::new();
    let jobs = orders(&ground).start().unwrap();
    let ids: Vec<JobId> = TEXTS.iter().map(|(text, _)| ask(&jobs, "texts", 0, text)).collect();
    ground.settle(&jobs);
    ground.pass(&jobs, MINUTE);
    jobs.shutdown(PATIENCE).unwrap();
    let jobs = orders(&ground).start().unwrap();
    for ((text, plain), id) in TEXTS.iter().zip(&ids) {
        is(&jobs, *id, State::NeedsDecision);
        let letter = jobs.dead_letter(*id).unwrap();
        seen(&letter);
        assert_eq!(letter.error(), *text);
        assert_eq!(letter.steps(), [(*text).to_owned(), format!("{text}!")]);
        let line = |name: &str| letter.ledger().iter().find(|l| l.id.name == name).unwrap();
        let (does, loses) = (line("does"), line("loses"));
        assert_eq!([&does.id.part, &does.says, &loses.id.part, &loses.says], [text; 4]);
        assert_eq!((does.state, does.reference.as_deref()), (EffectState::Confirmed, Some(*text)));
        assert_eq!((loses.state, loses.error.as_deref()), (EffectState::Unknown, Some(*text)));
        assert_eq!(loses.look_up, Some(((*text).to_owned(), (*text).to_owned())));
        let effect = EffectId { name: "loses".into(), part: (*text).into() };
        let say = |op: &str| jobs.decide(&letter, Decision::happened(&effect, Some(op)).by("ann", "seen"));
        if !plain {
            refused(say(text));
        }
        let reference = if *plain { *text } else { "op" };
        say(reference).unwrap();
        ground.settle(&jobs);
        is(&jobs, *id, State::Done);
        assert_eq!(jobs.output::<[String; 4]>(*id).unwrap().unwrap(), [*text, *text, *text, reference]);
        jobs.history(*id).unwrap().iter().for_each(|entry| one_line(&entry.says()));
    }
    ground.lines.all().iter().for_each(|line| one_line(&line.to_string()));
    println!("hostile: {} texts in steps, commits, effects and answers", ids.len());
    assert_eq!((ground.signs.times("done"), ids.len()), (18, 18), "nobody was called twice");
    ground.close(jobs);
}

/// Names, parts and values: empty, at the limit, one above it; and errors, however they come about, are within theirs.
#[test]
fn what_a_handler_asks_for_fits_or_fails_the_attempt() {
    let ground = Ground::new();
    let jobs = orders(&ground).start().unwrap();
    let mut table = vec![("part", 0, true), ("part", 512, true), ("part", 513, false)];
    for how in ["step", "commit"] {
        table.extend([(how, 0, false), (how, 1, true), (how, 128, true), (how, 129, false)]);
    }
    for how in ["step value", "commit value", "output value"] {
        table.extend([(how, 0, true), (how, 9_998, true), (how, 9_999, false)]);
    }
    table.extend([("fails", 5_000, false), ("is refused", 5_000, false), ("panics", 5_000, false)]);
    let ids: Vec<JobId> = table.iter().map(|(how, n, _)| ask(&jobs, how, *n, "")).collect();
    ground.settle(&jobs);
    ground.pass(&jobs, MINUTE);
    ground.close(jobs);
    let jobs = orders(&ground).start().unwrap();
    for ((how, n, fits), id) in table.iter().zip(&ids) {
        is(&jobs, *id, if *fits { State::Done } else { State::Dead });
        if !fits && *n != 5_000 {
            let bytes = if how.ends_with("value") { n + 2 } else { *n };
            let letter = jobs.dead_letter(*id).unwrap();
            assert!(letter.error().contains(&format!("{bytes} bytes")), "{how} {n}: {}", letter.error());
        }
    }
    println!("hostile: {} names, parts, values and errors around their limits", ids.len());
    let letters = jobs.dead_letters().unwrap();
    assert_eq!(letters.len(), 11);
    ground.close(jobs);
    let long: Vec<_> = letters.iter().filter(|l| l.error().len() > 4_096).map(|l| (l.key(), l.error().len())).collect();
    assert!(long.is_empty(), "stored errors are longer than 4096 bytes: {long:?}");
    // A name cannot be kept elsewhere: the error says what can be done about it.
    for letter in letters.iter().filter(|l| ["step 129 ", "commit 129 ", "part 513 "].contains(&l.key())) {
        assert!(letter.error().contains("shorter"), "{}: {}", letter.key(), letter.error());
    }
}

/// An effect says, answers and refers to more than is kept: cut where that is promised. What was cut is no reference any more: no
/// result is made of it.
#[test]
fn a_reference_that_was_cut_makes_no_result() {
    let ground = Ground::new();
    let jobs = orders(&ground).start().unwrap();
    let id = ask(&jobs, "huge", 0, "x");
    ground.settle(&jobs);
    is(&jobs, id, State::NeedsDecision);
    let letter = jobs.dead_letter(id).unwrap();
    let line = &letter.ledger()[0];
    kept(&line.says, &"x".repeat(5_000), 4_096);
    kept(line.reference.as_deref().unwrap(), &"r".repeat(600), 512);
    let told = jobs.decide(&letter, Decision::happened(&line.id, None).by("ann", "seen"));
    ground.settle(&jobs);
    println!("hostile: 1 reference that was cut: {told:?}");
    assert!(jobs.output::<String>(id).unwrap().is_none(), "the job went on with a reference that was cut");
    assert!(matches!(told, Err(Error::Refused(Refusal::NeedsReference { .. }))), "{told:?}");
    ground.close(jobs);
}

/// JSON that is too deep to be read again, numbers that it has no word for, and the largest that it has.
#[test]
fn any_value_comes_back_or_is_asked_about() {
    let ground = Ground::new();
    let start = || {
        let b = orders(&ground).payload_limit(1 << 20).on(|_, _: Nested| Ok(())).on(|_, _: Float| Ok(()));
        b.on(|cx: &Cx, job: Numbers| cx.output(&job.value)).start().unwrap()
    };
    let jobs = start();
    let nested = [100, 1_000, 10_000].map(|levels| {
        let queue = jobs.clone();
        with_room(move || queue.enqueue(&Nested { key: levels.to_string(), value: Deep::new(levels) }).unwrap().id())
    });
    let floats = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let floats = floats.map(|value| jobs.enqueue(&Float { key: value.to_string(), value }).unwrap().id());
    let numbers = [(u64::MAX, i64::MIN, 0.1), (0, i64::MAX, -1e300)];
    let largest = numbers.map(|value| jobs.enqueue(&Numbers { key: value.0.to_string(), value }).unwrap().id());
    let steps = ["deep step", "nan step"].map(|how| ask(&jobs, how, 0, ""));
    let results = ["deep result", "nan result"].map(|how| ask(&jobs, how, 0, ""));
    let [commit, output] = ["nan commit", "nan output"].map(|how| ask(&jobs, how, 0, ""));
    ground.settle(&jobs);
    ground.pass(&jobs, MINUTE);
    jobs.shutdown(PATIENCE).unwrap();
    let jobs = start();
    let letter = |id: JobId, state: State| {
        is(&jobs, id, state);
        jobs.dead_letter(id).unwrap()
    };
    is(&jobs, nested[0], State::Done);
    for (id, says) in nested[1..].iter().map(|id| (id, "recursion limit")).chain(floats.iter().map(|id| (id, "null"))) {
        let letter = letter(*id, State::Dead);
        assert!(letter.why() == Why::Unreadable && letter.error().contains(says), "{}", letter.error());
    }
    for (id, value) in largest.iter().zip(numbers) {
        is(&jobs, *id, State::Done);
        assert_eq!(jobs.output::<(u64, i64, f64)>(*id).unwrap(), Some(value));
    }
    for id in steps {
        let letter = letter(id, State::Dead);
        assert!(letter.error().contains("cannot be read"), "{}", letter.error());
        assert!(letter.choices().iter().any(|c| c.label.starts_with("Run again from")), "{:?}", letter.choices());
    }
    for id in results {
        let letter = letter(id, State::NeedsDecision);
        assert!(letter.headline().starts_with("This happened, but the answer is lost"), "{}", letter.headline());
        assert!(letter.ledger()[0].error.as_ref().is_some_and(|e| e.contains("cannot be read back")));
    }
    assert!(letter(commit, State::Dead).error().contains("null"));
    is(&jobs, output, State::Done);
    assert!(matches!(jobs.output::<f64>(output), Err(Error::Encode { .. })));
    println!("hostile: 14 values that JSON does or does not carry");
    assert_eq!(ground.close(jobs).jobs.len(), 14);
}

//! One look at what the store counts: which rules begin to speak, which cease to, and when to look again.
//!
//! Pure: what is seen and what was kept come in, what to keep, whom to tell and when to look again go out. A restart does not forget
//! how long something has gone on, because the memory is committed with what is said. Called by the engine, at instants that this
//! file names: nothing polls.

use super::alerts::{AlertRule, AlertRules, Firing, Notice};
use super::book::{Book, Job, Line, Retries, Since, Window};
use crate::model::id::JobId;
use crate::model::shown::Shown;
use crate::model::time::{Wall, millis};
use std::time::Duration;

/// At most this many failing jobs are told one by one; when so many fail, another rule speaks about all of them.
const MOST_JOBS: usize = 1_000;
/// The usual share of retries is that of about this many attempts.
const USUAL: f64 = 10_000.0;

/// A job that has just failed often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Which job.
    pub job: JobId,
    /// Its kind.
    pub kind: String,
    /// Its key.
    pub key: String,
    /// Attempts so far.
    pub attempts: u32,
}

/// The first job in line of a kind that is not paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct First {
    /// The kind.
    pub kind: String,
    /// Which job.
    pub job: JobId,
    /// Since when it is ready, if that is known.
    pub since: Option<Wall>,
}

/// What is seen at one look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// When.
    pub now: Wall,
    /// Dead letters there are.
    pub letters: u64,
    /// When the oldest of them was created, as far as it was looked for.
    pub oldest_letter: Option<Wall>,
    /// The first in line, by kind.
    pub ready: Vec<First>,
    /// Topics of the outbox that are not paused and have undelivered messages, each with the age of the oldest.
    pub unsent: Vec<(String, Wall)>,
    /// Those of them that this process has no publisher for.
    pub unserved: Vec<String>,
    /// Topics of which that is not known yet: what was said of them stands.
    pub unclear: Vec<String>,
    /// Jobs that failed often since the last look.
    pub failing: Vec<Failing>,
    /// Of the jobs that were told: those that are over.
    pub over: Vec<JobId>,
    /// Attempts that ended since the last look.
    pub attempts: u64,
    /// Those of them that were not the first of their job.
    pub retries: u64,
    /// The file may be an older copy, and nobody has lifted its review: the epoch in which that was found.
    pub older: Option<u32>,
    /// The disk is full.
    pub full: bool,
}

/// What follows from one look.
#[derive(Clone, Debug, PartialEq)]
pub struct Looked {
    /// To be kept before anybody is told.
    pub book: Book,
    /// Whom to tell what.
    pub notices: Vec<Notice>,
    /// When to look again, if nothing happens before.
    pub next: Option<Wall>,
}

/// One look.
pub fn look(rules: &AlertRules, book: &Book, seen: &Seen) -> Looked {
    let mut out = Looked { book: book.clone(), notices: Vec::new(), next: None };
    dead_letters(rules, seen, &mut out);
    failing(rules, seen, &mut out);
    line(rules, seen, &mut out);
    outbox(rules, seen, &mut out);
    retries(rules, seen, &mut out);
    older_copy(seen, &mut out);
    disk_full(seen, &mut out);
    out
}

impl Looked {
    fn again(&mut self, at: Wall) {
        self.next = Some(self.next.map_or(at, |n| n.min(at)));
    }
}

/// The end of something that was told by a rule that is switched off since.
fn off() -> String {
    "this is not watched any more: the rule is switched off".to_owned()
}

/// What a rule says about the whole queue.
fn of_the_queue(rule: AlertRule, since: Wall, text: String) -> Firing {
    Firing { rule, kind: None, job: None, key: None, topic: None, since, text }
}

fn dead_letters(rules: &AlertRules, seen: &Seen, out: &mut Looked) {
    let say = |since: Wall| {
        let text = match seen.letters {
            0 => "no dead letter waits any more".to_owned(),
            n => format!(
                "{n} waiting for a decision: there has been a dead letter for {}",
                minutes(seen.now.since(since))
            ),
        };
        of_the_queue(AlertRule::DeadLetters, since, text)
    };
    let Some(limit) = rules.dead_letters else {
        if let Some(Since { since, told: true }) = out.book.letters.take() {
            out.notices.push(Notice::Resolved(Firing { text: off(), ..say(since) }));
        }
        return;
    };
    if seen.letters == 0 {
        if let Some(Since { since, told: true }) = out.book.letters.take() {
            out.notices.push(Notice::Resolved(say(since)));
        }
        return;
    }
    let began = seen.oldest_letter.unwrap_or(seen.now).min(seen.now);
    let mut state = out.book.letters.unwrap_or(Since { since: began, told: false });
    // A clock that was set back must not make somebody wait until it is there again.
    state.since = state.since.min(seen.now);
    let due = state.since.after(limit);
    if !state.told && due <= seen.now {
        state.told = true;
        out.notices.push(Notice::Fired(say(state.since)));
    } else if !state.told {
        out.again(due);
    }
    out.book.letters = Some(state);
}

fn failing(rules: &AlertRules, seen: &Seen, out: &mut Looked) {
    if rules.failures.is_none() {
        let told = std::mem::take(&mut out.book.jobs);
        out.notices.extend(told.iter().map(|(id, job)| Notice::Resolved(same_job(*id, job, off()))));
        return;
    }
    for job in &seen.over {
        if let Some(was) = out.book.jobs.remove(job) {
            let text = format!("{} is over", Shown(&format!("{}/{}", was.kind, was.key)));
            out.notices.push(Notice::Resolved(same_job(*job, &was, text)));
        }
    }
    for f in &seen.failing {
        if out.book.jobs.len() >= MOST_JOBS || out.book.jobs.contains_key(&f.job) || seen.over.contains(&f.job) {
            continue;
        }
        let now = Job { kind: f.kind.clone(), key: f.key.clone(), since: seen.now };
        let text = format!("{} has failed {} times", Shown(&format!("{}/{}", f.kind, f.key)), f.attempts);
        out.notices.push(Notice::Fired(same_job(f.job, &now, text)));
        out.book.jobs.insert(f.job, now);
    }
}

fn same_job(id: JobId, job: &Job, text: String) -> Firing {
    Firing {
        rule: AlertRule::SameJobFailing,
        kind: Some(job.kind.clone()),
        job: Some(id),
        key: Some(job.key.clone()),
        topic: None,
        since: job.since,
        text,
    }
}

fn line(rules: &AlertRules, seen: &Seen, out: &mut Looked) {
    let before = std::mem::take(&mut out.book.ready);
    let say = |kind: &str, line: &Line, text: String| Firing {
        rule: AlertRule::OldestJob,
        kind: Some(kind.to_owned()),
        job: Some(line.job),
        key: None,
        topic: None,
        since: line.since,
        text,
    };
    let Some(limit) = rules.oldest_job else {
        let told = before.iter().filter(|(_, l)| l.told);
        out.notices.extend(told.map(|(kind, l)| Notice::Resolved(say(kind, l, off()))));
        return;
    };
    for first in &seen.ready {
        let was = before.get(&first.kind);
        let known = was.filter(|l| l.job == first.job).map(|l| l.since);
        let since = first.since.or(known).unwrap_or(seen.now).min(seen.now);
        let mut line = Line { job: first.job, since, told: was.is_some_and(|l| l.told) };
        let due = since.after(limit);
        if due <= seen.now {
            if !std::mem::replace(&mut line.told, true) {
                let text = format!(
                    "job {} of kind {} could run and has waited for {}",
                    line.job,
                    first.kind,
                    minutes(seen.now.since(since))
                );
                out.notices.push(Notice::Fired(say(&first.kind, &line, text)));
            }
        } else {
            if std::mem::replace(&mut line.told, false) {
                out.notices.push(Notice::Resolved(say(
                    &first.kind,
                    &line,
                    format!("jobs of kind {} run again", first.kind),
                )));
            }
            out.again(due);
        }
        out.book.ready.insert(first.kind.clone(), line);
    }
    for (kind, line) in before.iter().filter(|(kind, l)| l.told && !out.book.ready.contains_key(*kind)) {
        let text = format!("no job of kind {kind} waits any more, or it is paused");
        out.notices.push(Notice::Resolved(say(kind, line, text)));
    }
}

/// By the oldest message, whoever holds it up: a broker, a missing publisher, a person who is asked.
fn outbox(rules: &AlertRules, seen: &Seen, out: &mut Looked) {
    let before = std::mem::take(&mut out.book.outbox);
    let say = |topic: &str, since: Wall, text: String| Firing {
        rule: AlertRule::OutboxStuck,
        kind: None,
        job: None,
        key: None,
        topic: Some(topic.to_owned()),
        since,
        text,
    };
    let Some(limit) = rules.outbox else {
        let told = before.iter().filter(|(_, t)| t.told);
        out.notices.extend(told.map(|(topic, t)| Notice::Resolved(say(topic, t.since, off()))));
        return;
    };
    for (topic, oldest) in &seen.unsent {
        let since = (*oldest).min(seen.now);
        let was = before.get(topic).is_some_and(|t| t.told);
        let told = since.after(limit) <= seen.now;
        if told && !was {
            let waits = format!("topic {topic:?} has an undelivered message for {}", minutes(seen.now.since(since)));
            let text = match seen.unserved.contains(topic) {
                true => format!("{waits}, and this process has no publisher for it"),
                false => waits,
            };
            out.notices.push(Notice::Fired(say(topic, since, text)));
        }
        if was && !told {
            let text = format!("topic {topic:?} delivers again");
            out.notices.push(Notice::Resolved(say(topic, since, text)));
        }
        if !told {
            out.again(since.after(limit));
        }
        out.book.outbox.insert(topic.clone(), Since { since, told });
    }
    for topic in &seen.unclear {
        if let Some(was) = before.get(topic) {
            out.book.outbox.insert(topic.clone(), *was);
        }
    }
    for (topic, was) in before.iter().filter(|(topic, t)| t.told && !out.book.outbox.contains_key(*topic)) {
        let text = format!("topic {topic:?} has nothing undelivered any more, or it is paused");
        out.notices.push(Notice::Resolved(say(topic, was.since, text)));
    }
}

fn older_copy(seen: &Seen, out: &mut Looked) {
    let say = |since: Wall, text: &str| of_the_queue(AlertRule::OlderCopy, since, text.to_owned());
    match (seen.older, out.book.older) {
        // Told before: it was told of the copy that lies here now, before that was made.
        (Some(epoch), before) if before.is_none_or(|(_, told)| told != epoch) => {
            out.book.older = Some((seen.now, epoch));
            let text = "the file may be an older copy, or a new one in the place of another, so what happened before is not known \
                        here: everything was paused, and what runs takes nothing for new. Compare with the providers, then say so \
                        (lift_review) and resume everything";
            out.notices.push(Notice::Fired(say(seen.now, text)));
        }
        (None, Some((since, _))) => {
            out.book.older = None;
            out.notices.push(Notice::Resolved(say(
                since,
                "what may be an older copy was compared with the providers: somebody lifted its review",
            )));
        }
        (Some(_), _) | (None, None) => {}
    }
}

fn disk_full(seen: &Seen, out: &mut Looked) {
    let say = |since: Wall, text: &str| of_the_queue(AlertRule::DiskFull, since, text.to_owned());
    match (seen.full, out.book.full) {
        (true, None) => {
            out.book.full = Some(seen.now);
            let text = "the disk is full: nothing new is taken and no job begins; what is under way is recorded in a reserve. Make \
                        room: the queue goes on by itself";
            out.notices.push(Notice::Fired(say(seen.now, text)));
        }
        (false, Some(since)) => {
            out.book.full = None;
            out.notices.push(Notice::Resolved(say(since, "the disk has room again: the queue goes on")));
        }
        (true, Some(_)) | (false, None) => {}
    }
}

fn retries(rules: &AlertRules, seen: &Seen, out: &mut Looked) {
    let r = &mut out.book.retries;
    let Some(rule) = rules.retry_ratio else {
        r.window = None;
        if let Some(since) = r.told.take() {
            let (rule, text) = (AlertRule::RetryRatio, off());
            let firing = of_the_queue(rule, since, text);
            out.notices.push(Notice::Resolved(firing));
        }
        return;
    };
    let quiet = r.window.is_none();
    count(r, seen.now, seen.attempts, seen.retries);
    let Some(window) = &r.window else { return };
    if quiet {
        out.again(seen.now.after(rule.window));
        return;
    }
    let due = window.since.after(rule.window);
    // A clock that was set back must not keep a window open for ever.
    if seen.now < due && window.since <= seen.now {
        out.again(due);
        return;
    }
    let Window { attempts, retries, since } = *window;
    let (share, many) = (ratio(retries, attempts), attempts >= rule.attempts);
    let usually = if r.usual_attempts > 0.0 { r.usual_retries / r.usual_attempts } else { 0.0 };
    let jumped = many && share >= rule.share && share >= rule.times_usual * usually;
    let say = |since: Wall| {
        let text =
            format!("{retries} of {attempts} attempts were retries; usually it is {:.0} in 100", usually * 100.0);
        of_the_queue(AlertRule::RetryRatio, since, text)
    };
    match r.told {
        None if jumped => {
            r.told = Some(since);
            out.notices.push(Notice::Fired(say(since)));
        }
        Some(told) if retries == 0 || (many && share < rule.share) => {
            r.told = None;
            out.notices.push(Notice::Resolved(say(told)));
        }
        None | Some(_) => {}
    }
    if !jumped {
        usual(r, attempts, retries);
    }
    r.window = (retries > 0 || r.told.is_some()).then_some(Window { since: seen.now, attempts: 0, retries: 0 });
    if r.window.is_some() {
        out.again(seen.now.after(rule.window));
    }
}

/// A retry ends the quiet: what was before it is the usual, what comes now is the window.
fn count(r: &mut Retries, now: Wall, attempts: u64, retries: u64) {
    if let Some(window) = &mut r.window {
        window.attempts = window.attempts.saturating_add(attempts);
        window.retries = window.retries.saturating_add(retries);
        return;
    }
    usual(r, attempts, retries);
    if retries > 0 || r.told.is_some() {
        r.window = Some(Window { since: now, attempts: 0, retries: 0 });
    }
}

/// Counts attempts for a later look.
pub fn counted(mut book: Book, now: Wall, attempts: u64, retries: u64) -> Book {
    count(&mut book.retries, now, attempts, retries);
    book
}

/// Of so many more jobs it can be told that they fail.
pub fn room(book: &Book) -> usize {
    MOST_JOBS.saturating_sub(book.jobs.len())
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no more than 15 digits")]
fn usual(r: &mut Retries, attempts: u64, retries: u64) {
    r.usual_attempts += attempts as f64;
    r.usual_retries += retries as f64;
    if r.usual_attempts > USUAL {
        // The older half fades.
        r.usual_attempts /= 2.0;
        r.usual_retries /= 2.0;
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no more than 15 digits")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn minutes(ms: u64) -> String {
    let minutes = ms / millis(Duration::from_secs(60));
    if minutes == 1 { "1 minute".to_owned() } else { format!("{minutes} minutes") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    /// A rule under a clock by hand: each look keeps the book as a store would, bytes and all.
    struct World {
        rules: AlertRules,
        book: Vec<u8>,
        now: u64,
    }
    impl World {
        fn new() -> Self {
            Self {
                rules: AlertRules::default(),
                book: serde_json::to_vec(&Book::default()).expect("plain values"),
                now: 0,
            }
        }
        fn look(&mut self, at_minute: u64, seen: Seen) -> (Vec<String>, Option<u64>) {
            self.now = at_minute * MINUTE;
            let book: Book = serde_json::from_slice(&self.book).expect("it was written so");
            let looked = look(&self.rules, &book, &Seen { now: Wall(self.now), ..seen });
            self.book = serde_json::to_vec(&looked.book).expect("plain values");
            let said = looked.notices.iter().map(|n| match n {
                Notice::Fired(f) => format!("{} {}", f.rule.as_str(), f.text),
                Notice::Resolved(f) => format!("over {}", f.rule.as_str()),
            });
            (said.collect(), looked.next.map(|w| w.0 / MINUTE))
        }
    }
    fn letters(n: u64, since: u64) -> Seen {
        Seen { letters: n, oldest_letter: (n > 0).then_some(Wall(since * MINUTE)), ..Seen::default() }
    }
    fn ready(job: u64, since: Option<u64>) -> Seen {
        let first = First { kind: "k".into(), job: JobId::from_number(job), since: since.map(|m| Wall(m * MINUTE)) };
        Seen { ready: vec![first], ..Seen::default() }
    }
    fn ended(attempts: u64, retries: u64) -> Seen {
        Seen { attempts, retries, ..Seen::default() }
    }
    fn none() -> Vec<String> {
        Vec::new()
    }

    /// Letters come and go, but there is always one: after 30 minutes it is said, once, whatever restarts come between; and that it
    /// is over is said once, too.
    #[test]
    fn letters_without_a_break_for_30_minutes_fire_once_and_resolve_once() {
        let mut w = World::new();
        assert_eq!(w.look(10, letters(1, 10)), (none(), Some(40)));
        assert_eq!(w.look(39, letters(3, 20)), (none(), Some(40)), "the first one was answered; it has been since 10");
        let (said, next) = w.look(40, letters(2, 35));
        assert_eq!(said, ["dead-letters 2 waiting for a decision: there has been a dead letter for 30 minutes"]);
        assert_eq!(next, None, "nothing to look for until something happens");
        assert_eq!(w.look(90, letters(2, 35)), (none(), None));
        assert_eq!(w.look(91, letters(0, 0)), (vec!["over dead-letters".to_owned()], None));
        assert_eq!(w.look(92, letters(0, 0)), (none(), None));
        assert_eq!(w.look(100, letters(1, 100)), (none(), Some(130)), "a new half hour");
        assert_eq!(w.look(101, letters(0, 0)), (none(), None), "answered in time: nobody was told, nothing is over");
    }

    /// The clock was ahead by a year when the letter came, and is set right: nobody waits that year.
    #[test]
    fn a_clock_that_was_set_back_silences_nothing() {
        let mut w = World::new();
        let year = 365 * 24 * 60;
        assert_eq!(w.look(year, letters(1, year)), (none(), Some(year + 30)));
        assert_eq!(w.look(10, letters(1, year)), (none(), Some(40)));
        assert_eq!(w.look(40, letters(1, year)).0.len(), 1);
    }

    /// The fifth failure of a job is told once, and its end once.
    #[test]
    fn the_same_job_is_told_once() {
        let mut w = World::new();
        let f = Failing { job: JobId::from_number(7), kind: "k".into(), key: "a".into(), attempts: 5 };
        let seen = || Seen { failing: vec![f.clone()], ..Seen::default() };
        assert_eq!(w.look(1, seen()).0, ["same-job-failing k/a has failed 5 times"]);
        assert_eq!(w.look(2, seen()).0, none());
        let over = || Seen { over: vec![JobId::from_number(7)], ..Seen::default() };
        assert_eq!(w.look(3, over()).0, ["over same-job-failing"]);
        assert_eq!(w.look(4, over()).0, none());
    }

    /// A job that is ready and not claimed: told after its time, not again for the next one in the same line, over when the line
    /// moves. One that was just promoted is not as old as its row.
    #[test]
    fn the_first_in_line_is_told_when_it_waits_too_long() {
        let mut w = World::new();
        assert_eq!(w.look(0, ready(1, Some(0))), (none(), Some(15)));
        assert_eq!(w.look(14, ready(2, None)), (none(), Some(29)), "another one, ready since nobody knows when");
        assert_eq!(
            w.look(29, ready(2, None)).0,
            ["oldest-job job 2 of kind k could run and has waited for 15 minutes"]
        );
        assert_eq!(w.look(60, ready(3, Some(30))), (none(), None));
        assert_eq!(w.look(61, ready(4, Some(60))), (vec!["over oldest-job".to_owned()], Some(75)));
        assert_eq!(w.look(75, ready(4, Some(60))).0.len(), 1);
        assert_eq!(w.look(76, Seen::default()), (vec!["over oldest-job".to_owned()], None));
    }

    /// A broker is away: told once after a quarter of an hour, per topic, and over when the oldest message is young again or gone.
    #[test]
    fn an_undelivered_message_is_told_per_topic() {
        let mut w = World::new();
        let unsent = |topics: &[(&str, u64)]| Seen {
            unsent: topics.iter().map(|(t, m)| ((*t).to_owned(), Wall(m * MINUTE))).collect(),
            ..Seen::default()
        };
        assert_eq!(w.look(0, unsent(&[("a", 0), ("b", 0)])), (none(), Some(15)));
        let (said, next) = w.look(15, unsent(&[("a", 0), ("b", 10)]));
        assert_eq!(said, ["outbox-stuck topic \"a\" has an undelivered message for 15 minutes"]);
        assert_eq!(next, Some(25));
        assert_eq!(w.look(20, unsent(&[("a", 0), ("b", 19)])), (none(), Some(34)));
        assert_eq!(w.look(21, unsent(&[("a", 20)])).0, ["over outbox-stuck"]);
        assert_eq!(w.look(40, unsent(&[("a", 20)])).0.len(), 1);
        let unclear = Seen { unclear: vec!["a".into(), "c".into()], ..Seen::default() };
        assert_eq!(w.look(41, unclear), (none(), None), "it is still being looked for: nothing is over yet");
        assert_eq!(w.look(42, unsent(&[])), (vec!["over outbox-stuck".to_owned()], None));
        let nobody = Seen { unserved: vec!["b".into()], ..unsent(&[("b", 45)]) };
        let said = w.look(60, nobody).0;
        let text = "outbox-stuck topic \"b\" has an undelivered message for 15 minutes, and this process has no publisher for it";
        assert_eq!(said, [text]);
    }

    /// One retry in ten is usual here; then half of the attempts are retries. It is told once the window is over, and over when a
    /// window is calm again. Few attempts say nothing.
    #[test]
    fn a_jump_of_the_retry_ratio_is_told_and_over_when_it_is_calm() {
        let mut w = World::new();
        assert_eq!(w.look(0, ended(500, 50)), (none(), Some(10)), "a window opens");
        assert_eq!(w.look(5, ended(30, 3)), (none(), Some(10)));
        assert_eq!(w.look(10, ended(30, 3)), (none(), Some(20)), "as usual");
        let (said, next) = w.look(20, ended(40, 20));
        assert_eq!(
            (said, next),
            (vec!["retry-ratio 20 of 40 attempts were retries; usually it is 10 in 100".to_owned()], Some(30))
        );
        assert_eq!(w.look(30, ended(10, 9)), (none(), Some(40)), "too few to say that it is over");
        assert_eq!(w.look(40, ended(100, 10)), (vec!["over retry-ratio".to_owned()], Some(50)));
        assert_eq!(w.look(50, ended(19, 19)), (none(), Some(60)), "too few to say that it has come");
        assert_eq!(w.look(60, ended(0, 0)), (none(), None), "quiet: no window, no look");
    }

    /// An older copy of the file was put back: told at once and once, until somebody has lifted its review.
    #[test]
    fn an_older_copy_is_told_until_its_review_is_lifted() {
        let mut w = World::new();
        let older = |older| Seen { older, ..Seen::default() };
        assert_eq!(w.look(1, older(None)), (none(), None));
        let said = w.look(2, older(Some(7))).0;
        assert!(said.len() == 1 && said[0].starts_with("older-copy the file may be an older copy"), "{said:?}");
        assert_eq!(w.look(3, older(Some(7))), (none(), None));
        // The copy was made while this was told, and is put back later.
        assert_eq!(w.look(4, older(Some(31))).0.len(), 1);
        assert_eq!(w.look(5, older(None)).0, ["over older-copy"]);
        assert_eq!(w.look(6, older(None)), (none(), None));
    }

    /// Told when it is full and when there is room, once each.
    #[test]
    fn a_full_disk_is_told_until_there_is_room() {
        let mut w = World::new();
        let full = |full| Seen { full, ..Seen::default() };
        assert_eq!(w.look(1, full(false)), (none(), None));
        let said = w.look(2, full(true)).0;
        assert!(said.len() == 1 && said[0].starts_with("disk-full the disk is full"), "{said:?}");
        assert_eq!(w.look(3, full(true)), (none(), None));
        assert_eq!(w.look(4, full(false)).0, ["over disk-full"]);
        assert_eq!(w.look(5, full(false)), (none(), None));
    }

    /// A rule that is switched off says nothing and asks for no look.
    #[test]
    fn rules_can_be_switched_off() {
        let mut w = World::new();
        w.rules = AlertRules::new().dead_letters(None).failures(None).oldest_job(None).outbox(None).retry_ratio(None);
        assert_eq!(w.look(100, letters(9, 0)), (none(), None));
        assert_eq!(w.look(200, ready(1, Some(0))), (none(), None));
        assert_eq!(w.look(300, ended(100, 100)), (none(), None));
        let unsent = Seen { unsent: vec![("paid".into(), Wall(0))], ..Seen::default() };
        assert_eq!(w.look(400, unsent), (none(), None));
    }

    /// Everything speaks, and the next version of the app switches the rules off: nobody waits for the end of something that is not
    /// watched any more.
    #[test]
    fn what_was_told_is_over_when_its_rule_is_switched_off() {
        let mut w = World::new();
        let all = |minute: u64| Seen {
            letters: 1,
            oldest_letter: Some(Wall(0)),
            ready: ready(1, Some(0)).ready,
            unsent: vec![("paid".into(), Wall(0))],
            failing: vec![Failing { job: JobId::from_number(7), kind: "k".into(), key: "a".into(), attempts: 5 }],
            attempts: minute,
            retries: minute,
            ..Seen::default()
        };
        assert_eq!(w.look(40, all(100)).0.len(), 4);
        assert_eq!(w.look(50, all(100)).0, none(), "all of them are retries, as usual");
        w.rules = AlertRules::new().dead_letters(None).failures(None).oldest_job(None).outbox(None).retry_ratio(None);
        let mut said = w.look(60, all(100)).0;
        said.sort();
        assert_eq!(said, ["over dead-letters", "over oldest-job", "over outbox-stuck", "over same-job-failing"]);
        assert_eq!(w.look(70, all(100)), (none(), None));
    }

    /// A rule speaks once about each subject: two of them are never taken for one.
    #[test]
    fn each_subject_has_a_name_of_its_own() {
        let job = |rule, n| Firing {
            rule,
            kind: Some("k".into()),
            job: Some(JobId::from_number(n)),
            key: None,
            topic: None,
            since: Wall(0),
            text: String::new(),
        };
        // The first in line changes, what is told is the line.
        assert_eq!(job(AlertRule::OldestJob, 1).subject(), job(AlertRule::OldestJob, 2).subject());
        assert_ne!(job(AlertRule::SameJobFailing, 1).subject(), job(AlertRule::SameJobFailing, 2).subject());
        let bare = |rule| Firing { kind: None, job: None, ..job(rule, 1) };
        let names: std::collections::BTreeSet<_> = AlertRule::ALL.iter().map(|rule| bare(*rule).subject()).collect();
        assert_eq!(names.len(), AlertRule::ALL.len());
        assert_eq!(Firing { topic: Some("t".into()), ..bare(AlertRule::OutboxStuck) }.subject(), "outbox-stuck/t");
    }
}

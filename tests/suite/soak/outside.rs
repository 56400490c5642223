//! What no kill can touch: the providers with their ledger, the receiver of the messages, and what the child was told and said. It
//! answers the child line by line, and judges at the end: nothing lost, nothing done twice.

use super::app::{What, has_news, what};
use super::child::ROUND;
use super::levels::{Sample, measure};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

/// Calls of one effect that may go wrong; after these the provider is well.
const TROUBLES: u32 = 3;

/// What a provider knows of one request.
#[derive(Default)]
struct Asked {
    calls: u32,
    /// The key of each time that it happened.
    happened: Vec<String>,
}

#[derive(Default)]
pub(super) struct Outside {
    file: PathBuf,
    /// Jobs below were handed in, or at least tried.
    tried: u64,
    /// Jobs below were acknowledged.
    pub(super) acked: u64,
    pub(super) wall: u64,
    pub(super) steady: u64,
    pub(super) life: usize,
    charges: HashMap<u64, Asked>,
    mails: HashMap<u64, Asked>,
    /// Job -> the tokens with which it finished.
    done: HashMap<u64, Vec<u64>>,
    dropping: HashSet<u64>,
    dropped: HashSet<u64>,
    /// Message -> how often it came.
    messages: HashMap<String, u32>,
    last_round: Option<u64>,
    /// The child is told at its next rest that it is enough.
    pub(super) enough: bool,
    /// What the last child found: jobs and messages that had not ended, those known when all had ended, and those known days later.
    over: Option<[u64; 3]>,
    pub(super) samples: Vec<Sample>,
    /// Things that were said or done, by name.
    pub(super) counts: BTreeMap<String, u64>,
}

/// What was found at the end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) lost: Vec<String>,
    pub(super) repeated: Vec<String>,
}

impl Outside {
    /// A queue in this file, from this calendar on.
    pub(super) fn new(file: PathBuf, wall: u64) -> Self {
        Self { file, wall, ..Self::default() }
    }
    pub(super) fn count(&mut self, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += 1;
    }
    pub(super) fn counted(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// One line of the child, and the answer.
    pub(super) fn hear(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["call", effect, n, key] => return self.call(effect, number(n), key),
            ["find", effect, n] => return self.find(effect, number(n)),
            ["deliver", id] => return self.deliver(id).to_owned(),
            ["rest", pid, open, rows] => return self.rest(number(pid), number(open), number(rows)).to_owned(),
            ["try", first] => self.tried = self.tried.max(number(first) + ROUND),
            ["ack", first] => {
                assert_eq!(number(first), self.acked, "rounds are handed in one after the other");
                self.acked += ROUND;
                self.count("rounds");
            }
            ["done", ref rows @ ..] => {
                for row in rows {
                    let (n, token) = row.split_once(':').expect("a row has two numbers");
                    let tokens = self.done.entry(number(n)).or_default();
                    if !tokens.contains(&number(token)) {
                        tokens.push(number(token));
                    }
                }
            }
            ["dropping", n] => drop(self.dropping.insert(number(n))),
            ["dropped", n] => drop(self.dropped.insert(number(n))),
            ["clock", what, wall, steady] => {
                (self.wall, self.steady) = (number(wall), number(steady));
                self.count(what);
            }
            ["letter", why] => self.count(format!("letter {why}")),
            ["over", open, before, known] => self.over = Some([open, before, known].map(number)),
            ["opening" | "open" | "again" | "outlasted"] => self.count(line),
            _ => panic!("not a line of the child: {line:?}"),
        }
        "ok".to_owned()
    }

    fn asked(&mut self, effect: &str, n: u64) -> &mut Asked {
        match effect {
            "charge" => self.charges.entry(n).or_default(),
            "mail" => self.mails.entry(n).or_default(),
            _ => panic!("no provider of {effect:?}"),
        }
    }

    /// The provider of charges honours keys, the one of mails does it whenever it is asked. Both do it and lose the answer now and
    /// then, lose the request, refuse, or cannot be reached.
    fn call(&mut self, effect: &str, n: u64, key: &str) -> String {
        let asked = self.asked(effect, n);
        asked.calls += 1;
        let trouble = match asked.calls {
            0..=TROUBLES => fastrand::Rng::with_seed(n << 8 | u64::from(asked.calls)).u8(0..32),
            _ => u8::MAX,
        };
        let known = effect == "charge" && asked.happened.iter().any(|k| k == key);
        let (answer, counts) = match trouble {
            0..=3 => ("lost", "answers lost"),
            4 => ("lost", "requests lost"),
            5 => ("away", "not sent"),
            6 if !known => ("no", "refused"),
            _ => ("ok", "answered"),
        };
        if !known && matches!(trouble, 0..=3 | 7..) {
            asked.happened.push(key.to_owned());
            self.count("effects");
        }
        self.count(counts);
        if known {
            self.count("keys known");
        }
        if answer == "ok" { format!("ok {effect}-{n}") } else { answer.to_owned() }
    }

    fn find(&mut self, effect: &str, n: u64) -> String {
        let happened = !self.asked(effect, n).happened.is_empty();
        self.count("probes");
        if happened { format!("ok {effect}-{n}") } else { "none".to_owned() }
    }

    /// The receiver takes it, and its acknowledgement is lost now and then.
    fn deliver(&mut self, id: &str) -> &'static str {
        let times = self.messages.entry(id.to_owned()).or_default();
        *times += 1;
        let times = *times;
        if let Some(round) = id.strip_prefix("round/").map(number)
            && times == 1
        {
            assert!(self.last_round < Some(round), "round {round} comes behind {:?}", self.last_round);
            self.last_round = Some(round);
        }
        self.count("deliveries");
        if times == 1 && fastrand::Rng::with_seed(self.counted("deliveries")).u8(0..16) == 0 { "lost" } else { "ok" }
    }

    fn rest(&mut self, pid: u64, open: u64, rows: u64) -> &'static str {
        let (rounds, wall) = (self.counted("rounds"), self.wall);
        let at = Sample { life: self.life, rounds, wall, jobs: self.acked, open, rows, ..measure(pid, &self.file) };
        self.samples.push(at);
        if self.enough { "end" } else { "go" }
    }

    /// Every job that was acknowledged finished once, or was dropped or thrown away; every effect happened once for each job that
    /// finished; every message of what was committed came, and none of what was not.
    pub(super) fn judge(&self) -> Verdict {
        let mut verdict = Verdict::default();
        for n in 0..self.tried {
            let tokens = self.done.get(&n).map_or(&[][..], Vec::as_slice);
            let (least, most) = match what(n) {
                What::Doomed => (0, 0),
                _ if self.dropped.contains(&n) => (0, 0),
                _ if self.dropping.contains(&n) || n >= self.acked => (0, 1),
                _ => (1, 1),
            };
            verdict.compare(&format!("job {n} finished, under {tokens:?}"), tokens.len(), least, most);
            let finished = tokens.len().min(1);
            for (effect, asked) in [("charge", &self.charges), ("mail", &self.mails)] {
                let happened = asked.get(&n).map_or(0, |a| a.happened.len());
                let is_due = matches!((what(n), effect), (What::Pay, "charge") | (What::Post, "mail"));
                let due = if is_due { finished } else { 0 };
                verdict.compare(
                    &format!("the {effect} of job {n}"),
                    happened,
                    due,
                    due.max(usize::from(n >= self.acked)),
                );
            }
            let came = usize::from(self.messages.contains_key(&format!("done/{n}")));
            let due = if has_news(n) { finished } else { 0 };
            verdict.compare(&format!("news of job {n}"), came, due, due);
        }
        for first in (0..self.acked).step_by(ROUND as usize) {
            let came = usize::from(self.messages.contains_key(&format!("round/{first}")));
            verdict.compare(&format!("news of round {first}"), came, 1, 1);
        }
        match self.over {
            Some([open, before, known]) => {
                verdict.compare("jobs and messages that never end", open as usize, 0, 0);
                verdict.compare("jobs known at their end", before as usize, 1, usize::MAX);
                verdict.compare("jobs never forgotten", known as usize, 0, 0);
            }
            None => verdict.lost.push("the last child never came to its end".to_owned()),
        }
        verdict
    }
}

impl Verdict {
    fn compare(&mut self, what: &str, times: usize, least: usize, most: usize) {
        if times < least {
            self.lost.push(format!("{what}: {times} times"));
        }
        if times > most {
            self.repeated.push(format!("{what}: {times} times"));
        }
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text:?}"))
}

/// A judge that finds nothing is no judge: of a history that is in order one thing is spoilt after the other, and each is found.
#[test]
fn a_job_that_is_lost_and_an_effect_that_happens_twice_are_found() {
    let good = || {
        let mut outside = Outside::new(PathBuf::new(), 0);
        outside.hear("try 0");
        outside.hear("ack 0");
        outside.hear("deliver round/0");
        for n in 0..ROUND {
            let effect = match what(n) {
                What::Pay => Some("charge"),
                What::Post => Some("mail"),
                _ => None,
            };
            while effect.is_some_and(|e| outside.find(e, n) == "none") {
                outside.hear(&format!("call {} {n} key", effect.expect("there is one")));
            }
            outside.hear(&format!("done {n}:{}", n + 1));
            if has_news(n) {
                outside.hear(&format!("deliver done/{n}"));
            }
        }
        outside.hear("over 0 9 0");
        outside
    };
    assert_eq!(good().judge(), Verdict::default());
    let spoilt = |spoil: fn(&mut Outside)| {
        let mut outside = good();
        spoil(&mut outside);
        let Verdict { lost, repeated } = outside.judge();
        (lost.len(), repeated.len())
    };
    let pay = |o: &mut Outside| o.charges.get_mut(&5).expect("job 5 pays").happened.push("another key".to_owned());
    assert_eq!(what(5), What::Pay);
    assert_eq!(spoilt(pay), (0, 1));
    assert_eq!(spoilt(|o| drop(o.charges.remove(&5))), (1, 0));
    assert_eq!(spoilt(|o| drop(o.done.remove(&1))), (1, 0));
    assert_eq!(spoilt(|o| drop(o.hear("done 1:99"))), (0, 1));
    assert_eq!(spoilt(|o| assert!(o.messages.remove("done/3").is_some())), (1, 0));
    assert_eq!(spoilt(|o| assert!(o.messages.remove("round/0").is_some())), (1, 0));
    assert_eq!(spoilt(|o| assert!(o.messages.insert("done/1".to_owned(), 1).is_none())), (0, 1));
    assert_eq!(spoilt(|o| o.over = Some([0, 9, 7])), (0, 1));
    assert_eq!(spoilt(|o| o.over = None), (1, 0));
}

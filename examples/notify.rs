//! The double-notify story: a customer is told once, although the first attempt times out after the message went out; and who is
//! told when nobody can know.
//!
//! ```text
//! cargo run --example notify               to watch
//! cargo run --example notify -- --once     quick, as in CI
//! ```
//! It ends with an error if anybody was told twice or never, or if the person in charge was not asked exactly once.
#![expect(clippy::disallowed_methods, reason = "a program of its own: it waits between its scenes")]

use onceward::observe::AttemptLine;
use onceward::prelude::*;
use onceward::{Alert, AlertEvent, Backoff, Builder, Decision, LookUp, Sink, State};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

// ---- what is asked for -----------------------------------------------------------------------------------------------------

/// Tell a customer that the money came. The payload is the intent: one payment, one message.
#[derive(Serialize, Deserialize)]
pub(crate) struct Notify {
    pub(crate) payment: u64,
    pub(crate) by: By,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum By {
    /// A push company that can be asked what it has sent.
    Push,
    /// A telephone company that cannot.
    Sms,
}

impl Job for Notify {
    const KIND: &'static str = "notify-payment";
    fn key(&self) -> JobKey {
        format!("payment/{}", self.payment).into()
    }
    fn title(&self) -> String {
        format!("Tell the customer about payment {}", self.payment)
    }
    fn effects() -> Vec<EffectCard> {
        vec![Push::card(), Sms::card()]
    }
    fn policy() -> Policy {
        // In real life the defaults for risky kinds: 1, 5 and 15 minutes, then a person.
        Policy::default()
            .retries(1)
            .backoff(Backoff::steps([Duration::from_millis(50)]))
            .success("the customer got one message about the payment")
            .review("a text message nobody knows about; a number that is refused")
    }
}

#[derive(Serialize, Deserialize)]
struct Push {
    payment: u64,
}

impl Effect for Push {
    type Result = String;
    const NAME: &'static str = "push";
    const RISK: Risk = Risk::Email;
    fn says(&self) -> String {
        format!("Push \"payment {} has arrived\"", self.payment)
    }
    fn recovery() -> Recovery {
        Recovery::probe(Duration::from_millis(500)) // in real life rather a minute
    }
    fn reference(done: &String) -> Option<String> {
        Some(done.clone())
    }
}

#[derive(Serialize, Deserialize)]
struct Sms {
    payment: u64,
}

impl Effect for Sms {
    type Result = String;
    const NAME: &'static str = "sms";
    const RISK: Risk = Risk::Email;
    fn says(&self) -> String {
        format!("Text \"payment {} has arrived\"", self.payment)
    }
    fn look_up(&self) -> Option<LookUp> {
        let what = format!("search the sent messages for payment {}", self.payment);
        Some(LookUp::at("https://sms.example/outbox", &what))
    }
    fn reference(done: &String) -> Option<String> {
        Some(done.clone())
    }
    fn from_reference(&self, reference: &str) -> Option<String> {
        Some(reference.to_owned())
    }
}

fn notify(cx: &Cx, job: Notify) -> Outcome {
    let payment = job.payment;
    let message = match job.by {
        By::Push => cx.effect(Push { payment })?,
        By::Sms => cx.effect(Sms { payment })?,
    };
    cx.note("message", message);
    Ok(())
}

// ---- the outside world -----------------------------------------------------------------------------------------------------

/// Somebody who sends messages, and may know what was sent.
pub(crate) trait Sends: Clone + Send + Sync + 'static {
    fn send(&self, payment: u64) -> Outcome<String>;
    fn find(&self, payment: u64) -> Outcome<Option<String>>;
}

/// A company that sends messages; it has no idempotency keys, so a second call is a second message.
#[derive(Clone, Default)]
struct Company(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    sent: Vec<u64>,
    calls: u32,
    asked: u32,
    /// The next message goes out, and its answer does not come back.
    loses: bool,
    /// Nobody has this number.
    refuses: bool,
}

impl Company {
    fn book<T>(&self, f: impl FnOnce(&mut Book) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
    fn sent(&self, payment: u64) -> usize {
        self.book(|b| b.sent.iter().filter(|p| **p == payment).count())
    }
}

impl Sends for Company {
    fn send(&self, payment: u64) -> Outcome<String> {
        self.book(|b| {
            b.calls += 1;
            if b.refuses {
                return Err(Fail::refused("nobody has this number").for_good());
            }
            b.sent.push(payment);
            if std::mem::take(&mut b.loses) {
                return Err(Fail::new("timed out after 30 s"));
            }
            Ok(format!("msg_{}", b.sent.len()))
        })
    }
    fn find(&self, payment: u64) -> Outcome<Option<String>> {
        self.book(|b| {
            b.asked += 1;
            Ok(b.sent.iter().position(|p| *p == payment).map(|n| format!("msg_{}", n + 1)))
        })
    }
}

/// What is registered: also what the safety card in JOB-SAFETY.md is rendered from.
pub(crate) fn with(builder: Builder, push: &impl Sends, sms: &impl Sends) -> Builder {
    let (pushes, asks, texts) = (push.clone(), push.clone(), sms.clone());
    builder
        .key_scope("notify-demo")
        .effect(move |p: &Push, _| pushes.send(p.payment))
        .probe(move |p: &Push, _| asks.find(p.payment))
        .effect(move |s: &Sms, _| texts.send(s.payment))
        .on(notify)
}

/// The same, with nobody outside.
#[allow(dead_code, reason = "a test renders the safety cards from it")]
pub(crate) fn registered(builder: Builder) -> Builder {
    with(builder, &Company::default(), &Company::default())
}

/// The proof log, on the screen.
struct Screen;

impl Sink for Screen {
    fn attempt(&self, line: &AttemptLine) {
        println!("    {line}");
    }
}

/// Who is in charge: told the moment a person is needed.
fn tell(alert: &Alert, to: &Mutex<Sender<String>>) {
    if let AlertEvent::Letter(letter) = alert.event() {
        println!("    -> the person in charge is told: {}", letter.headline());
        println!("       why: {} ({})", letter.why().says(), letter.error());
        for (place, how) in letter.ledger().iter().filter_map(|l| l.look_up.as_ref()) {
            println!("       how to find out: {place}: {how}");
        }
        letter.choices().iter().for_each(|c| println!("       you may say: {}; then {}", c.label, c.will.join("; ")));
    }
    let _ = to.lock().unwrap_or_else(PoisonError::into_inner).send(alert.to_string());
}

// ---- the story -------------------------------------------------------------------------------------------------------------

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let pace = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Duration::from_millis(1_200),
        ["--once"] => Duration::ZERO,
        _ => {
            eprintln!("notify: there is only --once");
            return ExitCode::FAILURE;
        }
    };
    match story(pace) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("notify: {e}");
            ExitCode::FAILURE
        }
    }
}

fn story(pace: Duration) -> Result<(), Box<dyn Error>> {
    let scene = |text: &str| {
        println!("\n{text}");
        std::thread::sleep(pace);
    };
    let (push, sms) = (Company::default(), Company::default());

    scene(
        "1. The retry that everybody writes: the message goes out, the answer does not come back, so it is sent again",
    );
    push.book(|b| b.loses = true);
    while push.send(1).is_err() {}
    println!("    the customer of payment 1 was told {} times", push.sent(1));
    check(push.sent(1) == 2, "the naive retry told nobody twice: this run shows nothing")?;

    let dir = tempfile::tempdir()?;
    let (to, told) = channel();
    let to = Mutex::new(to);
    let jobs = with(Jobs::open(dir.path().join("notify.redb")), &push, &sms)
        .sink(Screen)
        .on_alert(move |alert| tell(alert, &to))
        .start()?;

    scene(
        "2. The same with the ledger: it times out after the message went out; the next claim asks instead of sending",
    );
    push.book(|b| (b.loses, b.calls, b.asked) = (true, 0, 0));
    let id = jobs.enqueue(&Notify { payment: 2, by: By::Push })?.id();
    check(jobs.wait(id, LONG)? == State::Done, "the message went out: the job is done")?;
    let (calls, asked) = push.book(|b| (b.calls, b.asked));
    println!("    sent {calls} time, asked {asked} time: the customer was told {} time", push.sent(2));
    check((calls, push.sent(2)) == (1, 1) && asked >= 1, "one message, and one question")?;

    scene(
        "3. The retry arrives a second time, from whoever asked for it: the same intent is the same job, and it is a success",
    );
    let again = jobs.enqueue(&Notify { payment: 2, by: By::Push })?;
    println!("    {again:?}");
    check(!again.is_new() && push.sent(2) == 1, "nothing is sent again")?;

    scene(
        "4. A company that cannot be asked: nobody can know, so nobody guesses. A person is asked, with the question in plain words",
    );
    sms.book(|b| b.loses = true);
    let id = jobs.enqueue(&Notify { payment: 3, by: By::Sms })?.id();
    check(jobs.wait(id, LONG)? == State::NeedsDecision, "a person has to answer")?;
    let asked = told.recv_timeout(LONG)?;
    check(asked.contains("Did this happen: Text \"payment 3 has arrived\"?"), "the question is in plain words")?;
    let letter = jobs.dead_letter(id)?;
    let effect = letter.questions().iter().find_map(|q| q.effect()).ok_or("a question about an effect")?.clone();
    jobs.decide(&letter, Decision::happened(&effect, Some("sms-77")).by("ann", "it is in the outbox of the company"))?;
    check(jobs.wait(id, LONG)? == State::Done && sms.sent(3) == 1, "answered, and told once")?;

    scene("5. A number that nobody has: no retry can help. The dead letter says what was not done; nothing was sent");
    sms.book(|b| b.refuses = true);
    let id = jobs.enqueue(&Notify { payment: 4, by: By::Sms })?.id();
    check(jobs.wait(id, LONG)? == State::Dead, "retries cannot help")?;
    told.recv_timeout(LONG)?;
    let letter = jobs.dead_letter(id)?;
    jobs.decide(&letter, Decision::handled_outside().by("ann", "wrote a letter, on paper"))?;
    check(sms.sent(4) == 0, "nothing was sent")?;

    println!("\nwho decided what");
    let decisions = jobs.decisions(None, 10)?;
    decisions.iter().for_each(|d| println!("    {}/{}: {}", d.kind, d.key, d.says()));
    check(decisions.len() == 2, "two decisions, both signed")?;
    jobs.shutdown(LONG)?;
    check(told.try_recv().is_err(), "nobody was bothered twice")?;
    println!("\nok: with the ledger every customer was told once, or somebody knows why not");
    Ok(())
}

fn check(ok: bool, what: &str) -> Result<(), Box<dyn Error>> {
    if ok { Ok(()) } else { Err(format!("wrong: {what}").into()) }
}

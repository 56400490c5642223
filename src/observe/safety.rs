//! Safety cards: what a kind promises, in six fields, rendered from what is really registered. A person reads them before the job
//! runs, a test compares the committed file with them.
//!
//! Pure and sorted, so that the same registration renders the same file. Called by the builder and by a running queue.

use super::line::AttemptLine;
use super::stamp::Zone;
use crate::model::attempt::Outcome;
use crate::model::effect::{EffectCard, Recovery, Risk};
use crate::model::id::JobId;
use crate::model::policy::{Backoff, Keep, KindRules, OnDead, OnInterrupt, Policy};
use crate::model::time::Wall;
use std::fmt;
use std::time::Duration;

/// The card of one kind: six fields, each one or more sentences in Markdown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct SafetyCard {
    /// The kind.
    pub kind: String,
    /// What makes two jobs the same job, and for how long that is remembered.
    pub job_id: Vec<String>,
    /// What is true when it succeeded.
    pub success: Vec<String>,
    /// Retries, waits and limits.
    pub retries: Vec<String>,
    /// What keeps each effect from happening twice.
    pub duplicates: Vec<String>,
    /// When a person is asked.
    pub review: Vec<String>,
    /// The line of the proof log.
    pub proof: Vec<String>,
    /// Settings wider than the default for risky kinds.
    pub widened: Vec<&'static str>,
}

/// The cards of all registered kinds, by kind. Displayed as the Markdown of a `JOB-SAFETY.md`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SafetyCards(Vec<SafetyCard>);

impl SafetyCards {
    /// These cards, sorted.
    pub fn new(cards: impl IntoIterator<Item = SafetyCard>) -> Self {
        let mut cards: Vec<_> = cards.into_iter().collect();
        cards.sort();
        Self(cards)
    }
    /// Each card, by kind.
    pub fn iter(&self) -> impl Iterator<Item = &SafetyCard> {
        self.0.iter()
    }
    /// These and those of another queue: one file for a program that has several.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::new(self.0.into_iter().chain(other.0))
    }
}

impl fmt::Display for SafetyCards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("# Job safety\n\nOne card per kind of job, rendered from what is registered. Do not edit: a test renders it again and compares.\n")?;
        for card in &self.0 {
            write!(f, "\n{card}")?;
        }
        Ok(())
    }
}

impl fmt::Display for SafetyCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.widened.is_empty() { "" } else { " (widened)" };
        writeln!(f, "## {}{mark}\n\n| | |\n|---|---|", cell(&self.kind))?;
        for (name, text) in [
            ("Stable job id", &self.job_id),
            ("Success condition", &self.success),
            ("Retries + backoff", &self.retries),
            ("Duplicate protection", &self.duplicates),
            ("Human-review condition", &self.review),
            ("Proof log line", &self.proof),
        ] {
            let text: Vec<String> = text.iter().map(|t| cell(t)).collect();
            writeln!(f, "| {name} | {} |", text.join("<br>"))?;
        }
        Ok(())
    }
}

/// What a card is made from.
pub struct Registered<'a> {
    /// Today's name.
    pub kind: &'a str,
    /// Former names.
    pub aliases: &'a [&'static str],
    /// Where it runs.
    pub queue: &'a str,
    /// The Rust type of the payload.
    pub type_name: &'a str,
    /// What the app asked for.
    pub policy: &'a Policy,
    /// What became of it.
    pub rules: &'a KindRules,
    /// The names of its effects for which a probe is registered.
    pub probes: &'a [&'static str],
}

impl SafetyCard {
    /// The card of a registered kind.
    pub fn of(r: &Registered<'_>) -> Self {
        Self {
            kind: r.kind.to_owned(),
            job_id: job_id(r),
            success: vec![r.policy.success.clone().unwrap_or_else(|| {
                "the handler returned Ok, and every effect it asked for is accounted for".to_owned()
            })],
            retries: retries(r),
            duplicates: duplicates(r),
            review: review(r),
            proof: vec![proof(r)],
            widened: r.rules.widened.clone(),
        }
    }
}

fn job_id(r: &Registered<'_>) -> Vec<String> {
    let name = r.type_name.split('<').next().unwrap_or_default();
    let name = name.rsplit("::").next().unwrap_or_default();
    let mut out = vec![format!("`{}` and the key of `{name}::key()`: the same intent is the same job", r.kind)];
    if !r.aliases.is_empty() {
        let names: Vec<String> = r.aliases.iter().map(|a| format!("`{a}`")).collect();
        out.push(format!("also found under its former names {}", names.join(", ")));
    }
    let widened = mark(r, "dedupe memory");
    out.push(match r.rules.remember {
        Keep::Forever => "remembered for ever after its end".to_owned(),
        Keep::For(d) => format!("remembered for {} after its end{widened}", span(d)),
    });
    for (keep, what, of) in [
        (r.rules.keep_done, "keeping of what is done", "what it did can be looked up"),
        (r.rules.keep_discarded, "keeping of what was discarded", "a discarded one can be brought back"),
    ] {
        let widened = mark(r, what);
        if let Keep::For(d) = keep
            && !widened.is_empty()
        {
            out.push(format!("{of} for {}{widened}", span(d)));
        }
    }
    out
}

fn retries(r: &Registered<'_>) -> Vec<String> {
    let rules = r.rules;
    let retries = rules.max_attempts.saturating_sub(1);
    let tries = match retries {
        0 => "no retry: one attempt".to_owned(),
        1 => "1 retry: two attempts".to_owned(),
        n => format!("{n} retries: {} attempts", rules.max_attempts),
    };
    let waits = match &rules.backoff {
        Backoff::Exponential { first, cap } => {
            format!("waits at random up to {}, doubled with each retry, at most {}", span(*first), span(*cap))
        }
        Backoff::Steps(steps) => match steps.split_last() {
            None => "no wait".to_owned(),
            Some((last, _)) => {
                let shown = usize::try_from(retries).unwrap_or(usize::MAX).clamp(1, steps.len());
                let all: Vec<String> = steps.iter().take(shown).map(|d| span(*d)).collect();
                let then = if usize::try_from(retries).is_ok_and(|n| n > steps.len()) {
                    format!(", then {} each", span(*last))
                } else {
                    String::new()
                };
                format!("waits {}{then}", all.join(", "))
            }
        },
    };
    let mut out = vec![format!("{tries}{}", mark(r, "retries")), format!("{waits}{}", mark(r, "backoff"))];
    if let Some(d) = rules.deadline {
        out.push(format!("no attempt begins later than {} after the enqueue{}", span(d), mark(r, "deadline")));
    }
    out.push(format!(
        "an attempt is stopped after {} without a sign of progress{}, or after {} in all{}",
        span(rules.stall_timeout),
        mark(r, "stall timeout"),
        span(rules.attempt_timeout),
        mark(r, "attempt timeout")
    ));
    out
}

fn duplicates(r: &Registered<'_>) -> Vec<String> {
    if r.rules.effects.is_empty() {
        return vec![
            "no outside effect is declared, and another one is refused; steps and commits happen once".to_owned(),
        ];
    }
    let mut cards: Vec<&EffectCard> = r.rules.effects.iter().collect();
    cards.sort_by_key(|c| c.name);
    let mut out = vec!["what is confirmed is never asked for again".to_owned()];
    out.extend(cards.iter().map(|c| {
        let widened = if c.is_hasty() { mark(r, "settle time") } else { "" };
        format!("`{}` ({}): {}{widened}", c.name, risk(c.risk), recovery(c.recovery))
    }));
    out
}

fn review(r: &Registered<'_>) -> Vec<String> {
    let rules = r.rules;
    let mut out: Vec<String> = r.policy.review.iter().cloned().collect();
    let mut ends = vec![match rules.max_attempts {
        1 => "the first failed attempt, or a failure that trying again cannot help".to_owned(),
        n => format!("{n} failed attempts, or a failure that trying again cannot help"),
    }];
    if rules.deadline.is_some() {
        ends.push("the deadline passed".to_owned());
    }
    match rules.on_dead {
        OnDead::Hold => out.extend(ends),
        OnDead::Undo => {
            out.push(format!(
                "**nobody is asked, and what was done is undone, the last first**, after {}; a person is asked where nothing was \
                 done, something cannot be undone, nobody knows about an effect, or an undo job cannot go forward",
                ends.join(", or when ")
            ));
        }
    }
    match rules.on_interrupt {
        OnInterrupt::RunAgain => {}
        OnInterrupt::Hold => out.push("the process ended while the handler ran".to_owned()),
    }
    out.push("the process died twice with this handler alone at work".to_owned());
    let asks: Vec<String> = rules
        .effects
        .iter()
        .filter(|c| matches!(c.recovery, Recovery::Ask | Recovery::SameKey { .. }))
        .map(|c| format!("`{}`", c.name))
        .collect();
    if !asks.is_empty() {
        out.push(format!("nobody knows what became of {}, and its rule has no other way", asks.join(", ")));
    }
    let told: Vec<String> =
        rules.effects.iter().filter(|c| c.recovery.settle().is_some()).map(|c| format!("`{}`", c.name)).collect();
    if !told.is_empty() {
        out.push(format!("the provider cannot tell about {} for {}", told.join(", "), span(rules.cannot_tell_bound)));
    }
    if !rules.effects.is_empty() {
        out.push(format!("a call that is still running after {}", span(rules.old_call_bound)));
    }
    if let Some(stake) = rules.second_person_above {
        out.push(match stake {
            0 => "two people have to decide".to_owned(),
            n => format!("above a stake of {n} two people have to decide"),
        });
    }
    let mut probes: Vec<String> = r.probes.iter().map(|p| format!("`{p}`")).collect();
    probes.sort();
    if !probes.is_empty() {
        out.push(format!("a person can have the provider asked again about {}", probes.join(", ")));
    }
    out
}

fn proof(r: &Registered<'_>) -> String {
    let mut line = AttemptLine::new(Wall(0), r.kind, "KEY", JobId::from_number(1), 1, Outcome::Success);
    line.queue = r.queue.to_owned();
    format!("`{}`", line.render(&Zone::utc()))
}

fn mark(r: &Registered<'_>, what: &str) -> &'static str {
    if r.rules.widened.contains(&what) { " **(widened)**" } else { "" }
}

fn risk(risk: Risk) -> &'static str {
    match risk {
        Risk::Routine => "routine",
        Risk::Charge => "charge",
        Risk::Publish => "publish",
        Risk::BulkDelete => "bulk delete",
        Risk::Email => "mail",
        Risk::Order => "order",
    }
}

fn recovery(rule: Recovery) -> String {
    match rule {
        Recovery::Ask => "if nobody knows, a person is asked, never called again".to_owned(),
        Recovery::SameKey { ttl } => {
            format!(
                "if nobody knows, called again with the same key for {} after the first call, then a person is asked",
                alive(ttl)
            )
        }
        Recovery::Probe { settle } => format!(
            "if nobody knows, the provider is asked; \"not there\" counts {} after the call ended",
            span(settle)
        ),
        Recovery::KeyThenProbe { ttl, settle } => format!(
            "if nobody knows, called again with the same key for {} after the first call, then the provider is asked; \"not there\" counts {} after the call ended",
            alive(ttl),
            span(settle)
        ),
        Recovery::Repeat => "at least once: a duplicate is preferable to none".to_owned(),
    }
}

/// The life of a key, less its margin.
fn alive(ttl: Duration) -> String {
    span(ttl - ttl / 10)
}

/// A length of time as a person says it: `1 min 30 s`.
fn span(d: Duration) -> String {
    let mut rest = crate::model::time::millis(d);
    let mut said = Vec::new();
    for (size, one, many) in
        [(86_400_000, "day", "days"), (3_600_000, "h", "h"), (60_000, "min", "min"), (1_000, "s", "s"), (1, "ms", "ms")]
    {
        let n = rest / size;
        rest %= size;
        if n > 0 {
            said.push(format!("{n} {}", if n == 1 { one } else { many }));
        }
    }
    if said.is_empty() { "0 s".to_owned() } else { said.join(" ") }
}

/// One cell of a table: no text of an app ends it or begins a tag.
fn cell(text: &str) -> String {
    text.replace('\\', "\\\\").replace('|', "\\|").replace('<', "&lt;").replace(['\r', '\n'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn card(policy: &Policy, effects: &[EffectCard]) -> SafetyCard {
        let rules = policy.resolve(effects);
        SafetyCard::of(&Registered {
            kind: "pay",
            aliases: &["charge-it"],
            queue: "money",
            type_name: "shop::jobs::Pay<shop::Rule>",
            policy,
            rules: &rules,
            probes: &["charge"],
        })
    }

    /// A kind that follows the narrow defaults is not widened; each setting beyond them is marked where it stands.
    #[test]
    fn a_policy_wider_than_the_risky_default_is_marked() {
        let effects =
            [EffectCard::new("charge", &[], Risk::Charge, Recovery::same_key(DAY).or_probe(Duration::from_secs(60)))];
        let narrow = card(&Policy::default().success("paid").review("in doubt"), &effects);
        assert!(narrow.widened.is_empty() && !narrow.to_string().contains("widened"), "{narrow}");
        let policies: [(Policy, &str); 8] = [
            (Policy::default().retries(4), "4 retries: 5 attempts **(widened)**"),
            (
                Policy::default().backoff(Backoff::steps([Duration::from_secs(59)])),
                "waits 59 s, then 59 s each **(widened)**",
            ),
            (
                Policy::default().deadline(2 * DAY),
                "no attempt begins later than 2 days after the enqueue **(widened)**",
            ),
            (Policy::default().stall_timeout(DAY), "1 day without a sign of progress **(widened)**"),
            (Policy::default().attempt_timeout(DAY), "1 day in all **(widened)**"),
            (Policy::default().remember(Keep::For(DAY)), "remembered for 1 day after its end **(widened)**"),
            (
                Policy::default().keep_done(Keep::For(89 * DAY)),
                "what it did can be looked up for 89 days **(widened)**",
            ),
            (
                Policy::default().keep_discarded(Keep::For(30 * DAY)),
                "a discarded one can be brought back for 30 days **(widened)**",
            ),
        ];
        for (policy, text) in policies {
            let wide = card(&policy, &effects).to_string();
            assert!(wide.starts_with("## pay (widened)") && wide.contains(text), "{text}: {wide}");
            assert_eq!(wide.matches("**(widened)**").count(), 1, "{wide}");
        }
        let routine = [EffectCard::new("log", &[], Risk::Routine, Recovery::ask())];
        assert!(
            card(&Policy::default().retries(99), &routine).widened.is_empty(),
            "nothing is narrowed, nothing is wide"
        );
    }

    /// A kind that is undone by itself says so where it says when a person is asked: nobody expects to be asked before the money goes
    /// back. And a charge whose provider's "not there" counts within a minute is marked.
    #[test]
    fn a_card_says_that_nobody_is_asked_and_what_is_hasty() {
        let probed = |ms| [EffectCard::new("charge", &[], Risk::Charge, Recovery::probe(Duration::from_millis(ms)))];
        let policy = Policy::default().success("paid").review("in doubt");
        let (holds, undoes) =
            (card(&policy, &probed(60_000)), card(&policy.clone().on_dead(OnDead::Undo), &probed(60_000)));
        let review = |c: &SafetyCard| c.review.join("\n");
        assert!(review(&holds).contains("\n4 failed attempts") && !review(&holds).contains("undone"), "{holds}");
        assert!(review(&undoes).contains("nobody is asked, and what was done is undone"), "{undoes}");
        assert!(!review(&undoes).contains("\n4 failed attempts"), "{undoes}");
        let hasty = card(&policy, &probed(59_999)).to_string();
        assert!(
            hasty.starts_with("## pay (widened)") && hasty.contains("after the call ended **(widened)**"),
            "{hasty}"
        );
    }

    /// The six fields, in their order, with what is really registered; an app's text cannot end its cell.
    #[test]
    fn a_card_has_six_fields() {
        let effects =
            [EffectCard::new("charge", &[], Risk::Charge, Recovery::same_key(DAY).or_probe(Duration::from_secs(60)))];
        let card = card(&Policy::default().success("paid | booked\n<b>").review("in doubt"), &effects).to_string();
        let fields: Vec<&str> = card.lines().skip(4).filter_map(|l| l.split(" | ").next()).collect();
        assert_eq!(
            fields,
            [
                "| Stable job id",
                "| Success condition",
                "| Retries + backoff",
                "| Duplicate protection",
                "| Human-review condition",
                "| Proof log line"
            ]
        );
        assert!(card.contains("`pay` and the key of `Pay::key()`"), "{card}");
        assert!(card.contains("paid \\| booked &lt;b>"), "{card}");
        assert!(card.contains("same key for 21 h 36 min after the first call"), "{card}");
        assert!(card.contains("job=KEY attempt=1 outcome=success kind=pay id=1 queue=money"), "{card}");
    }

    /// Lengths of time read as a person says them.
    #[test]
    fn spans_are_exact() {
        let said = [0, 1, 1_000, 90_000, 800, 77_760_000, 86_400_000, 172_800_001];
        let said = said.map(|ms| span(Duration::from_millis(ms)));
        assert_eq!(said, ["0 s", "1 ms", "1 s", "1 min 30 s", "800 ms", "21 h 36 min", "1 day", "2 days 1 ms"]);
    }
}

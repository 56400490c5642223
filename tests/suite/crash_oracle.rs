//! What must be true of a file after a crash: it is read row by row, every index is counted again, and all of it is compared with
//! what callers were told before. Used by every crash suite; an answer is a sentence that says which promise was broken.

use super::crash_world::{Brief, Charge, Do, Facts, Name, Note, ROWS, Reserve, TOPIC, TRIES, Wire, Work, effect_id};
use super::oracle::{Kept, Line, i18_of, i19};
use onceward::model::effect::{EffectRecord, EffectState, Stored};
use onceward::model::id::{JobId, KindId};
use onceward::model::job::{End, JobRecord, JobRow, JobState, Memo, State};
use onceward::model::letter::{Entry, LetterRecord};
use onceward::model::outbox::{Message, Standing};
use onceward::model::time::Wall;
use onceward::store::{Opened, Store, StoreError, View};
use onceward::{Effect, Job};
use redb::ReadableTable;
use std::collections::{BTreeMap, BTreeSet};

#[cfg(test)]
mod bad;

/// One stored job with everything that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) id: JobId,
    pub(crate) row: JobRow,
    pub(crate) record: JobRecord,
    pub(crate) effects: Vec<EffectRecord>,
    pub(crate) memos: Vec<Memo>,
    pub(crate) journal: Vec<Entry>,
    pub(crate) letter: Option<LetterRecord>,
    pub(crate) output: Option<Vec<u8>>,
}

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Whole {
    pub(crate) jobs: BTreeMap<Name, Found>,
    pub(crate) rows: BTreeMap<String, u64>,
    /// Messages that wait, by id.
    pub(crate) messages: BTreeSet<String>,
    pub(crate) remembered: BTreeSet<Name>,
    pub(crate) pauses: usize,
}

/// What belongs to one number, as the tables have it.
#[derive(Clone, Debug)]
struct Rows {
    id: JobId,
    row: Option<JobRow>,
    record: Option<JobRecord>,
    effects: Vec<EffectRecord>,
    memos: Vec<Memo>,
    journal: Vec<Entry>,
    letter: Option<LetterRecord>,
    output: Option<Vec<u8>>,
    /// The job that is known under its kind and key.
    intent: Option<JobId>,
}

/// The tables about jobs, before anything in them is compared.
#[derive(Clone, Debug, Default)]
struct Raw {
    kinds: BTreeMap<KindId, String>,
    found: Vec<Rows>,
    index: BTreeSet<(u64, String)>,
    /// What people did, in the list of all.
    acts: Vec<(Option<JobId>, Entry)>,
    tombs: Vec<(KindId, String)>,
    pauses: usize,
    /// How many jobs and memories the store counts.
    counted: (u64, u64),
}

/// Numbers above the ones that a history knows: follow-ups, tickets, chunks.
const MORE_IDS: u64 = 96;

fn words(e: StoreError) -> String {
    format!("a healthy file cannot be read: {e}")
}

/// Reads everything; jobs have numbers of at most `most`.
pub(crate) fn read(store: &Store, most: u64) -> Result<Whole, String> {
    let mut whole = store.read(|v| Ok(raw(v, most).and_then(jobs))).map_err(words)??;
    whole.messages = store.read(|v| Ok(messages(v))).map_err(words)??;
    whole.rows = store
        .read_app(|app| -> Result<_, String> {
            match app.open_table(ROWS) {
                // Nothing was ever committed into it.
                Err(StoreError::Table(_)) => Ok(BTreeMap::new()),
                Err(e) => Err(words(e)),
                Ok(rows) => {
                    let all = rows.iter().map_err(|e| e.to_string())?;
                    all.map(|r| r.map(|(k, v)| (k.value().to_owned(), v.value())).map_err(|e| e.to_string())).collect()
                }
            }
        })
        .map_err(words)??;
    Ok(whole)
}

fn known(kind: &str) -> Result<&'static str, String> {
    [Work::KIND, Note::KIND, Brief::KIND]
        .into_iter()
        .find(|k| *k == kind)
        .ok_or_else(|| format!("a kind {kind:?} that nobody registered"))
}

/// What the topic owes: each message whole, remembered under its id, and under a number that was handed out.
fn messages(v: &View<'_>) -> Result<BTreeSet<String>, String> {
    let last = v.topics().map_err(words)?.into_iter().find(|(t, _)| t == TOPIC).map_or(0, |(_, last)| last);
    let mut messages = BTreeSet::new();
    for (key, n, delivery) in v.unsent(TOPIC, None, 10_000).map_err(words)? {
        let row = v.message(TOPIC, n).map_err(words)?.ok_or_else(|| format!("message {n} waits and is not there"))?;
        let Message { id, body, .. } = row.message;
        let memory = v.remembered(TOPIC, &id).map_err(words)?.map(|m| (m.number, m.key, m.marks));
        let fits = memory == Some((n, key, 0)) && n <= last && serde_json::to_vec(&id).ok() == Some(body);
        if !fits || !matches!(delivery.standing, Standing::Waiting { .. }) {
            return Err(format!("message {n} of {last} is {id:?}, remembered as {memory:?}, {delivery:?}"));
        }
        messages.insert(id);
    }
    Ok(messages)
}

/// Every row about jobs of at most this number.
fn raw(v: &View<'_>, most: u64) -> Result<Raw, String> {
    let kinds: BTreeMap<KindId, String> = v.kinds().map_err(words)?.into_iter().collect();
    let depth = v.depth().map_err(words)?;
    let acts: Result<Vec<_>, _> = v.acts(None, 10_000).map_err(words)?.into_iter().map(|(_, act)| act).collect();
    let tombs = v.tombs(Wall(u64::MAX), 1_000).map_err(words)?;
    let mut raw = Raw {
        index: index(v, &kinds)?,
        acts: acts.map_err(words)?.into_iter().map(|act| (act.job, act.entry)).collect(),
        tombs: tombs.into_iter().map(|(_, kind, key)| (kind, key)).collect(),
        pauses: v.metas("pause/").map_err(words)?.len(),
        counted: (depth.jobs, depth.identities),
        kinds,
        found: Vec::new(),
    };
    for n in 1..=most {
        let id = JobId::from_number(n);
        let (row, record) = (v.job(id).map_err(words)?, v.record(id).map_err(words)?);
        if row.is_none() && record.is_none() {
            continue;
        }
        let intent = match &row {
            Some(row) => v.intent(row.kind, row.key.as_str()).map_err(words)?.map(|i| i.id()),
            None => None,
        };
        raw.found.push(Rows {
            id,
            row,
            record,
            effects: v.effects(id).map_err(words)?,
            memos: v.memos(id).map_err(words)?,
            journal: v.journal(id).map_err(words)?,
            letter: v.letter(id).map_err(words)?,
            output: v.output(id).map_err(words)?,
            intent,
        });
    }
    Ok(raw)
}

/// The jobs of a file whose rows, indexes, counts and memories fit together.
fn jobs(raw: Raw) -> Result<Whole, String> {
    let Raw { kinds, found, mut index, acts, tombs, pauses, counted } = raw;
    let mut whole = Whole { pauses, ..Whole::default() };
    let mut identities = 0;
    for Rows { id, row, record, effects, memos, journal, letter, output, intent } in found {
        let (row, record) = match (row, record) {
            (Some(row), Some(record)) => (row, record),
            (row, record) => return Err(format!("half of job {id}: {row:?} {record:?}")),
        };
        let kind = kinds.get(&row.kind).ok_or_else(|| format!("job {id} is of no kind"))?;
        let name: Name = (known(kind)?, row.key.as_str().to_owned());
        let found = Found { id, effects, memos, journal, letter, output, row, record };
        let expected = index_of(&found);
        if !index.remove(&(id.number(), expected.clone())) {
            return Err(format!("{name:?} has no index row {expected:?}"));
        }
        if found.effects.len() != found.record.effects as usize {
            return Err(format!("{name:?} does not count its effects right"));
        }
        if found.memos.len() != found.record.memos as usize || found.journal.len() != found.record.journal as usize {
            return Err(format!("{name:?} does not count its memory right"));
        }
        if intent != Some(id) {
            return Err(format!("what is known of {name:?} is {intent:?}"));
        }
        identities += 1;
        if let Some(twice) = whole.jobs.insert(name, found) {
            return Err(format!("two jobs for one key: {twice:?}"));
        }
    }
    if let Some(left) = index.first() {
        return Err(format!("an index row of no job: {left:?}"));
    }
    if counted.0 != whole.jobs.len() as u64 {
        return Err(format!("{} jobs are stored, {} were found", counted.0, whole.jobs.len()));
    }
    // What people did stands in the job's own history and in the list of all, or in neither.
    for found in whole.jobs.values() {
        let own: Vec<&Entry> = found.journal.iter().filter(|e| e.is_of_a_person()).collect();
        let listed: Vec<&Entry> = acts.iter().filter(|(job, _)| *job == Some(found.id)).map(|(_, e)| e).collect();
        if own != listed {
            return Err(format!(
                "{} has these acts in its history: {own:?}, and these in the list: {listed:?}",
                found.id
            ));
        }
    }
    // What is left of pruned jobs.
    for (kind, key) in tombs {
        let name = (known(&kinds[&kind])?, key);
        if !whole.jobs.contains_key(&name) && whole.remembered.insert(name) {
            identities += 1;
        }
    }
    if counted.1 != identities {
        return Err(format!("{} memories are stored, {identities} belong to a job or a tomb", counted.1));
    }
    Ok(whole)
}

/// Every index row of the file.
fn index(v: &View<'_>, kinds: &BTreeMap<KindId, String>) -> Result<BTreeSet<(u64, String)>, String> {
    let mut index = BTreeSet::new();
    for kind in kinds.keys() {
        for (priority, ticket, id) in v.ready(*kind, 10_000).map_err(words)? {
            index.insert((id.number(), format!("ready {} {priority} {ticket}", kind.0)));
        }
    }
    for (due, id) in v.timers((Wall(0), JobId::from_number(0)), 10_000).map_err(words)? {
        index.insert((id.number(), format!("due {}", due.0)));
    }
    for (id, token) in v.running().map_err(words)? {
        index.insert((id.number(), format!("run {token}")));
    }
    for (id, _) in v.letters(None, 10_000).map_err(words)? {
        index.insert((id.number(), "letter".into()));
    }
    for id in v.compensating().map_err(words)? {
        index.insert((id.number(), "undo".into()));
    }
    for (_, id) in v.prunable(Wall(u64::MAX), 10_000).map_err(words)? {
        index.insert((id.number(), "prune".into()));
    }
    Ok(index)
}

fn index_of(found: &Found) -> String {
    let record = &found.record;
    match &record.state {
        JobState::Ready { ticket } => format!("ready {} {} {ticket}", record.kind.0, record.priority),
        JobState::Delayed { due, .. } | JobState::Waiting { due, .. } => format!("due {}", due.0),
        JobState::Running { token, .. } => format!("run {token}"),
        JobState::NeedsDecision | JobState::Dead => "letter".into(),
        JobState::Compensating { .. } => "undo".into(),
        // Rows that are kept for ever have none; every kind here prunes some day.
        JobState::Ended { .. } => "prune".into(),
    }
}

/// What a `Work` job was asked to do.
fn program(found: &Found) -> Vec<Do> {
    serde_json::from_slice::<Work>(&found.row.payload).map(|w| w.does).unwrap_or_default()
}

/// Compares a file with a history. `opened` is what was found when it was opened.
pub(crate) fn check(store: &Store, opened: &Opened, facts: &Facts) -> Result<Whole, String> {
    let whole = read(store, most(facts))?;
    judge(&whole, opened.epoch, facts)?;
    Ok(whole)
}

fn most(facts: &Facts) -> u64 {
    facts.stored.values().map(|id| id.number()).max().unwrap_or(0) + MORE_IDS
}

/// What was read, against a history; `epoch` is that of the process which opened it.
fn judge(whole: &Whole, epoch: u32, facts: &Facts) -> Result<(), String> {
    present(whole, facts)?;
    no_phantoms(whole, facts)?;
    together(whole, facts)?;
    for (name, found) in &whole.jobs {
        counts(name, found, facts).map_err(|e| format!("{name:?}: {e}"))?;
        effects(name, found, facts).map_err(|e| format!("{name:?}: {e}"))?;
        replayed(name, found, facts).map_err(|e| format!("{name:?}: {e}"))?;
    }
    let mut tokens = BTreeSet::new();
    if let Some(twice) = facts.began.values().flatten().find(|token| !tokens.insert(**token)) {
        return Err(format!("the token {twice} was handed out twice: {:?}", facts.began));
    }
    let newest = tokens.last().copied().unwrap_or(0);
    if newest >> 40 >= u64::from(epoch) {
        return Err(format!("epoch {epoch} would hand out the token {newest} again"));
    }
    match (facts.paused, whole.pauses) {
        (Some(false), 0) | (Some(true), 1) | (None, _) => {}
        (Some(asked), n) => return Err(format!("pause was acknowledged as {asked}, and {n} pauses are stored")),
    }
    once(facts)
}

/// What was acknowledged is there, and nothing behind it.
fn present(whole: &Whole, facts: &Facts) -> Result<(), String> {
    for (name, id) in &facts.stored {
        match whole.jobs.get(name) {
            Some(found) if found.id == *id => {}
            Some(found) => return Err(format!("{name:?} was acknowledged as {id} and is {}", found.id)),
            None if name.0 == Brief::KIND && facts.aged == Some(true) => {}
            None if name.0 == Brief::KIND && facts.aged == Some(false) && whole.remembered.contains(name) => {}
            None => return Err(format!("{name:?} was acknowledged as {id} and is lost")),
        }
    }
    for (name, state) in &facts.settled {
        let now = whole.jobs.get(name).map(|f| State::from(&f.record.state));
        let pruned = name.0 == Brief::KIND && facts.aged.is_some() && now.is_none();
        if now != Some(*state) && !pruned {
            return Err(format!("{name:?} was seen as {state:?} and is {now:?}"));
        }
    }
    for name in &facts.finished {
        let now = whole.jobs.get(name).map(|f| State::from(&f.record.state));
        if now != Some(State::Done) {
            return Err(format!("{name:?} was finished and is {now:?}"));
        }
    }
    for (name, n) in &facts.decided {
        let kept = whole
            .jobs
            .get(name)
            .map_or(0, |f| f.journal.iter().filter(|e| matches!(e, Entry::Decision { .. })).count());
        if kept < *n {
            return Err(format!("{n} decisions about {name:?} were acknowledged, {kept} are kept"));
        }
    }
    for (name, n) in &facts.proposed {
        let journal = whole.jobs.get(name).map_or(&[][..], |f| f.journal.as_slice());
        if journal.iter().filter(|e| matches!(e, Entry::Proposed { .. })).count() < *n {
            return Err(format!("{n} proposals about {name:?} were acknowledged: {journal:?}"));
        }
    }
    Ok(())
}

/// Every stored job was asked for, with these bytes.
fn no_phantoms(whole: &Whole, facts: &Facts) -> Result<(), String> {
    for (name, found) in &whole.jobs {
        let asked = facts.asked.get(name).is_some_and(|p| p.contains(&found.row.payload));
        if !(asked || name.0 == Note::KIND && whole.rows.contains_key(&name.1)) {
            return Err(format!("nobody asked for {name:?} as it is stored"));
        }
    }
    Ok(())
}

/// App rows, follow-up jobs, messages and the job's own progress: all of a commit or nothing.
fn together(whole: &Whole, facts: &Facts) -> Result<(), String> {
    let mut explained = BTreeSet::new();
    let there = |key: &str| {
        let note = whole.jobs.contains_key(&(Note::KIND, key.to_owned()));
        (whole.rows.contains_key(key), note, whole.messages.contains(key))
    };
    for (name, found) in whole.jobs.iter().filter(|(name, _)| name.0 == Work::KIND) {
        let done = matches!(found.record.state, JobState::Ended { how: End::Done, .. });
        let forgotten = |what: &str, of: bool| {
            let of_it =
                |e: &&Entry| matches!(e, Entry::Forgotten { name, commit, .. } if name == what && *commit == of);
            found.journal.iter().filter(of_it).count() as u64
        };
        let commits = u64::from(found.memos.iter().any(|m| m.commit && m.name == "commit")) + forgotten("commit", true);
        let committed = commits > 0;
        let finishes = program(found).contains(&Do::Finish);
        for (what, expected) in [("commit", committed), ("finish", done && finishes)] {
            let key = format!("{}/{what}", name.1);
            let (row, note, message) = there(&key);
            if (row, note, message) != (expected, expected, expected) {
                return Err(format!(
                    "{name:?} {what}: progress {expected}, app row {row}, follow-up {note}, message {message}"
                ));
            }
            // Forgotten and done anew is twice; anything else once.
            let times = if what == "commit" { commits } else { u64::from(expected) };
            if whole.rows.get(&key).copied().unwrap_or(0) != times {
                return Err(format!("{name:?} {what}: done {times} times, app row {:?}", whole.rows.get(&key)));
            }
            explained.insert(key);
        }
        if facts.committed.contains(name) && !committed {
            return Err(format!("the commit of {name:?} was acknowledged and is lost"));
        }
        if facts.stepped.contains(name)
            && !found.memos.iter().any(|m| !m.commit && m.name == "step")
            && forgotten("step", false) == 0
        {
            return Err(format!("the step of {name:?} was acknowledged and is lost"));
        }
    }
    for key in &facts.transacting {
        let (row, note, message) = there(key);
        if row != note || row != message || (facts.transacted.contains(key) && !row) {
            return Err(format!("transaction {key}: app row {row}, job {note}, message {message}"));
        }
        explained.insert(key.clone());
    }
    if let Some(phantom) = whole.messages.iter().find(|id| !explained.contains(*id)) {
        return Err(format!("nobody committed the message {phantom}"));
    }
    for (key, n) in &whole.rows {
        if (*n != 1 && facts.transacting.contains(key)) || !explained.contains(key) {
            return Err(format!("app row {key} was counted {n} times"));
        }
    }
    Ok(())
}

/// Claims, attempts and tokens.
fn counts(name: &Name, found: &Found, facts: &Facts) -> Result<(), String> {
    let r = &found.record;
    if u64::from(r.claims) != u64::from(r.attempts) + r.given_back.sum() {
        return Err(format!("{} claims, {} attempts, {:?}", r.claims, r.attempts, r.given_back));
    }
    if name.0 == Work::KIND && r.attempts > TRIES + r.granted {
        return Err(format!("{} attempts", r.attempts));
    }
    // What a letter lists is compared where the library shows it: in a file it is nothing of its own.
    let asks = matches!(r.state, JobState::NeedsDecision | JobState::Dead);
    i18_of(asks, found.letter.is_some(), &[], &[]).map_err(|e| format!("{e}: {:?} {:?}", r.state, found.letter))?;
    let began = facts.began.get(name).map_or(&[][..], Vec::as_slice);
    if began.windows(2).any(|w| w[0] >= w[1]) {
        return Err(format!("tokens do not rise: {began:?}"));
    }
    if began.len() > r.claims as usize || began.last().is_some_and(|t| *t > r.last_token.number()) {
        return Err(format!("{} claims, last {}, but handlers had {began:?}", r.claims, r.last_token));
    }
    Ok(())
}

pub(crate) fn effect_ids(effects: &[EffectRecord]) -> Vec<String> {
    effects.iter().map(|e| e.id.to_string()).collect()
}

/// What people ran again is what it was, apart from what they had forgotten.
fn replayed(name: &Name, found: &Found, facts: &Facts) -> Result<(), String> {
    let line = |e: &EffectRecord| Line {
        effect: e.id.name.clone(),
        key: e.key.as_str().to_owned(),
        confirmed: e.state == EffectState::Confirmed,
        reference: e.reference.clone(),
    };
    let after = Kept {
        token: found.record.last_token.number(),
        effects: found.effects.iter().map(line).collect(),
        memos: found.memos.iter().map(|m| m.name.clone()).collect(),
    };
    let newest = facts.began.get(name).and_then(|t| t.last().copied()).unwrap_or(0);
    facts
        .replayed
        .iter()
        .filter(|(n, _)| n == name)
        .try_for_each(|(_, before)| i19(before, &after, newest > before.token))
}

/// Every call has its durable intent, every acknowledged confirmation is there.
fn effects(name: &Name, found: &Found, facts: &Facts) -> Result<(), String> {
    for ((_, effect), result) in facts.confirmed.iter().filter(|((job, _), _)| job == name) {
        let record = found.effects.iter().find(|e| e.id == effect_id(effect));
        let kept = record.filter(|e| e.state == EffectState::Confirmed).and_then(|e| e.result.clone());
        if kept != serde_json::to_vec(result).ok().map(Stored::Json) {
            return Err(format!("{effect} was confirmed as {result} and is {record:?}"));
        }
    }
    for record in &found.effects {
        let made = facts.calls.iter().filter(|c| c.effect == record.id.name && c.order == name.1);
        let (made, real): (Vec<_>, _) = (made.clone().collect(), made.clone().find(|c| c.real));
        if made.len() > record.calls as usize {
            return Err(format!("{} calls were made, the record knows {}", made.len(), record.calls));
        }
        if record.state == EffectState::Confirmed && real.is_none() {
            return Err(format!("{} is confirmed, and it never happened", record.id));
        }
        if record.generation == 1 && made.iter().any(|c| c.key != record.key.as_str()) {
            return Err(format!("{} was called with another key than its record's", record.id));
        }
    }
    let done = matches!(found.record.state, JobState::Ended { how: End::Done, .. });
    if let Some(doubt) = found.effects.iter().find(|e| done && e.state.is_unresolved()) {
        return Err(format!("done, and {} is an effect that nobody is sure of", doubt.id));
    }
    for call in facts.calls.iter().filter(|c| c.order == name.1 && name.0 == Work::KIND) {
        if !found.effects.iter().any(|e| e.id.name == call.effect) {
            return Err(format!("the call {call:?} has no intent"));
        }
    }
    Ok(())
}

/// With an honest provider an effect happens at most once, and it has one result.
pub(crate) fn once(facts: &Facts) -> Result<(), String> {
    if let Some((job, effect)) = facts.contradicted.first() {
        return Err(format!("{effect} of {job:?} was confirmed with two results"));
    }
    let mut real: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for call in facts.calls.iter().filter(|c| c.real) {
        *real.entry((call.effect, &call.order)).or_default() += 1;
    }
    match real.iter().find(|(_, n)| **n > 1) {
        None => Ok(()),
        Some(((effect, order), n)) => Err(format!("{effect} happened {n} times for {order}: {:?}", facts.calls)),
    }
}

/// A confirmed effect is never asked for again; `past` is the history before this life.
pub(crate) fn never_again(past: &Facts, facts: &Facts) -> Result<(), String> {
    for (job, effect) in past.confirmed.keys() {
        let calls = |f: &Facts| f.calls.iter().filter(|c| c.effect == *effect && c.order == job.1).count();
        if calls(facts) != calls(past) {
            return Err(format!("{effect} of {job:?} was confirmed and was called again"));
        }
    }
    Ok(())
}

/// Nothing of a paused kind has begun since.
pub(crate) fn rested(past: &Facts, facts: &Facts) -> Result<(), String> {
    let before = &past.began;
    if facts.began.iter().any(|(n, t)| n.0 == Note::KIND && before.get(n).map_or(0, Vec::len) < t.len()) {
        return Err("a paused kind was run".to_owned());
    }
    Ok(())
}

/// At the end of everything that happens by itself: done, or waiting with a question; and what is done was done.
pub(crate) fn ended(whole: &Whole, facts: &Facts) -> Result<(), String> {
    for (name, found) in &whole.jobs {
        let state = State::from(&found.record.state);
        if !state.is_settled() {
            return Err(format!("{name:?} is still {:?}", found.record));
        }
        if found.letter.as_ref().is_some_and(|l| l.questions.is_empty()) {
            return Err(format!("{name:?} waits without a question"));
        }
        if state != State::Done || name.0 != Work::KIND {
            continue;
        }
        for effect in program(found).iter().filter_map(|d| match d {
            Do::Charge => Some(Charge::NAME),
            Do::Reserve => Some(Reserve::NAME),
            Do::Wire => Some(Wire::NAME),
            Do::Step | Do::Commit | Do::Fail(_) | Do::Panic(_) | Do::Never | Do::Gate | Do::Finish => None,
        }) {
            if !facts.calls.iter().any(|c| c.real && c.effect == effect && c.order == name.1) {
                return Err(format!("{name:?} is done, and {effect} never happened"));
            }
        }
    }
    Ok(())
}

//! A job's record in few bytes: what still has its first value is left out. Every change of a job writes one and most read one, so
//! this is the one record that is not left to serde.
//!
//! Keeps the promise that any bytes are read as the record they were written from, or refused. Called by `codec` alone.

use crate::model::id::{JobId, KindId, Token};
use crate::model::job::{End, GivenBack, JobRecord, JobState};
use crate::model::time::Wall;

const CONTINUES: u32 = 1;
const SUSPECT: u32 = 1 << 1;
const CANCEL: u32 = 1 << 2;
/// The state and the reason follow as a tail of their own.
const TAIL: u32 = 1 << 3;
const READY: u32 = 1 << 4;
const RUNNING: u32 = 1 << 5;
const CONTINUING: u32 = 1 << 6;
const ENDED: u32 = 1 << 7;
/// Numbers that may be left out have the flags from here on, in their order.
const FIRST: u32 = 1 << 8;
const NUMBERS: usize = 18;
/// Flags that nobody writes.
const UNKNOWN: u32 = !((FIRST << NUMBERS) - 1);

/// Appends a record. `true`: state and reason are too rich for it, and the caller appends both.
pub(super) fn write(record: &JobRecord, prune: Option<Wall>, out: &mut Vec<u8>) -> bool {
    let JobRecord {
        id,
        kind,
        priority,
        state,
        attempts,
        claims,
        given_back: GivenBack { interrupted, snoozed, never_started, settled, died_beside_others },
        granted,
        continues,
        replays,
        strikes,
        first_strike,
        suspect,
        revision,
        deadline,
        last_token,
        effects,
        memos,
        journal,
        cancel,
        why,
    } = record;
    let numbers: [u64; NUMBERS] = [
        (*attempts).into(),
        (*claims).into(),
        (*interrupted).into(),
        (*snoozed).into(),
        (*never_started).into(),
        (*settled).into(),
        (*died_beside_others).into(),
        (*granted).into(),
        (*replays).into(),
        (*strikes).into(),
        first_strike.0,
        (*revision).into(),
        last_token.0,
        (*effects).into(),
        (*memos).into(),
        (*journal).into(),
        // An instant may be 0, so it is told apart from none.
        deadline.map_or(0, |at| at.0.saturating_add(1)),
        prune.map_or(0, |at| at.0.saturating_add(1)),
    ];
    let mut flags = 0;
    for (flag, on) in [(CONTINUES, *continues), (SUSPECT, *suspect), (CANCEL, *cancel)] {
        flags |= if on { flag } else { 0 };
    }
    struct Plain(u32, u64, Option<End>);
    let plain = match state {
        JobState::Ready { ticket } => Some(Plain(READY, *ticket, None)),
        JobState::Running { token, continuing } => {
            Some(Plain(if *continuing { RUNNING | CONTINUING } else { RUNNING }, token.0, None))
        }
        JobState::Ended { how, at } => Some(Plain(ENDED, at.0, Some(*how))),
        JobState::Delayed { .. }
        | JobState::Waiting { .. }
        | JobState::NeedsDecision
        | JobState::Dead
        | JobState::Compensating { .. } => None,
    }
    .filter(|_| why.is_none());
    let tail = plain.is_none();
    flags |= plain.as_ref().map_or(TAIL, |Plain(flag, ..)| *flag);
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    put(out, id.0);
    put(out, kind.0.into());
    out.push(*priority);
    if let Some(Plain(_, number, how)) = plain {
        put(out, number);
        out.extend(how.map(end_byte));
    }
    for (n, number) in numbers.into_iter().enumerate() {
        if number != 0 {
            flags |= FIRST << n;
            put(out, number);
        }
    }
    out[at..at + 4].copy_from_slice(&flags.to_le_bytes());
    tail
}

/// Seven bits a byte, the lowest first; the last byte has its highest bit clear.
fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n.to_le_bytes()[0] | 0x80);
        n >>= 7;
    }
    out.push(n.to_le_bytes()[0]);
}

/// A record, when its job's rows may go, and the rest.
type Read<'a> = (JobRecord, Option<Wall>, Option<&'a [u8]>);

/// Reads a record. The rest, if there is one, is what the caller of [`write`] appended; the state is then still to be set.
pub(super) fn read(bytes: &[u8]) -> Result<Read<'_>, String> {
    let mut rest = bytes;
    let (flags, after) = rest.split_first_chunk::<4>().ok_or("its flags are missing")?;
    let flags = u32::from_le_bytes(*flags);
    if flags & UNKNOWN != 0 {
        return Err(format!("its flags {flags:#x} are not known"));
    }
    rest = after;
    let id = JobId(take(&mut rest)?);
    let kind = KindId(small(take(&mut rest)?)?);
    let (priority, after) = rest.split_first().ok_or("its priority is missing")?;
    rest = after;
    let state = match flags & (READY | RUNNING | ENDED | TAIL) {
        READY => JobState::Ready { ticket: take(&mut rest)? },
        RUNNING => JobState::Running { token: Token(take(&mut rest)?), continuing: flags & CONTINUING != 0 },
        ENDED => {
            let at = Wall(take(&mut rest)?);
            let (how, after) = rest.split_first().ok_or("its end is missing")?;
            rest = after;
            JobState::Ended { how: end_of(*how)?, at }
        }
        TAIL => JobState::Dead,
        _ => return Err(format!("its flags {flags:#x} name no state, or two")),
    };
    let mut record = JobRecord::new(id, kind, *priority, state, None);
    let mut numbers = [0; NUMBERS];
    let mut there = flags / FIRST;
    for number in &mut numbers {
        if there & 1 != 0 {
            *number = take(&mut rest)?;
        }
        there >>= 1;
    }
    let instant = |n: u64| n.checked_sub(1).map(Wall);
    let [
        attempts,
        claims,
        interrupted,
        snoozed,
        never_started,
        settled,
        died_beside_others,
        granted,
        replays,
        strikes,
        first_strike,
        revision,
        last_token,
        effects,
        memos,
        journal,
        deadline,
        prune,
    ] = numbers;
    record.attempts = small(attempts)?;
    record.claims = small(claims)?;
    record.given_back = GivenBack {
        interrupted: small(interrupted)?,
        snoozed: small(snoozed)?,
        never_started: small(never_started)?,
        settled: small(settled)?,
        died_beside_others: small(died_beside_others)?,
    };
    record.granted = small(granted)?;
    record.replays = small(replays)?;
    record.strikes = u8::try_from(strikes).map_err(|_| format!("{strikes} strikes"))?;
    record.first_strike = Wall(first_strike);
    record.revision = small(revision)?;
    record.last_token = Token(last_token);
    record.effects = small(effects)?;
    record.memos = small(memos)?;
    record.journal = small(journal)?;
    record.deadline = instant(deadline);
    record.continues = flags & CONTINUES != 0;
    record.suspect = flags & SUSPECT != 0;
    record.cancel = flags & CANCEL != 0;
    let tail = flags & TAIL != 0;
    if !tail && !rest.is_empty() {
        return Err(format!("{} bytes too many", rest.len()));
    }
    Ok((record, instant(prune), tail.then_some(rest)))
}

fn end_byte(how: End) -> u8 {
    match how {
        End::Done => 0,
        End::HandledOutside => 1,
        End::Discarded => 2,
        End::Cancelled => 3,
        End::Compensated => 4,
    }
}

fn end_of(byte: u8) -> Result<End, String> {
    let all = [End::Done, End::HandledOutside, End::Discarded, End::Cancelled, End::Compensated];
    all.into_iter().find(|how| end_byte(*how) == byte).ok_or_else(|| format!("end {byte} is not known"))
}

fn take(rest: &mut &[u8]) -> Result<u64, String> {
    if let Some((byte @ 0..0x80, after)) = rest.split_first() {
        *rest = after;
        return Ok(u64::from(*byte));
    }
    take_long(rest)
}

fn take_long(rest: &mut &[u8]) -> Result<u64, String> {
    let mut n = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().ok_or("a number is cut off")?;
        *rest = after;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            break;
        }
        n |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(n);
        }
    }
    Err("a number is too long".to_owned())
}

fn small(n: u64) -> Result<u32, String> {
    u32::try_from(n).map_err(|_| format!("the number {n} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(rng: &mut fastrand::Rng) -> u64 {
        // As many bits as not: every length of a number, and often none.
        if rng.bool() { 0 } else { rng.u64(..) >> rng.u32(..64) }
    }
    fn any_small(rng: &mut fastrand::Rng) -> u32 {
        u32::try_from(any(rng) & u64::from(u32::MAX)).unwrap()
    }
    fn any_record(rng: &mut fastrand::Rng) -> (JobRecord, Option<Wall>) {
        let state = match rng.u8(..4) {
            0 => JobState::Ready { ticket: any(rng) },
            1 => JobState::Running { token: Token(any(rng)), continuing: rng.bool() },
            2 => JobState::Ended { how: end_of(rng.u8(..5)).unwrap(), at: Wall(any(rng)) },
            _ => JobState::Dead,
        };
        let mut r = JobRecord::new(JobId(any(rng)), KindId(any_small(rng)), rng.u8(..), state, None);
        r.attempts = any_small(rng);
        r.claims = any_small(rng);
        r.given_back = GivenBack {
            interrupted: any_small(rng),
            snoozed: any_small(rng),
            never_started: any_small(rng),
            settled: any_small(rng),
            died_beside_others: any_small(rng),
        };
        r.granted = any_small(rng);
        r.continues = rng.bool();
        r.replays = any_small(rng);
        r.strikes = rng.u8(..);
        r.first_strike = Wall(any(rng));
        r.suspect = rng.bool();
        r.revision = any_small(rng);
        let instant = |rng: &mut fastrand::Rng| rng.bool().then(|| Wall(any(rng).min(u64::MAX - 1)));
        r.deadline = instant(rng);
        r.last_token = Token(any(rng));
        r.effects = any_small(rng);
        r.memos = any_small(rng);
        r.journal = any_small(rng);
        r.cancel = rng.bool();
        (r, instant(rng))
    }

    /// Records of every sort are written and read: each comes back as it was, a job that has just begun takes few bytes, and a record
    /// that is cut short or continued is refused.
    #[test]
    fn a_record_comes_back_as_it_was() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut cut = 0;
        for _ in 0..4_000 {
            let (record, prune) = any_record(&mut rng);
            let mut bytes = Vec::new();
            let tail = write(&record, prune, &mut bytes);
            assert_eq!(tail, record.state == JobState::Dead);
            let (read_record, read_prune, rest) = read(&bytes).unwrap();
            assert_eq!((&read_record, read_prune), (&record, prune));
            assert_eq!(rest, tail.then_some(&[][..]));
            for n in 0..bytes.len() {
                assert!(read(&bytes[..n]).is_err(), "cut to {n} of {bytes:?}");
                cut += 1;
            }
            bytes.push(0);
            assert!(tail || read(&bytes).is_err());
        }
        assert!(cut > 100_000, "only {cut} records were cut");
        let mut bytes = Vec::new();
        write(
            &JobRecord::new(JobId(1_000_000), KindId(1), 128, JobState::Ready { ticket: 1_000_000 }, None),
            None,
            &mut bytes,
        );
        assert!(bytes.len() <= 12, "{bytes:?}");
    }

    /// Bytes that nobody wrote: unknown flags, no state, two states, numbers without an end or above 64 bits.
    #[test]
    fn what_nobody_wrote_is_refused() {
        for flags in [0, READY | ENDED, TAIL | RUNNING, READY | FIRST << NUMBERS] {
            let bytes = [&flags.to_le_bytes()[..], &[1; 40]].concat();
            assert!(read(&bytes).is_err(), "{flags:#x}");
        }
        let endless = [&READY.to_le_bytes()[..], &[0xff; 40]].concat();
        assert!(read(&endless).unwrap_err().contains("too long"));
        let mut rng = fastrand::Rng::with_seed(4);
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..rng.usize(..40)).map(|_| rng.u8(..)).collect();
            let _any = read(&bytes);
        }
    }
}

//! The trace that a sender is in, as the app says it: becomes a header of its messages.
//!
//! Keeps the promise that whatever the app's closure does, no message is lost for it: a panic or a value that is no `traceparent` is
//! left out, and said once. Asked where a transaction is handed in, called by `transact` and the handlers' commits.

use super::effect::panic_text;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// The header's name.
pub(crate) const TRACE_PARENT: &str = "traceparent";

type Ask = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// Who says which trace this thread or task is in, if anybody does.
#[derive(Default)]
pub(crate) struct TraceParent {
    ask: Option<Ask>,
    warned: AtomicBool,
}

impl TraceParent {
    pub(crate) fn new(ask: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self { ask: Some(Box::new(ask)), warned: AtomicBool::new(false) }
    }
    /// The trace of the caller; `warn` hears why there is none, once.
    pub(crate) fn now(&self, warn: impl FnOnce(&str)) -> Option<String> {
        let ask = self.ask.as_ref()?;
        let why = match catch_unwind(AssertUnwindSafe(ask)) {
            Ok(None) => return None,
            Ok(Some(said)) if is_trace_parent(&said) => return Some(said),
            Ok(Some(said)) => format!("it said {:?}", said.chars().take(80).collect::<String>()),
            Err(panic) => format!("it panicked: {}", panic_text(panic)),
        };
        if !self.warned.swap(true, Ordering::AcqRel) {
            warn(&format!(
                "messages go out without a traceparent: {why}; Builder::trace_parent wants one as W3C Trace Context has it \
                 (00-<32 hex digits>-<16 hex digits>-<2 hex digits>). This is said once"
            ));
        }
        None
    }
}

/// Version, trace id, parent id and flags, as W3C Trace Context has them. A later version may have more behind them.
fn is_trace_parent(text: &str) -> bool {
    let hex = |part: &str, len: usize| {
        part.len() == len && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let zero = |part: &str| part.bytes().all(|b| b == b'0');
    let mut parts = text.splitn(5, '-');
    let (Some(version), Some(trace), Some(parent), Some(flags)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    // A header of a reasonable length, in visible ASCII: it goes over every wire.
    let rest = parts
        .next()
        .is_none_or(|rest| version != "00" && rest.len() < 200 && rest.bytes().all(|b| b.is_ascii_graphic()));
    hex(version, 2)
        && version != "ff"
        && hex(trace, 32)
        && !zero(trace)
        && hex(parent, 16)
        && !zero(parent)
        && hex(flags, 2)
        && rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_w3c_trace_parent_is_one() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let later = format!("cc{}-what-comes-later", &good[2..]);
        for yes in [good, &later] {
            assert!(is_trace_parent(yes), "{yes}");
        }
        let zeroes = |from: usize, n: usize| format!("{}{}{}", &good[..from], "0".repeat(n), &good[from + n..]);
        let bad = [
            String::new(),
            "00-1-2-01".into(),
            good.to_uppercase(),
            good[..54].into(),
            format!("{good}-x"),
            format!("{good}\n"),
            format!("ff{}", &good[2..]),
            format!("{later}\r\nx"),
            zeroes(3, 32),
            zeroes(36, 16),
        ];
        for no in &bad {
            assert!(!is_trace_parent(no), "{no}");
        }
        println!("traceparent: 2 taken, {} refused", bad.len());
    }
}

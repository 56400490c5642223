//! Messages carry the trace of whoever handed the transaction in, as the app says it.

use super::super::ground::{PATIENCE, listen};
use super::broker::World;
use super::{Order, send};
use onceward::{Cx, Jobs, Message, Outgoing, State, prelude::Job as _};
use std::cell::RefCell;

thread_local! {
    /// What a tracing library would know about this thread.
    static HERE: RefCell<Option<String>> = const { RefCell::new(None) };
}

const ONE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TWO: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn here(trace: Option<&str>) {
    HERE.set(trace.map(str::to_owned));
}

fn header(m: &Message) -> Option<&str> {
    let all: Vec<_> = m.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("traceparent")).collect();
    assert!(all.len() < 2, "one at most: {m:?}");
    all.first().map(|(_, value)| value.as_str())
}

fn of<'m>(got: &'m [Message], id: &str) -> Option<&'m str> {
    header(got.iter().find(|m| m.id == id).unwrap())
}

/// A request is traced where it comes in and a handler where it runs; the closure runs on the writer's thread, which knows neither.
/// What the sender says itself counts more.
#[test]
fn a_message_carries_the_trace_of_whoever_handed_it_in() {
    let world = World::new();
    let handler = |cx: &Cx, order: Order| {
        here(Some(TWO));
        cx.commit("tell", move |tx| Ok(tx.outbox("t", format!("commit/{}", order.key()), &1).map(drop)?))?;
        cx.finish(|tx| Ok(tx.outbox("t", "finish", &1).map(drop)?))
    };
    let jobs = world.start_with(&["t"], |b| b.on(handler).trace_parent(|| HERE.with_borrow(Clone::clone)));
    here(Some(ONE));
    send(&jobs, "t", "t", "traced");
    jobs.transact(|tx| tx.send(Outgoing::new("t", "own", &1).header("Traceparent", "mine"))).unwrap();
    here(None);
    send(&jobs, "t", "t", "untraced");
    let id = jobs.enqueue(&Order::new("o", 1)).unwrap().id();
    assert_eq!(jobs.wait(id, PATIENCE).unwrap(), State::Done);
    world.settle(&jobs);
    let got = world.broker.got();
    assert_eq!((of(&got, "traced"), of(&got, "own"), of(&got, "untraced")), (Some(ONE), Some("mine"), None));
    let ids = world.broker.ids();
    let commit = ids.iter().find(|id| id.starts_with("commit/")).unwrap();
    assert_eq!((of(&got, commit), of(&got, "finish")), (Some(TWO), Some(TWO)));
    jobs.shutdown(PATIENCE).unwrap();
}

/// A hook that says nonsense, or panics, costs its header and one warning, never a message.
#[test]
fn a_bad_trace_parent_is_left_out_and_said_once() {
    let (heard, mut told_about) = (listen(), 0);
    for (word, bad) in [("no-such-trace", "no-such-trace"), ("traced into the wall", "panic")] {
        let world = World::new();
        let hook = move || {
            assert!(bad != "panic", "traced into the wall");
            Some(bad.to_owned())
        };
        let jobs: Jobs = world.start_with(&["t"], |b| b.trace_parent(hook));
        for id in ["a", "b", "c"] {
            send(&jobs, "t", "t", id);
        }
        world.settle(&jobs);
        assert!(world.broker.got().iter().all(|m| header(m).is_none()) && world.broker.ids().len() == 3);
        let warned = heard.count(&["without a traceparent", word]);
        assert_eq!(warned, 1, "{word}");
        told_about += warned;
        jobs.shutdown(PATIENCE).unwrap();
    }
    println!("traced: {told_about} warnings for 6 messages");
}

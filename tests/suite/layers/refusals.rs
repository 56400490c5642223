//! The check itself, on sources made by hand: what it must refuse, and what it must let pass.

use super::{Report, Source, check};

fn on(files: &[(&str, &str)]) -> Report {
    check(&files.iter().map(|(path, text)| Source { path: (*path).into(), text: (*text).into() }).collect::<Vec<_>>())
}

/// Each pair of files and words: the complaint must name the place and the reason, and be the only one.
fn refused(files: &[(&str, &str)], words: &[&str]) {
    let report = on(files);
    assert_eq!(report.wrong.len(), 1, "{files:?} must be refused once: {:#?}", report.wrong);
    for word in words {
        assert!(report.wrong[0].contains(word), "{:?} does not say {word:?}", report.wrong[0]);
    }
}

fn passes(files: &[(&str, &str)]) {
    let report = on(files);
    assert!(report.wrong.is_empty(), "{files:?} must pass: {:#?}", report.wrong);
}

const MODEL: (&str, &str) = ("model/mod.rs", "pub mod id;\npub use id::JobId;\n");
const ID: (&str, &str) = ("model/id.rs", "pub struct JobId(u64);\n");
const STORE: (&str, &str) = ("store/mod.rs", "pub struct Store;\n");
const RULES: (&str, &str) = ("rules/mod.rs", "pub mod admit;\npub struct Change;\npub enum Refusal { Ended }\n");
const ADMIT: (&str, &str) = ("rules/admit.rs", "pub fn admit() {}\n");

/// Somebody reaches up, in every way Rust lets one say it.
#[test]
fn an_import_upwards_is_refused_however_it_is_written() {
    let ways = [
        "use crate::store::Store;",
        "use crate::{store::{self, Store as S}};",
        "use super::super::store::Store;",
        "pub(crate) use crate::store::Store;",
        "fn f(_: &crate::store::Store) {}",
        "fn f(_: &super::super::store::Store) {}",
        "mod inner { use super::super::super::store::Store; }",
        "macro_rules! m { () => { $crate::store::Store } }",
        "use crate as me;\nfn f(_: me::store::Store) {}",
        "#[derive(Debug)] struct A(Option<Vec<crate::store::Store>>);",
        "/* \"*/ use crate::store::Store; // \"\n",
        "const Q: char = '\"'; use crate::store::Store; const R: &str = \"\";",
        "fn f<'a>(_: &'a str) -> crate::store::Store { todo() }",
    ];
    for way in ways {
        let report = on(&[("lib.rs", ""), ("model/mod.rs", "pub mod id;"), ("model/id.rs", way), STORE]);
        let said = |wrong: &String| wrong.contains("src/model/id.rs:") && wrong.contains("may not import `store`");
        assert!(report.wrong.iter().any(said), "{way} must be refused: {:#?}", report.wrong);
    }
    println!("layers: {} ways of reaching up refused", ways.len());
}

/// A re-export at the top is no side door: the name counts as what it is.
#[test]
fn a_re_export_does_not_hide_where_a_name_comes_from() {
    let lib = ("lib.rs", "pub mod store; mod engine;\npub use store::Store;\npub use engine::*;\n");
    let engine = ("engine/mod.rs", "pub struct Engine;");
    refused(
        &[lib, STORE, engine, ("rules/mod.rs", "use crate::Store;")],
        &["src/rules/mod.rs:1", "may not import `store`"],
    );
    refused(
        &[lib, STORE, engine, ("store/mod.rs", "\nuse crate::Engine;")],
        &["src/store/mod.rs:2", "may not import `engine`"],
    );
    passes(&[MODEL, ID, ("rules/mod.rs", "use crate::model::JobId;"), ("lib.rs", "pub use model::JobId; mod model;")]);
}

/// The store writes what the rules decided, and may not decide.
#[test]
fn the_store_takes_only_the_change_from_the_rules() {
    passes(&[RULES, ADMIT, ("store/mod.rs", "use crate::rules::Change;\nfn put(_: crate::rules::Change) {}")]);
    let way = "use crate::rules::{Change, admit::admit};";
    refused(&[RULES, ADMIT, ("store/mod.rs", way)], &["store/mod.rs:1", "only Change"]);
    refused(&[RULES, ADMIT, ("store/mod.rs", "use crate::rules;")], &["only Change"]);
    refused(&[RULES, ADMIT, ("store/mod.rs", "use crate::rules::*;")], &["glob"]);
    passes(&[RULES, ADMIT, ("error.rs", "use crate::rules::Refusal;")]);
    refused(&[RULES, ADMIT, ("error.rs", "use crate::rules::Change;")], &["error.rs:1", "only Refusal"]);
}

/// Two files that need each other cannot be read one after the other.
#[test]
fn an_import_cycle_is_refused_with_every_step() {
    let a = ("model/id.rs", "use super::job::Job;\npub struct JobId;");
    let b = ("model/job.rs", "\nuse super::effect::E;\npub struct Job;");
    let c = ("model/effect.rs", "use crate::model::id::JobId;\npub struct E;");
    let report = on(&[a, b, c, ("model/mod.rs", "pub mod id; pub mod job; pub mod effect;")]);
    assert_eq!(report.wrong.len(), 1, "{:#?}", report.wrong);
    for step in ["src/model/job.rs:2 imports src/model/effect.rs", "src/model/id.rs:1", "src/model/effect.rs:1"] {
        assert!(report.wrong[0].contains(step), "{:?} does not name {step}", report.wrong[0]);
    }
    let facade = ("model/mod.rs", "mod id;\npub use id::JobId;\npub struct Limits;");
    passes(&[facade, ("model/id.rs", "use super::Limits;\npub struct JobId;")]);
    let user = ("model/mod.rs", "mod id;\npub use id::JobId;\npub struct Limits(JobId);");
    refused(&[user, ("model/id.rs", "use super::Limits;\npub struct JobId;")], &["import cycle"]);
    refused(&[("desk.rs", "use crate::jobs::Jobs;"), ("jobs.rs", "use crate::desk::Desk;")], &["import cycle"]);
}

/// A crate outside its owner, under its own name, through an alias, or by its function alone.
#[test]
fn an_outside_crate_is_refused_away_from_its_owner() {
    let cases: [(&str, &str, &str); 20] = [
        ("engine/worker.rs", "use shuttle::thread;", "belongs to sync/"),
        ("handler/cx.rs", "use redb::Database;", "belongs to store/"),
        ("jobs.rs", "use redb::Database;", "belongs to store/"),
        ("handler/tx.rs", "fn f(_: redb::WriteTransaction) {}", "belongs to store/"),
        ("lib.rs", "pub use redb::Database;", "belongs to store/"),
        ("store/read.rs", "use bincode::config;", "belongs to store/codec.rs"),
        ("handler/cx.rs", "fn f(_: ::crossbeam_channel::Sender<u8>) {}", "belongs to engine/, store/"),
        ("engine/worker.rs", "use tokio::runtime::Handle;", "belongs to engine/bridge.rs"),
        ("handler/cx.rs", "async fn f() { tokio::task::yield_now().await }", "belongs to engine/bridge.rs"),
        ("jobs.rs", "use tokio::runtime::Runtime;", "belongs to engine/bridge.rs"),
        ("store/mod.rs", "use fastrand as dice;", "belongs to engine/"),
        ("store/disk.rs", "fn f() { fastrand::Rng::new(); }", "belongs to engine/"),
        ("engine/mod.rs", "fn f() { tracing::info!(\"done\") }", "belongs to observe/"),
        ("engine/mod.rs", "use std::time::{Instant as I};\nfn f() -> I { I::now() }", "belongs to clock.rs"),
        ("store/mod.rs", "fn f() { std::time::SystemTime::now(); }", "belongs to clock.rs"),
        ("store/mod.rs", "use std::{time};\nfn f() { time::SystemTime::now(); }", "belongs to clock.rs"),
        ("handler/cx.rs", "use std::thread;\nfn f() { thread::spawn(|| ()); }", "belongs to engine/"),
        ("store/read.rs", "use std::thread::Builder;", "belongs to engine/"),
        ("engine/mod.rs", "fn f() { std::thread::sleep(D); }", "belongs to nobody"),
        ("handler/cx.rs", "use rustix::time::ClockId;", "belongs to clock.rs"),
    ];
    for (file, text, why) in cases {
        refused(&[(file, text)], &[&format!("src/{file}:"), why]);
    }
    println!("layers: {} crates away from home refused", cases.len());
}

/// What `sync` hands on belongs to whom it belonged before: its names open no back door.
#[test]
fn what_sync_hands_on_keeps_its_owners() {
    let sync = ("sync.rs", include_str!("../../../src/sync.rs"));
    for (file, text, why) in [
        ("handler/cx.rs", "fn f() { crate::sync::channel::unbounded::<u8>(); }", "belongs to engine/, store/"),
        ("jobs.rs", "use crate::sync::thread;\nfn f() { thread::Builder::new(); }", "belongs to engine/"),
        ("rules/retry.rs", "use crate::sync::Mutex;", "sync"),
    ] {
        refused(&[(file, text), sync], &[&format!("src/{file}:"), why]);
    }
    passes(&[
        (
            "engine/mod.rs",
            "use crate::sync::{channel, thread};\nfn f() { thread::Builder::new(); channel::unbounded::<u8>(); }",
        ),
        sync,
    ]);
}

/// Rules and values compute; the outside world is handed to them.
#[test]
fn a_pure_floor_touches_nothing_outside() {
    refused(&[("rules/retry.rs", "use std::fs::File;")], &["only computes"]);
    refused(&[("model/id.rs", "fn f() { std::env::var(\"X\"); }")], &["only computes"]);
    refused(&[("wheel.rs", "use parking_lot::Mutex;")], &["only computes"]);
    passes(&[("model/id.rs", "use serde::Serialize;\nuse sha2::Digest;\nuse std::time::Duration;")]);
}

/// What belongs where it stands, is text, or is there for tests only.
#[test]
fn what_is_allowed_passes() {
    let fine: [(&str, &str); 16] = [
        ("store/read.rs", "use redb::{Database, ReadTransaction};"),
        ("store/codec.rs", "use bincode::config;"),
        ("store/writer.rs", "fn f() { std::thread::Builder::new(); crossbeam_channel::unbounded::<u8>(); }"),
        ("handler/tx.rs", "use redb::{Key, Table, TableDefinition, Value};"),
        ("jobs.rs", "fn read(_: &redb::ReadTransaction) {}"),
        ("builder.rs", "pub fn runtime(_: tokio::runtime::Handle) {}"),
        ("lib.rs", "pub use redb;"),
        ("store/disk.rs", "fn f(seed: u64) -> fastrand::Rng { fastrand::Rng::with_seed(seed) }"),
        ("engine/bridge.rs", "use tokio::runtime::Runtime;"),
        ("clock.rs", "use std::time::Instant;\nfn f() -> Instant { Instant::now() }"),
        ("engine/mod.rs", "use std::time::Instant;\nfn f(_: Instant) {}"),
        (
            "model/id.rs",
            "//! See [`crate::store::Store`].\n/* use redb::Database; */\nconst A: &str = \"use redb::Database;\";",
        ),
        (
            "model/id.rs",
            "const A: &str = r##\"use crate::store::Store; \"# \"##;\nconst B: &[u8] = b\"redb::Database\";",
        ),
        ("model/id.rs", "#[cfg(test)]\nmod tests { use super::*; fn f() { std::thread::sleep(D) } }"),
        ("model/id.rs", "#[cfg(all(unix, test))]\n#[allow(x)]\npub(crate) use redb::{Database};\nstruct A;"),
        ("rules/mod.rs", "#![cfg(test)]\nuse redb::Database;"),
    ];
    for one in fine {
        passes(&[one]);
    }
    passes(&[("rules/mod.rs", "#[cfg(test)]\nmod tests;"), ("rules/tests.rs", "use crate::store::Store;"), STORE]);
    println!("layers: {} allowed sources passed", fine.len() + 1);
}

/// Only what never ships is exempt.
#[test]
fn code_that_ships_is_not_exempt_because_it_says_test() {
    for gate in ["any(test, feature = \"testkit\")", "not(test)", "feature = \"testkit\"", "all(unix, not(test))"] {
        refused(&[("model/id.rs", &format!("#[cfg({gate})]\nuse redb::Database;"))], &["src/model/id.rs:2"]);
    }
    refused(&[("model/id.rs", "#[cfg(test)]\nfn f<A, B>() {}\nuse redb::Database;")], &["src/model/id.rs:3"]);
    refused(&[("model/id.rs", "struct A { #[cfg(test)] a: u8, b: redb::Database }")], &["src/model/id.rs:1"]);
}

/// A new module must be given a floor before it can grow roots.
#[test]
fn a_file_without_a_floor_is_refused() {
    refused(&[("helpers.rs", "pub fn f() {}")], &["src/helpers.rs:1", "stands on no floor"]);
}

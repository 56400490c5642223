//! Durable background jobs inside your app, in one file: a retry never repeats what already happened, and when the truth cannot
//! be known it stops and asks a person.
//!
//! A job's id comes from its **intent** (kind and key), not from the attempt. Each outside **effect** is recorded before the call
//! and confirmed after it, with one idempotency key on every attempt. A retry resumes: what is confirmed is skipped, what is
//! unknown is asked about, never blindly repeated. App tables, follow-up jobs and the job's progress **commit** in one redb
//! transaction. Claims are leases with fencing tokens. When retries end, a **dead letter** shows a person what failed, what was
//! done and what has to be decided.
//!
//! ```
//! use onceward::{prelude::*, redb::TableDefinition};
//! use serde::{Deserialize, Serialize};
//! use std::time::Duration;
//!
//! const NOTES: TableDefinition<u64, &str> = TableDefinition::new("notes");
//!
//! #[derive(Serialize, Deserialize)]
//! struct Notify { user: u64 }
//! impl Job for Notify {
//!     const KIND: &'static str = "notify";
//!     fn key(&self) -> JobKey { format!("user/{}", self.user).into() }
//!     fn effects() -> Vec<EffectCard> { vec![Push::card()] }
//! }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Push { user: u64 }
//! impl Effect for Push {
//!     type Result = String;
//!     const NAME: &'static str = "push";
//!     fn says(&self) -> String { format!("Tell user {} that the payment arrived", self.user) }
//!     fn recovery() -> Recovery { Recovery::same_key(Duration::from_secs(24 * 3600)) }
//! }
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("app.redb");
//! let jobs = Jobs::open(&path)
//!     .effect(|push: &Push, key| Ok(format!("msg-{}-{}", push.user, &key.as_str()[..8]))) // call the provider here
//!     .on(|cx: &Cx, job: Notify| {
//!         let message = cx.effect(Push { user: job.user })?;      // once, however often this runs
//!         cx.finish(move |tx| {                                   // app rows and the job's end together
//!             tx.open_table(NOTES)?.insert(job.user, message.as_str())?;
//!             Ok(())
//!         })
//!     })
//!     .start()?;
//! let id = jobs.enqueue(&Notify { user: 7 })?.id();
//! assert_eq!(jobs.wait(id, Duration::from_secs(10))?, onceward::State::Done);
//! assert!(!jobs.enqueue(&Notify { user: 7 })?.is_new()); // the same intent is the same job
//! jobs.shutdown(Duration::from_secs(5))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to look
//!
//! Beside this documentation, in the folder `docs` of the sources: `api.md` has everything that can be called on one page, `running.md`
//! which code runs on which thread and why nothing runs, `alerts.md` callbacks and metrics, `screens.md` letters in a window of your own.
//! [`Jobs`] and [`Builder`] are where to begin here.
//!
//! The queue speaks through `tracing`, target `onceward`. Without a subscriber nothing is printed, not even a warning; for a program that
//! has none, `cargo add tracing-subscriber`, and as the first line of `main`
//! `tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::INFO).init();`.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | (none) | everything blocking: threads, effects, letters, outbox, proof log; no runtime |
//! | `tokio` | async handlers, performers, probes and publishers, on a given runtime or one of our own |
//! | `jiff` | local UTC offsets in the [`ProofLog`] |
//! | `http`, `nats`, `postgres`, `mqtt` | a publisher each, in the module `publishers`: webhook, JetStream, inbox table, MQTT 5 |
//! | `testkit` | manual clock, simulated disk, run-until-idle: the module `testkit` |
//!
//! Async twins of the verbs that write or wait (`enqueue_async`, `transact_async`, ..) work on any runtime and without the feature.
//! The others only read the file (`dead_letters`, `history`, `outbox().topics()`, ..) and block for that long; a blocking verb that
//! writes blocks an async worker thread for about one commit.

pub use redb;

mod builder;
#[doc(hidden)]
pub mod clock;
mod desk;
mod engine;
mod error;
mod handler;
mod jobs;
#[doc(hidden)]
pub mod model;
pub mod observe;
mod outbox;
mod planted;
#[cfg(any(feature = "http", feature = "nats", feature = "postgres", feature = "mqtt"))]
pub mod publishers;
#[doc(hidden)]
pub mod rules;
#[doc(hidden)]
pub mod store;
mod sync;
#[cfg(feature = "testkit")]
pub mod testkit;
#[doc(hidden)]
pub mod wheel;

pub use builder::Builder;
pub use desk::alert::{Alert, AlertEvent};
pub use desk::check::{CheckAnswer, Checked};
pub use desk::decide::{Decided, Decision};
pub use desk::replay::{LetterFilter, ReplayPlan, Replayed};
pub use desk::trash::{Acted, Trashed};
pub use desk::{Choice, DeadLetter, LedgerLine, Needs};
pub use error::{Error, Setup};
pub use handler::async_cx::AsyncCx;
pub use handler::cx::{Cx, Stored};
pub use handler::effect::{Effect, LookUp, Undo};
pub use handler::fail::{Fail, FailExt, Outcome};
pub use handler::job::Job;
pub use handler::outbox::Outgoing;
pub use handler::publish::{AsyncPublisher, Publisher};
pub use handler::tx::Tx;
pub use jobs::{Jobs, Report, Scope};
pub use model::Limits;
pub use model::attempt::{Class, Outcome as AttemptOutcome};
pub use model::effect::{EffectCard, EffectState, Recovery, Refusal as NotHappened, Risk, UndoJob, Undoing};
pub use model::id::{EffectId, IdempotencyKey, JobId, JobKey, Token};
pub use model::job::{Codec, Enqueued, State};
pub use model::letter::{Entry, Signed, Verdict, Why};
pub use model::outbox::{Act, Ending, Message, OnStuck, Outboxed, Topic};
pub use model::policy::{Backoff, Keep, KindRules, OnDead, OnInterrupt, Policy};
pub use model::question::Question;
pub use model::review::Review;
pub use model::shown::Shown;
pub use model::time::Wall;
pub use observe::{
    AlertRule, AlertRules, AttemptLine, Firing, GaveBack, ProofLog, RetryRatio, SafetyCard, SafetyCards, Sink,
    Snapshot, Zone,
};
pub use outbox::{Outbox, OutboxMessage, TopicState};
pub use rules::Refusal;
pub use store::{AppRead, StoreError};

/// What most programs need.
pub mod prelude {
    pub use crate::{
        AsyncCx, Cx, Decision, Effect, EffectCard, Enqueued, Fail, FailExt, IdempotencyKey, Job, JobId, JobKey, Jobs,
        Message, OnDead, OnStuck, Outcome, Policy, Recovery, Risk, State, Topic, Tx, Undo,
    };
}

// Every block of code in these pages is compiled, and run where it can be, as it stands.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../docs/api.md")]
struct ApiPage;

#[cfg(doctest)]
#[doc = include_str!("../docs/running.md")]
struct RunningPage;

#[cfg(doctest)]
#[doc = include_str!("../docs/alerts.md")]
struct AlertsPage;

#[cfg(doctest)]
#[doc = include_str!("../docs/outbox.md")]
struct OutboxPage;

#[cfg(all(doctest, feature = "testkit"))]
#[doc = include_str!("../docs/testing.md")]
struct TestingPage;

// Whole programs, so they need the features that they are about.
#[cfg(all(doctest, feature = "http", feature = "nats", feature = "postgres", feature = "mqtt"))]
#[doc = include_str!("../docs/publishers.md")]
struct Publishers;

#[cfg(doctest)]
#[doc = include_str!("../docs/screens.md")]
struct Screens;

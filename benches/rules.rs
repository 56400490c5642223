//! What a decision costs: the pure rules, without a store. A job's whole life is a handful of these.

use criterion::{Criterion, criterion_group, criterion_main};
use onceward::model::attempt::{AttemptEnd, Class, Failure};
use onceward::model::id::{KindId, Token};
use onceward::model::policy::Policy;
use onceward::model::time::{Mono, Now, Wall};
use onceward::rules::admit::{self, Start};
use onceward::rules::{CallFacts, Env, lifecycle, retry};
use onceward::{Backoff, JobId};
use std::hint::black_box;
use std::time::Duration;

fn rules(c: &mut Criterion) {
    let kind = Policy::default().resolve(&[]);
    let now = Now { wall: Wall(1_767_225_600_000), mono: Mono(1_000) };
    let quiet =
        |_: &onceward::model::effect::EffectRecord| CallFacts { running_ms: None, quiet_ms: 0, key_age_ms: None };
    let env = Env { now, draw: 7, calls: &quiet };
    let new = admit::create(JobId::from_number(1), KindId(1), 128, Start::Now, &kind, now);
    let token = Token::first_of(3);

    let mut g = c.benchmark_group("rules");
    g.bench_function("create", |b| {
        b.iter(|| admit::create(black_box(JobId::from_number(1)), KindId(1), 128, Start::Now, &kind, now));
    });
    g.bench_function("claim", |b| {
        b.iter(|| lifecycle::claim(black_box(new.record()), token, &[], &kind, &env).expect("ready"));
    });
    let claim = lifecycle::claim(new.record(), token, &[], &kind, &env).expect("ready");
    let lease = claim.lease().expect("claimed");
    let running = claim.change().record();
    g.bench_function("end_success", |b| {
        b.iter(|| {
            lifecycle::end(black_box(running), &lease, AttemptEnd::Success, &[], &kind, &env).expect("its lease")
        });
    });
    let failure = Failure { class: Class::Transient, text: "503".into(), retry_after: None };
    g.bench_function("end_failed", |b| {
        b.iter(|| {
            let how = AttemptEnd::Failed(failure.clone());
            lifecycle::end(black_box(running), &lease, how, &[], &kind, &env).expect("its lease")
        });
    });
    let backoff = Backoff::exponential(Duration::from_secs(1), Duration::from_secs(900));
    g.bench_function("backoff", |b| b.iter(|| retry::backoff_ms(&backoff, black_box(5), black_box(12_345))));
    g.finish();
}

criterion_group!(benches, rules);
criterion_main!(benches);

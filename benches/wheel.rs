//! What a million waiting entries cost the timer wheel: putting them in, taking them out, firing them, asking what is next.
//! `cargo bench --bench wheel` measures; `cargo test --benches` runs each case once. Every case checks that it did its work.
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use onceward::wheel::{Wheel, WheelKey};
use std::hint::black_box;

const ENTRIES: u64 = 1_000_000;
const START_MS: u64 = 1_780_000_000_000;
const HOUR_MS: u64 = 3_600_000;
const YEAR_MS: u64 = 365 * 24 * HOUR_MS;

/// Due times in no order over the given span after the start.
fn due_times(span_ms: u64) -> impl Iterator<Item = u64> {
    (0..ENTRIES).map(move |i| START_MS + 1 + i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % span_ms)
}

fn full(span_ms: u64) -> (Wheel<u64>, Vec<WheelKey>) {
    let mut wheel = Wheel::new(START_MS);
    let keys = due_times(span_ms).zip(0..).map(|(due_ms, job)| wheel.insert(due_ms, job)).collect();
    (wheel, keys)
}

fn million(c: &mut Criterion) {
    let mut group = c.benchmark_group("wheel of a million");
    group.sample_size(10).throughput(Throughput::Elements(ENTRIES));

    group.bench_function("insert", |b| {
        b.iter_batched(
            || due_times(HOUR_MS).collect::<Vec<_>>(),
            |due_times| {
                let mut wheel = Wheel::new(START_MS);
                for (job, due_ms) in due_times.into_iter().enumerate() {
                    wheel.insert(due_ms, job as u64);
                }
                assert_eq!(wheel.len() as u64, ENTRIES);
                wheel
            },
            BatchSize::PerIteration,
        );
    });

    group.bench_function("remove", |b| {
        b.iter_batched(
            || {
                let (wheel, keys) = full(HOUR_MS);
                // Far from each other in memory, as finished jobs are; the stride shares no factor with the million.
                let scattered = (0..keys.len()).map(|i| keys[i * 611_953 % keys.len()]).collect::<Vec<_>>();
                (wheel, scattered)
            },
            |(mut wheel, keys)| {
                let removed = keys.into_iter().filter_map(|key| wheel.remove(key)).count();
                assert_eq!(removed as u64, ENTRIES);
                wheel
            },
            BatchSize::PerIteration,
        );
    });

    group.bench_function("advance through an hour, wake by wake", |b| {
        b.iter_batched(
            || full(HOUR_MS).0,
            |mut wheel| {
                let mut fired = Vec::new();
                let mut total = 0;
                while let Some(next_ms) = wheel.next_due() {
                    wheel.advance(next_ms, &mut fired);
                    total += fired.drain(..).count() as u64;
                }
                assert_eq!(total, ENTRIES);
            },
            BatchSize::PerIteration,
        );
    });

    for (name, span_ms) in [("advance over an hour at once", HOUR_MS), ("advance over ten years at once", 10 * YEAR_MS)]
    {
        group.bench_function(name, |b| {
            b.iter_batched(
                || full(span_ms).0,
                |mut wheel| {
                    let mut fired = Vec::with_capacity(ENTRIES as usize);
                    wheel.advance(u64::MAX, &mut fired);
                    assert_eq!(fired.len() as u64, ENTRIES);
                    fired
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();

    let mut group = c.benchmark_group("one call on a wheel of a million");
    let (mut wheel, _) = full(HOUR_MS);
    group.bench_function("next_due", |b| b.iter(|| black_box(&wheel).next_due().expect("a million entries wait")));
    group.bench_function("insert and remove", |b| {
        let mut turn = 0;
        b.iter(|| {
            turn += 1;
            let key = wheel.insert(START_MS + 1 + turn % HOUR_MS, turn);
            assert_eq!(wheel.remove(black_box(key)), Some(turn));
        });
    });
    group.finish();
}

criterion_group!(benches, million);
criterion_main!(benches);

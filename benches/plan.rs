//! How long the core takes: one plan of a built planner, and building it. Python's side is in `benches/test_plan.py`.
#![allow(
    missing_docs,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    reason = "a benchmark stops at what is wrong, and its macros are not documented"
)]

use std::hint::black_box;
use std::num::{NonZeroU32, NonZeroU64};

use criterion::{Criterion, criterion_group, criterion_main};
use poolplan_core::{Attention, Columns, Layer, PageSize, Runtime, Span, State, WindowRule};

/// 62 layers, every sixth of them full (Gemma-3-27B).
fn hybrid() -> Vec<Layer> {
    let layer = |span| Layer::new(vec![State::Attention(Attention::new(16, 128, 128, span).unwrap())]);
    (1..=62_u32).map(|i| layer(if i.is_multiple_of(6) { Span::Full } else { Span::Window(1024) })).collect()
}

fn runtime() -> Runtime {
    Runtime { page_size: PageSize::new(64).unwrap(), ..Runtime::new(131_072).unwrap() }
}

fn plans(criterion: &mut Criterion) {
    let layers = hybrid();
    let cap = Runtime {
        window_rule: WindowRule::RequestCap { prefix_tails: 0 },
        max_running_requests: NonZeroU64::new(64),
        chunked_prefill_size: NonZeroU64::new(8_192),
        ..runtime()
    };
    let cases = [
        ("default", Runtime { window_rule: WindowRule::KeepAll, ..runtime() }),
        ("hybrid", runtime()),
        ("hybrid, requests given", Runtime { max_running_requests: NonZeroU64::new(256), ..runtime() }),
        ("request cap", cap),
        ("hybrid, 4 stages", Runtime { pp_size: NonZeroU32::new(4).unwrap(), ..runtime() }),
    ];
    let mut group = criterion.benchmark_group("plan");
    for (name, runtime) in cases {
        let planner = runtime.create_planner(&layers, &[]).unwrap();
        group.bench_function(name, |bencher| bencher.iter(|| planner.plan(black_box(50 << 30))));
    }
    group.finish();
    let planner = runtime().create_planner(&layers, &[]).unwrap();
    let budgets: Vec<i64> = (0..100_000).map(|row| (16_i64 << 30) + (row * 2_654_435_761) % (64 << 30)).collect();
    let mut numbers = vec![vec![0_i64; budgets.len()]; 6];
    let mut group = criterion.benchmark_group("100,000 hybrid plans");
    for threads in [1, 2] {
        group.bench_function(format!("threads: {threads}"), |bencher| {
            bencher.iter(|| {
                let mut columns = numbers.iter_mut().map(Vec::as_mut_slice);
                let mut next = || columns.next().unwrap();
                let (tokens, requests, total_bytes) = (next(), next(), next());
                let columns = Columns { tokens, requests, total_bytes, pools: columns.collect() };
                planner.plan_batch(None, black_box(&budgets), columns, threads);
            });
        });
    }
    group.finish();
    criterion.bench_function("create_planner of 62 layers", |bencher| {
        bencher.iter(|| runtime().create_planner(black_box(&layers), &[]));
    });
}

criterion_group!(benches, plans);
criterion_main!(benches);

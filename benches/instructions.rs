//! Does one thing `count` times, for a counter of instructions: `instructions CASE COUNT`. `instructions.py` runs it.
#![allow(
    missing_docs,
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark stops at what is wrong"
)]

use std::hint::black_box;
use std::num::{NonZeroU32, NonZeroU64};

use poolplan_core::{Attention, Columns, Layer, PageSize, Planner, Runtime, Span, State, WindowRule};

const CASES: [&str; 7] = ["default", "hybrid", "request cap", "4 stages", "batch", "build of 62", "build of 124"];

/// Layers like those of Gemma-3-27B, every sixth of them full.
fn hybrid(layers: u32) -> Vec<Layer> {
    let layer = |span| Layer::new(vec![State::Attention(Attention::new(16, 128, 128, span).unwrap())]);
    (1..=layers).map(|i| layer(if i.is_multiple_of(6) { Span::Full } else { Span::Window(1024) })).collect()
}

fn runtime() -> Runtime {
    Runtime { page_size: PageSize::new(64).unwrap(), ..Runtime::new(131_072).unwrap() }
}

fn planner(case: &str) -> Planner {
    let runtime = match case {
        "default" => Runtime { window_rule: WindowRule::KeepAll, ..runtime() },
        "request cap" => Runtime {
            window_rule: WindowRule::RequestCap { prefix_tails: 0 },
            max_running_requests: NonZeroU64::new(64),
            chunked_prefill_size: NonZeroU64::new(8_192),
            ..runtime()
        },
        "4 stages" => Runtime { pp_size: NonZeroU32::new(4).unwrap(), ..runtime() },
        _ => runtime(),
    };
    runtime.create_planner(&hybrid(62), &[]).unwrap()
}

fn budget(row: u32) -> u64 {
    (16 << 30) + u64::from(row) * 2_654_435_761 % (64 << 30)
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let (Some(case), Some(count)) = (arguments.next(), arguments.next()) else {
        for case in CASES {
            println!("{case}");
        }
        return;
    };
    let count: u32 = count.parse().expect("a number");
    if let Some(layers) = case.strip_prefix("build of ") {
        let layers = hybrid(layers.parse().expect("a number"));
        (0..count).for_each(|_| {
            black_box(runtime().create_planner(black_box(&layers), &[])).unwrap();
        });
        return;
    }
    let planner = planner(&case);
    if case == "batch" {
        let budgets: Vec<_> = (0..count).map(|row| i64::try_from(budget(row)).unwrap()).collect();
        let mut numbers = vec![vec![0_i64; budgets.len()]; 6];
        let mut columns = numbers.iter_mut().map(Vec::as_mut_slice);
        let mut next = || columns.next().unwrap();
        let (tokens, requests, total_bytes) = (next(), next(), next());
        let columns = Columns { tokens, requests, total_bytes, pools: columns.collect() };
        planner.plan_batch(None, black_box(&budgets), columns, 1);
        black_box(numbers);
    } else {
        (0..count).for_each(|row| {
            black_box(planner.plan(black_box(budget(row)))).unwrap();
        });
    }
}

//! The three laws, for random pools of all growth rules at once and for random models; and the laws of `split_budget`.
//! Small worlds in full are in `exhaustive.rs`. `PROPTEST_CASES` sets the number of cases.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may stop at what is wrong"
)]

use std::num::{NonZeroU32, NonZeroU64};

use poolplan_core::{
    Attention, CacheFormat, Dtype, Error, Granularity, Growth, IndexFormat, IndexKey, LatentAttention, Layer, PageSize,
    Plan, Planner, Pool, Ratio, Requests, Runtime, Span, SplitPart, Stage, State, WindowRule, split_budget,
};
use proptest::prelude::*;

/// Budgets of every magnitude: small ones, device sizes, and up to 2^63.
fn budgets() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..5_000, (0_u32..63, 0_u64..1 << 20).prop_map(|(bits, low)| (1 << bits) + low)]
}

fn ratios() -> impl Strategy<Value = Ratio> {
    prop_oneof![
        Just(Ratio::ONE),
        (1_u64..=100).prop_map(|hundredths| Ratio::new(hundredths, 100).unwrap()),
        (1_u64..1 << 40, 1_u64..1 << 40).prop_map(|(a, b)| Ratio::new(a.min(b), a.max(b)).unwrap()),
    ]
}

fn pages() -> impl Strategy<Value = PageSize> {
    prop_oneof![Just(1_u64), 1_u64..=300, Just(1 << 20)].prop_map(|slots| PageSize::new(slots).unwrap())
}

fn cells() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(prop_oneof![Just(0_u64), 1_u64..10, 1_u64..1 << 24], 0..4)
}

fn growths() -> impl Strategy<Value = Growth> {
    prop_oneof![
        4 => ratios().prop_map(Growth::PerToken),
        2 => (0_u64..1 << 20, 0_u64..1 << 20, any::<bool>())
            .prop_map(|(slots, base, at_most_anchor)| Growth::PerRequest { slots, base, at_most_anchor }),
        1 => (0_u64..1 << 20).prop_map(Growth::Fixed),
        1 => (1_u64..100).prop_map(|hundredths| Growth::Share(Ratio::new(hundredths, 100).unwrap())),
    ]
}

fn pools() -> impl Strategy<Value = Pool> {
    (growths(), pages(), 0_u64..600, cells()).prop_map(|(growth, page, padding, cells)| {
        Pool::new("pool", page, growth).unwrap().with_padding(padding).with_buffers(&cells).unwrap()
    })
}

fn requests() -> impl Strategy<Value = Requests> {
    let some = |high| (1_u64..high).prop_map(|number| NonZeroU64::new(number).unwrap());
    prop_oneof![
        some(5_000).prop_map(Requests::AtMost),
        some(1 << 24).prop_map(|context_length| Requests::Estimated { context_length }),
    ]
}

#[derive(Clone, Debug)]
struct World {
    stages: Vec<Vec<Pool>>,
    page: PageSize,
    granularity: Granularity,
    requests: Requests,
    max_tokens: Option<u64>,
}

impl World {
    fn planner(&self) -> Option<Planner> {
        let stages = self.stages.iter().map(|pools| Stage::new(pools.clone(), self.page, self.granularity));
        let stages = stages.collect::<Result<Vec<_>, _>>().ok()?;
        Planner::new(stages, self.page, self.requests, self.max_tokens).ok()
    }

    fn shares(&self) -> bool {
        self.stages.iter().flatten().any(|pool| matches!(pool.growth(), Growth::Share(_)))
    }
}

fn worlds() -> impl Strategy<Value = World> {
    let granularities = prop_oneof![Just(1_u64), Just(512), Just(2 << 20), 1_u64..100];
    let stages = proptest::collection::vec(proptest::collection::vec(pools(), 1..5), 1..3);
    let max_tokens = proptest::option::weighted(0.2, 0_u64..1 << 62);
    (stages, pages(), granularities, requests(), max_tokens).prop_map(
        |(stages, page, granularity, requests, max_tokens)| World {
            stages,
            page,
            granularity: Granularity::new(granularity).unwrap(),
            requests,
            max_tokens,
        },
    )
}

fn bytes(planner: &Planner, tokens: u64, requests: u64, budget_bytes: u64) -> u128 {
    let plan = Plan { tokens, requests, budget_bytes };
    planner.stages().iter().map(|stage| stage.bytes(&plan)).max().unwrap()
}

proptest! {
    /// Laws 1 and 2: the plan fits, and one more page of the anchor does not.
    #[test]
    fn a_plan_fits_and_is_maximal(world in worlds(), budget in budgets()) {
        let Some(planner) = world.planner() else { return Ok(()) };
        match planner.plan(budget) {
            Ok(plan) => {
                prop_assert!(bytes(&planner, plan.tokens, plan.requests, budget) <= budget.into());
                prop_assert_eq!(plan.tokens % world.page.slots(), 0);
                prop_assert_eq!(plan.requests, world.requests.at(plan.tokens));
                let next = plan.tokens.saturating_add(world.page.slots());
                let limit = world.max_tokens.unwrap_or(i64::MAX as u64);
                let capped = next > limit;
                prop_assert!(capped || bytes(&planner, next, world.requests.at(next), budget) > budget.into());
            }
            Err(Error::InsufficientMemory { required_bytes, .. }) => {
                prop_assert!(required_bytes > budget.into() || world.shares());
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A refusal says the least budget that works: it works, and one byte less does not.
    #[test]
    fn a_refusal_names_the_least_budget_that_works(world in worlds(), budget in budgets()) {
        let Some(planner) = world.planner() else { return Ok(()) };
        let Err(Error::InsufficientMemory { required_bytes, .. }) = planner.plan(budget) else { return Ok(()) };
        let Ok(required) = u64::try_from(required_bytes) else { return Ok(()) };
        prop_assert!(planner.plan(required).is_ok());
        prop_assert!(world.shares() || planner.plan(required - 1).is_err());
    }

    /// Law 3: more budget never gives fewer tokens. Beside a share: never fewer slots there, and with the same slots there
    /// never fewer tokens.
    #[test]
    fn more_budget_never_gives_less(world in worlds(), budget in budgets(), more in budgets()) {
        let Some(planner) = world.planner() else { return Ok(()) };
        let larger = budget.saturating_add(more).min(i64::MAX as u64);
        let (Ok(first), Ok(second)) = (planner.plan(budget.min(larger)), planner.plan(larger)) else {
            prop_assert!(planner.plan(budget.min(larger)).is_err() || world.shares());
            return Ok(());
        };
        let share_slots = |plan: &Plan| -> Vec<u64> {
            let all = planner.stages().iter().flat_map(|stage| stage.pools().iter().map(move |pool| (stage, pool)));
            all.filter(|(_, pool)| matches!(pool.growth(), Growth::Share(_))).map(|(stage, pool)| stage.slots(pool, plan)).collect()
        };
        let (before, after) = (share_slots(&first), share_slots(&second));
        prop_assert!(before.iter().zip(&after).all(|(before, after)| before <= after));
        prop_assert!(before != after || first.tokens <= second.tokens);
    }

    /// Law 3: a larger cell never gives more tokens.
    #[test]
    fn a_larger_cell_never_gives_more(world in worlds(), budget in budgets(), extra in 1_u64..1 << 20) {
        if world.shares() { return Ok(()) }
        let mut larger = world.clone();
        let grown = larger.stages.first_mut().and_then(|stage| stage.first_mut()).unwrap();
        *grown = grown.clone().with_buffers(&[extra]).unwrap();
        let (Some(planner), Some(larger)) = (world.planner(), larger.planner()) else { return Ok(()) };
        match (planner.plan(budget), larger.plan(budget)) {
            (Ok(plan), Ok(less)) => prop_assert!(less.tokens <= plan.tokens),
            (Err(_), Ok(_)) => prop_assert!(false, "a larger cell made a plan possible"),
            (_, Err(_)) => {}
        }
    }

    /// A plan from tokens costs the least budget that gives those tokens.
    #[test]
    fn a_plan_from_tokens_and_a_plan_from_its_budget_agree(world in worlds(), tokens in 0_u64..1 << 40) {
        let Some(planner) = world.planner() else { return Ok(()) };
        let Ok(plan) = planner.plan_from_max_tokens(tokens) else { return Ok(()) };
        prop_assert!(bytes(&planner, plan.tokens, plan.requests, plan.budget_bytes) <= plan.budget_bytes.into());
        if world.max_tokens.is_none_or(|most| plan.tokens <= most) {
            prop_assert!(planner.plan(plan.budget_bytes).unwrap().tokens >= plan.tokens);
        }
    }

    /// The parts are whole granules, never above the total together, near their proportion, and leave less than a granule.
    #[test]
    fn a_split_is_exact(
        total in any::<u64>(),
        parts in proptest::collection::vec((prop_oneof![Just(0_u64), any::<u64>(), 1_u64..100], 1_u64..1 << 40), 0..8),
        same in any::<bool>(),
    ) {
        let first = parts.first().map_or(1, |part| part.1);
        let parts: Vec<_> = parts.into_iter().map(|(weight, granule)| SplitPart {
            weight,
            granularity: Granularity::new(if same { first } else { granule }).unwrap(),
        }).collect();
        let shares = split_budget(total, &parts);
        let sum: u128 = shares.iter().map(|&share| u128::from(share)).sum();
        prop_assert!(sum <= total.into());
        let weights: u128 = parts.iter().map(|part| u128::from(part.weight)).sum();
        for (part, &share) in parts.iter().zip(&shares) {
            prop_assert_eq!(share % part.granularity.bytes(), 0);
            prop_assert!(part.weight > 0 || share == 0);
            if same && weights > 0 {
                let ideal = u128::from(total) * u128::from(part.weight) / weights;
                prop_assert!(u128::from(share).abs_diff(ideal) <= part.granularity.bytes().into());
            }
        }
        let least = parts.iter().filter(|part| part.weight > 0).map(|part| part.granularity.bytes()).min();
        prop_assert!(least.is_none_or(|least| u128::from(total) - sum < least.into()));
    }

    /// Models with random layers under random options: a plan that obeys the laws or an error, never anything else.
    #[test]
    fn any_model_under_any_options(layers in proptest::collection::vec(layers(), 0..12), runtime in runtimes(), budget in budgets()) {
        let Ok(planner) = runtime.create_planner(&layers) else { return Ok(()) };
        let page = runtime.page_size.slots();
        if let Ok(plan) = planner.plan(budget) {
            prop_assert!(bytes(&planner, plan.tokens, plan.requests, budget) <= budget.into());
            let next = plan.tokens + page;
            let capped = runtime.max_total_tokens.is_some_and(|most| next > most);
            prop_assert!(capped || planner.cost(next) > budget.into());
            for (stage, pool) in planner.stages().iter().flat_map(|stage| stage.pools().iter().map(move |pool| (stage, pool))) {
                prop_assert!(pool.minimum().is_none_or(|minimum| stage.slots(pool, &plan) >= minimum.slots));
            }
        }
    }
}

fn spans() -> impl Strategy<Value = Span> {
    prop_oneof![Just(Span::Full), (1_u32..5_000).prop_map(Span::Window), (1_u32..10_000).prop_map(Span::Chunk)]
}

fn layers() -> impl Strategy<Value = Layer> {
    let attention = (0_u32..4, 1_u32..10, 1_u32..10, spans()).prop_map(|(heads, key, value, span)| {
        State::Attention(Attention::new(1 << heads, key * 32, value * 32, span).unwrap())
    });
    let latent = (1_u32..20, 0_u32..3, spans())
        .prop_map(|(rank, rope, span)| State::Latent(LatentAttention::new(rank * 32, rope * 32, span).unwrap()));
    let sparse = (1_u32..5, spans()).prop_map(|(rank, span)| {
        State::Latent(LatentAttention { sparse: true, ..LatentAttention::new(rank * 128, 64, span).unwrap() })
    });
    let index = prop_oneof![Just(IndexFormat::Fp8Blocks), Just(IndexFormat::Bfloat16)]
        .prop_map(|format| State::IndexKey(IndexKey::new(128, format).unwrap()));
    proptest::collection::vec(prop_oneof![attention, latent, sparse, index], 0..3).prop_map(Layer::new)
}

fn runtimes() -> impl Strategy<Value = Runtime> {
    let rules =
        prop_oneof![ratios().prop_map(WindowRule::Ratio), Just(WindowRule::KeepAll), Just(WindowRule::RequestCap)];
    let sizes = (0_u32..4, 1_u32..4, pages(), 1_u64..1 << 20, 0_usize..Dtype::ALL.len());
    let limits = (
        proptest::option::of(1_u64..1 << 40),
        proptest::option::of(1_u64..5_000),
        proptest::option::of(1_u64..1 << 20),
        proptest::option::of(1_u64..20_000),
    );
    (rules, sizes, limits, any::<[bool; 3]>()).prop_map(|(window_rule, sizes, limits, [overlap, padding, table])| {
        let (tp, pp, page_size, context, dtype) = sizes;
        let (max_total_tokens, requests, request, chunk) = limits;
        Runtime {
            tp_size: NonZeroU32::new(1 << tp).unwrap(),
            pp_size: NonZeroU32::new(pp).unwrap(),
            page_size,
            format: CacheFormat { dtype: *Dtype::ALL.get(dtype).unwrap(), raw_sparse_rows: padding },
            window_rule,
            max_total_tokens,
            max_running_requests: requests.and_then(NonZeroU64::new),
            request_tokens: request.map(|request| request.min(context)).and_then(NonZeroU64::new),
            chunked_prefill_size: chunk.and_then(NonZeroU64::new),
            overlap_schedule: overlap,
            count_padding: padding,
            count_request_table: table,
            ..Runtime::new(context).unwrap()
        }
    })
}

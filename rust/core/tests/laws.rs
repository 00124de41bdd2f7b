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
    Attention, CacheFormat, CompressedLatent, CompressorState, Dtype, Error, Granularity, Growth, IndexFormat,
    IndexKey, LatentAttention, Layer, PageSize, Plan, Planner, Pool, Ranks, Ratio, RecurrentState, Requests, Runtime,
    Sharding, Span, Speculation, SplitPart, Stage, State, StateRole, StateRule, StateTensor, WindowRule, split_budget,
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
        some(1 << 24).prop_map(|context_length| Requests::WholeContexts { context_length }),
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

fn bytes(planner: &Planner, plan: &Plan) -> u128 {
    planner.stages().iter().map(|stage| stage.bytes(plan)).max().unwrap()
}

/// The plan with one step of tokens more, and as many requests as that then allows.
fn one_step_more(plan: &Plan, step: u64, requests: impl Fn(u64) -> u64) -> Plan {
    let tokens = plan.tokens.saturating_add(step);
    Plan { tokens, requests: requests(tokens), ..*plan }
}

proptest! {
    /// Laws 1 and 2: the plan fits, and one more page of the anchor does not.
    #[test]
    fn a_plan_fits_and_is_maximal(world in worlds(), budget in budgets()) {
        let Some(planner) = world.planner() else { return Ok(()) };
        match planner.plan(budget) {
            Ok(plan) => {
                prop_assert!(bytes(&planner, &plan) <= budget.into());
                prop_assert_eq!(plan.tokens % world.page.slots(), 0);
                prop_assert_eq!(plan.requests, world.requests.at(plan.tokens));
                let more = one_step_more(&plan, world.page.slots(), |tokens| world.requests.at(tokens));
                let capped = more.tokens > world.max_tokens.unwrap_or(i64::MAX as u64);
                prop_assert!(capped || bytes(&planner, &more) > budget.into());
            }
            Err(Error::InsufficientMemory { required_bytes, .. }) => {
                prop_assert!(required_bytes > budget.into());
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
        prop_assert!(planner.plan(required - 1).is_err());
    }

    /// Law 3: more budget never gives fewer tokens. Beside a share: never fewer slots there, and with the same slots there
    /// never fewer tokens.
    #[test]
    fn more_budget_never_gives_less(world in worlds(), budget in budgets(), more in budgets()) {
        let Some(planner) = world.planner() else { return Ok(()) };
        let larger = budget.saturating_add(more).min(i64::MAX as u64);
        let (Ok(first), Ok(second)) = (planner.plan(budget.min(larger)), planner.plan(larger)) else {
            prop_assert!(planner.plan(budget.min(larger)).is_err());
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
        prop_assert!(bytes(&planner, &plan) <= plan.budget_bytes.into());
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
    fn any_model_under_any_options(layers in proptest::collection::vec(layers(), 0..12), drafts in proptest::collection::vec(layers(), 0..2), runtime in runtimes(), budget in budgets()) {
        let Ok(planner) = runtime.create_planner(&layers, &drafts) else { return Ok(()) };
        if let Ok(plan) = planner.plan(budget) {
            prop_assert!(bytes(&planner, &plan) <= budget.into());
            let step = planner.page_size().slots();
            prop_assert_eq!(plan.tokens % step, 0);
            let more = one_step_more(&plan, step, |tokens| planner.requests_at(tokens, plan.share_slots));
            let capped = planner.max_tokens() < more.tokens;
            prop_assert!(capped || bytes(&planner, &more) > budget.into());
            for (stage, pool) in planner.stages().iter().flat_map(|stage| stage.pools().iter().map(move |pool| (stage, pool))) {
                prop_assert!(pool.minimum().is_none_or(|minimum| stage.slots(pool, &plan) >= minimum.slots));
            }
        }
    }
}

fn spans() -> impl Strategy<Value = Span> {
    prop_oneof![
        4 => Just(Span::Full),
        2 => (1_u32..5_000).prop_map(Span::Window),
        2 => (1_u32..10_000).prop_map(Span::Chunk),
        1 => prop_oneof![Just(4), Just(128), Just(16)].prop_map(Span::Compressed),
        1 => (1_u32..2_000).prop_map(Span::Encoder),
    ]
}

/// Recurrent state of every form: heads, groups, and what every rank holds whole.
fn recurrent() -> impl Strategy<Value = State> {
    let sharding = prop_oneof![Just(Sharding::Heads), Just(Sharding::Groups), Just(Sharding::Whole)];
    let role = prop_oneof![Just(StateRole::Conv), Just(StateRole::Temporal)];
    let tensor = (0_u32..6, 1_u32..20_000, role, sharding)
        .prop_map(|(heads, elements, role, sharding)| StateTensor::new(1 << heads, elements, role, sharding).unwrap());
    proptest::collection::vec(tensor, 1..4).prop_map(|tensors| State::Recurrent(RecurrentState::new(tensors)))
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
    let index = prop_oneof![Just(IndexFormat::Fp8Blocks), Just(IndexFormat::Bfloat16)].prop_flat_map(|format| {
        let spans = prop_oneof![Just(Span::Full), Just(Span::Compressed(4))];
        spans.prop_map(move |span| State::IndexKey(IndexKey::new(128, format, span).unwrap()))
    });
    let compressed =
        prop_oneof![(1_u32..5_000).prop_map(Span::Window), prop_oneof![Just(4), Just(128)].prop_map(Span::Compressed),]
            .prop_map(|span| State::CompressedLatent(CompressedLatent::new(448, 64, span).unwrap()));
    let compressor =
        prop_oneof![Just(4), Just(128)].prop_map(|ratio| State::Compressor(CompressorState::new(ratio, 1024).unwrap()));
    let states = prop_oneof![4 => attention, 2 => latent, 1 => sparse, 1 => index, 1 => compressed, 1 => compressor, 2 => recurrent()];
    proptest::collection::vec(states, 0..3).prop_map(Layer::new)
}

fn runtimes() -> impl Strategy<Value = Runtime> {
    let rules = prop_oneof![
        ratios().prop_map(WindowRule::Ratio),
        Just(WindowRule::KeepAll),
        (0_u64..5).prop_map(|prefix_tails| WindowRule::RequestCap { prefix_tails }),
    ];
    let states = prop_oneof![
        4 => (1_u64..990).prop_map(|tenths| StateRule::Ratio(Ratio::new(tenths, 10).unwrap())),
        1 => (1_u64..5_000).prop_map(|slots| StateRule::Slots(NonZeroU64::new(slots).unwrap())),
        1 => Just(StateRule::Requests),
    ];
    let speculation = proptest::option::of((1_u64..10, 1_u64..8, 1_u64..5)).prop_map(|numbers| {
        numbers.map(|(draft_tokens, steps, topk)| Speculation {
            draft_tokens: NonZeroU64::new(draft_tokens).unwrap(),
            steps: NonZeroU64::new(steps).unwrap(),
            topk: NonZeroU64::new(topk).unwrap(),
        })
    });
    let sizes = (0_u32..4, 1_u32..4, pages(), 1_u64..1 << 20, 0_usize..Dtype::ALL.len());
    let limits = (
        proptest::option::of(1_u64..1 << 40),
        proptest::option::of(1_u64..5_000),
        proptest::option::of(1_u64..1 << 20),
        proptest::option::of(1_u64..20_000),
    );
    let rules = (rules, states, 1_u64..6, speculation);
    (rules, sizes, limits, any::<[bool; 4]>()).prop_map(|(rules, sizes, limits, [overlap, padding, table, dcp])| {
        let (window_rule, state_rule, held, speculation) = rules;
        let (tp, pp, page_size, context, dtype) = sizes;
        let dtype = *Dtype::ALL.get(dtype).unwrap();
        let (max_total_tokens, requests, request, chunk) = limits;
        Runtime {
            ranks: Ranks {
                tp_size: NonZeroU32::new(1 << tp).unwrap(),
                dcp_size: NonZeroU32::new(1 << (tp * u32::from(dcp) / 2)).unwrap(),
            },
            pp_size: NonZeroU32::new(pp).unwrap(),
            page_size,
            format: CacheFormat { raw_sparse_rows: padding, ..CacheFormat::new(dtype) },
            window_rule,
            state_rule,
            state_slots_per_request: NonZeroU64::new(held).unwrap(),
            speculation,
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

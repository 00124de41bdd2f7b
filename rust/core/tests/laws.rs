//! The three laws, for random pools of all growth rules at once and for random models.
//! Small worlds in full are in `exhaustive.rs`. `PROPTEST_CASES` sets the number of cases.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may stop at what is wrong"
)]

use std::num::NonZeroU64;

use poolplan_core::{
    Allocator, Columns, Error, Granularity, Growth, PageSize, Plan, Planner, Pool, Ratio, Requests, Stage,
};
use proptest::prelude::*;

mod strategies;
use strategies::{budgets, layers, pages, ratios, runtimes};

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
    allocator: Allocator,
    requests: Requests,
    max_tokens: Option<u64>,
}

impl World {
    fn planner(&self) -> Option<Planner> {
        let stages = self.stages.iter().map(|pools| Stage::new(pools.clone(), self.page, self.allocator));
        let stages = stages.collect::<Result<Vec<_>, _>>().ok()?;
        Planner::new(stages, self.page, self.requests, self.max_tokens).ok()
    }

    fn shares(&self) -> bool {
        self.stages.iter().flatten().any(|pool| matches!(pool.growth(), Growth::Share(_)))
    }
}

fn worlds() -> impl Strategy<Value = World> {
    let granularities = prop_oneof![Just(1_u64), Just(512), Just(2 << 20), 1_u64..100];
    let allocators = prop_oneof![
        4 => granularities.prop_map(|bytes| Allocator::Granules(Granularity::new(bytes).unwrap())),
        1 => Just(Allocator::Torch),
        1 => Just(Allocator::TorchExpandable),
    ];
    let stages = proptest::collection::vec(proptest::collection::vec(pools(), 1..5), 1..3);
    let max_tokens = proptest::option::weighted(0.2, 0_u64..1 << 62);
    (stages, pages(), allocators, requests(), max_tokens).prop_map(|(stages, page, allocator, requests, max_tokens)| {
        World { stages, page, allocator, requests, max_tokens }
    })
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

    /// Models with random layers under random options: a plan that obeys the laws or an error, never anything else.
    #[test]
    fn any_model_under_any_options(layers in proptest::collection::vec(layers(), 0..12), drafts in proptest::collection::vec(layers(), 0..2), runtime in runtimes(), budget in budgets()) {
        let Ok(planner) = runtime.create_planner(&layers, &drafts) else { return Ok(()) };
        if let Ok(plan) = planner.plan(budget) {
            prop_assert!(bytes(&planner, &plan) <= budget.into());
            let step = planner.page_size().slots();
            prop_assert_eq!(plan.tokens % step, 0);
            prop_assert_eq!(plan.requests, planner.requests_at(plan.tokens, plan.share_slots));
            let more = one_step_more(&plan, step, |tokens| planner.requests_at(tokens, plan.share_slots));
            let capped = planner.max_tokens() < more.tokens;
            prop_assert!(capped || bytes(&planner, &more) > budget.into());
            for (stage, pool) in planner.stages().iter().flat_map(|stage| stage.pools().iter().map(move |pool| (stage, pool))) {
                prop_assert!(pool.minimum().is_none_or(|minimum| stage.slots(pool, &plan) >= minimum.slots));
            }
        }
    }
    /// Many budgets at once are what each of them is alone.
    #[test]
    fn a_batch_is_its_plans(layers in proptest::collection::vec(layers(), 1..8), runtime in runtimes(), budgets in proptest::collection::vec(budgets(), 0..40)) {
        let Ok(planner) = runtime.create_planner(&layers, &[]) else { return Ok(()) };
        let budgets: Vec<_> = budgets.into_iter().map(|budget| budget as i64).collect();
        let pools = planner.stages()[0].pools().len();
        let mut numbers = vec![vec![-1_i64; budgets.len()]; pools + 3];
        let mut columns = numbers.iter_mut().map(Vec::as_mut_slice);
        let mut next = || columns.next().unwrap();
        let (tokens, requests, total_bytes) = (next(), next(), next());
        planner.plan_batch(None, &budgets, Columns { tokens, requests, total_bytes, pools: columns.collect() }, 2);
        for (row, &budget) in budgets.iter().enumerate() {
            let found: Vec<_> = numbers.iter().map(|column| column[row]).collect();
            let expected = match u64::try_from(budget).map(|budget| planner.plan(budget)) {
                Ok(Ok(plan)) => {
                    let stage = &planner.stages()[planner.costliest_stage(&plan)];
                    let slots = stage.pools().iter().map(|pool| stage.slots(pool, &plan) as i64);
                    [plan.tokens as i64, plan.requests as i64, stage.bytes(&plan) as i64].into_iter().chain(slots).collect()
                }
                _ => vec![0; pools + 3],
            };
            prop_assert_eq!(found, expected);
        }
    }
}

//! Recurrent state, compressed entries, drafts and ranks that share tokens: numbers from outside this crate.
//! Plain attention and windows are in `facts.rs`; the laws of all of them in `laws.rs`.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may stop at what is wrong"
)]

use std::num::{NonZeroU32, NonZeroU64};

use poolplan_core::{
    Attention, CacheFormat, CompressedLatent, CompressorState, Dtype, Error, IndexFormat, IndexKey, LatentAttention,
    Layer, PageSize, Plan, Planner, Ranks, Ratio, RecurrentState, Runtime, Sharding, Span, Speculation, State,
    StateRole, StateRule, StateTensor, WindowRule, cell_bytes,
};

fn tensor(heads: u32, elements: u32, role: StateRole) -> StateTensor {
    StateTensor::new(heads, elements, role, Sharding::Heads).unwrap()
}

/// The state of a layer of Qwen3-Next: conv 8192 x 3, state 32 x 128 x 128.
fn gated_delta_net() -> State {
    State::Recurrent(RecurrentState::new(vec![
        tensor(16, 2 * 128 * 3, StateRole::Conv),
        tensor(32, 128 * 3, StateRole::Conv),
        tensor(32, 128 * 128, StateRole::Temporal),
    ]))
}

/// 36 layers with a state and 12 with 2 heads of 256.
fn qwen3_next() -> Vec<Layer> {
    let attention = State::Attention(Attention::new(2, 256, 256, Span::Full).unwrap());
    let layer = |i: u32| if i % 4 == 3 { attention.clone() } else { gated_delta_net() };
    (0..48).map(|i| Layer::new(vec![layer(i)])).collect()
}

fn bare(context_length: u64) -> Runtime {
    Runtime { count_padding: false, count_request_table: false, ..Runtime::new(context_length).unwrap() }
}

fn slots(planner: &Planner, plan: &Plan) -> Vec<(String, u64)> {
    let stage = planner.stages().first().unwrap();
    stage.pools().iter().map(|pool| (pool.name().to_owned(), stage.slots(pool, plan))).collect()
}

fn named(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    expected.iter().map(|&(name, slots)| (name.to_owned(), slots)).collect()
}

/// SGLang 0.5.23: 77,266,944 bytes a request on one rank, 4,829,184 on each of 16.
#[test]
fn a_state_takes_the_bytes_that_sglang_shapes() {
    let format = CacheFormat::new(Dtype::Bfloat16);
    for (ranks, bytes) in [(1, 77_266_944), (4, 19_316_736), (16, 4_829_184)] {
        let ranks = Ranks::new(NonZeroU32::new(ranks).unwrap());
        assert_eq!(36 * cell_bytes(&gated_delta_net(), format, ranks).unwrap(), bytes);
    }
    let uneven = Ranks::new(NonZeroU32::new(3).unwrap());
    assert!(matches!(
        cell_bytes(&gated_delta_net(), format, uneven),
        Err(Error::InvalidOption { option: "tp_size", .. })
    ));
}

/// SGLang 0.5.23 with 20 GiB: 130 slots, of which a request holds 3, 461,949 tokens and 43 requests. The slot that no
/// request can use is 3,144 tokens here.
#[test]
fn states_and_tokens_share_a_budget() {
    let planner = bare(262_144).create_planner(&qwen3_next(), &[]).unwrap();
    let plan = planner.plan(20 << 30).unwrap();
    assert_eq!(plan.requests, 43);
    assert_eq!(slots(&planner, &plan), named(&[("full", 461_949 + 77_266_944 / 24_576), ("mamba", 129)]));
}

/// SGLang 0.5.23: 64 slots leave 669,453 tokens and serve 21 requests; without a radix cache 48 requests have 48 slots.
#[test]
fn slots_may_be_given_or_follow_requests() {
    let given = Runtime { state_rule: StateRule::Slots(NonZeroU64::new(64).unwrap()), ..bare(262_144) };
    let planner = given.create_planner(&qwen3_next(), &[]).unwrap();
    let plan = planner.plan(20 << 30).unwrap();
    assert_eq!((plan.tokens, plan.requests), (669_453, 21));
    let follow = Runtime {
        state_rule: StateRule::Requests,
        state_slots_per_request: NonZeroU64::MIN,
        max_running_requests: NonZeroU64::new(48),
        ..bare(262_144)
    };
    let planner = follow.create_planner(&qwen3_next(), &[]).unwrap();
    let plan = planner.plan(20 << 30).unwrap();
    assert_eq!((plan.tokens, plan.requests), (719_757, 48));
}

/// A model of states only has the whole budget: 64 layers of 4,255,744 bytes (Mamba-Codestral-7B) are 272,367,616 a slot, of
/// which 20 GiB hold 78, one of them padding.
#[test]
fn states_alone_take_the_whole_budget() {
    let state = State::Recurrent(RecurrentState::new(vec![
        tensor(128, 64 * 3, StateRole::Conv),
        StateTensor::new(8, 2 * 128 * 3, StateRole::Conv, Sharding::Groups).unwrap(),
        tensor(128, 64 * 128, StateRole::Temporal),
    ]));
    let layers = vec![Layer::new(vec![state]); 64];
    let planner = bare(2_048).create_planner(&layers, &[]).unwrap();
    let plan = planner.plan(20 << 30).unwrap();
    assert_eq!(slots(&planner, &plan), named(&[("mamba", 75)]));
    assert_eq!((plan.tokens, plan.requests), (25 * 2_048, 25));
}

fn deepseek_v4() -> Vec<Layer> {
    let row = |span| State::CompressedLatent(CompressedLatent::new(448, 64, span).unwrap());
    let ring = |ratio, elements| State::Compressor(CompressorState::new(ratio, elements).unwrap());
    let key = State::IndexKey(IndexKey::new(128, IndexFormat::Fp8Blocks, Span::Compressed(4)).unwrap());
    let window = || vec![row(Span::Window(128))];
    let fours = || [window(), vec![row(Span::Compressed(4)), ring(4, 4 * 512), key.clone(), ring(4, 4 * 128)]].concat();
    let many = || [window(), vec![row(Span::Compressed(128)), ring(128, 2 * 512)]].concat();
    let layers = [vec![window(); 2], vec![fours(); 21], vec![many(); 20]].concat();
    layers.into_iter().map(Layer::new).collect()
}

fn v4_runtime() -> Runtime {
    let mut runtime = Runtime {
        page_size: PageSize::new(256).unwrap(),
        window_rule: WindowRule::Ratio(Ratio::new(1, 10).unwrap()),
        max_running_requests: NonZeroU64::new(256),
        ..bare(1 << 20)
    };
    runtime.format = CacheFormat::new(Dtype::Fp8E4m3);
    runtime
}

/// SGLang 0.5.23: 31,875 bytes a window slot, 7,086.75 a token, 2,715,811,840 for the rings of 256 requests.
#[test]
fn deepseek_v4_takes_the_bytes_that_sglang_prices() {
    let planner = v4_runtime().create_planner(&deepseek_v4(), &[]).unwrap();
    let tokens = 25_600_000;
    let rings = 2_715_811_840;
    assert_eq!(planner.cost(tokens) - rings, u128::from(tokens) * 708_675 / 100);
}

/// Rows of 584 bytes in pages of 64 and of 2 are padded to 576: a budget is never passed by what alignment takes.
#[test]
fn pages_of_compressed_rows_are_padded_whole() {
    let planner = v4_runtime().create_planner(&deepseek_v4(), &[]).unwrap();
    let plan = planner.plan(50 << 30).unwrap();
    let stage = planner.stages().first().unwrap();
    let pool = stage.pools().iter().find(|pool| pool.name() == "c128").unwrap();
    assert_eq!(stage.pool_bytes(pool, &plan), u128::from(stage.slots(pool, &plan) / 2) * 1_728 * 20);
    let page = Runtime { page_size: PageSize::new(64).unwrap(), ..v4_runtime() };
    assert!(matches!(page.create_planner(&deepseek_v4(), &[]), Err(Error::InvalidOption { option: "page_size", .. })));
}

/// SGLang 0.5.23: DeepSeek-V3 with its MTP layer, 71,424 bytes a token, 751,616 tokens in 50 GiB.
#[test]
fn drafts_are_in_the_same_budget() {
    let layer = Layer::new(vec![State::Latent(LatentAttention::new(512, 64, Span::Full).unwrap())]);
    let runtime = Runtime { page_size: PageSize::new(64).unwrap(), ..bare(163_840) };
    let planner = runtime.create_planner(&vec![layer.clone(); 61], &[layer]).unwrap();
    let plan = planner.plan(50 << 30).unwrap();
    assert_eq!((plan.tokens, plan.requests), (751_616, 2348));
}

/// SGLang's own tests: a window of 8, two requests, EAGLE with 3 steps, 2 branches and 5 drafts, an interval of 4: 104 slots
/// with pages of 4 and one batch in flight, 91 with pages of 1 and two.
#[test]
fn windows_hold_what_drafts_have_in_flight() {
    let number = |n: u64| NonZeroU64::new(n).unwrap();
    let heads = |span| Layer::new(vec![State::Attention(Attention::new(4, 64, 64, span).unwrap())]);
    let layers = [heads(Span::Full), heads(Span::Window(8))];
    for (page, overlap_schedule, expected) in [(4, false, 104), (1, true, 91)] {
        let runtime = Runtime {
            page_size: PageSize::new(page).unwrap(),
            window_rule: WindowRule::RequestCap { prefix_tails: 0 },
            speculation: Some(Speculation { draft_tokens: number(5), steps: number(3), topk: number(2) }),
            max_running_requests: Some(number(2)),
            chunked_prefill_size: Some(number(4)),
            swa_eviction_interval: 4,
            overlap_schedule,
            ..bare(8_192)
        };
        let planner = runtime.create_planner(&layers, &[]).unwrap();
        let plan = planner.plan(1 << 30).unwrap();
        assert_eq!(slots(&planner, &plan).last().unwrap(), &("swa".to_owned(), expected));
    }
}

/// A request of BART holds 1,024 positions of its source: as many are served as can also be 1,024 tokens long.
#[test]
fn an_encoders_output_is_held_for_each_request() {
    let heads = |span| State::Attention(Attention::new(16, 64, 64, span).unwrap());
    let layers = vec![Layer::new(vec![heads(Span::Full), heads(Span::Encoder(1_024))]); 12];
    let planner = bare(1_024).create_planner(&layers, &[]).unwrap();
    let plan = planner.plan(8 << 30).unwrap();
    let requests = (8 << 30) / (2 * 1_024 * 49_152);
    assert_eq!(plan.requests, requests);
    assert_eq!(slots(&planner, &plan).last().unwrap(), &("cross".to_owned(), 1_024 * requests));
}

/// vLLM 0.33.0: a 32-bit scale after each head's key and value (`int8_per_token_head`, `int4_per_token_head`).
#[test]
fn integers_have_a_scale_for_each_heads_row() {
    let state = State::Attention(Attention::new(8, 128, 128, Span::Full).unwrap());
    let one = Ranks::new(NonZeroU32::MIN);
    for (dtype, bytes) in [(Dtype::Int8, 8 * (256 + 8)), (Dtype::Int4, 8 * (128 + 8))] {
        assert_eq!(cell_bytes(&state, CacheFormat::new(dtype), one).unwrap(), bytes);
    }
    let apart = CacheFormat { v_dtype: Dtype::Nvfp4, ..CacheFormat::new(Dtype::Fp8E4m3) };
    assert_eq!(cell_bytes(&state, apart, one).unwrap(), 8 * (128 + 64 + 8));
}

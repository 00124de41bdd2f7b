//! Random budgets, models and options, for the property tests.

use std::num::{NonZeroU32, NonZeroU64};

use poolplan_core::{
    Attention, CacheFormat, CompressedLatent, CompressorState, Dtype, IndexFormat, IndexKey, LatentAttention, Layer,
    PageSize, Ranks, Ratio, RecurrentState, Runtime, Sharding, Span, Speculation, State, StateRole, StateRule,
    StateTensor, WindowRule,
};
use proptest::prelude::*;

/// Budgets of every magnitude: small ones, device sizes, and up to 2^63.
pub(crate) fn budgets() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..5_000, (0_u32..63, 0_u64..1 << 20).prop_map(|(bits, low)| (1 << bits) + low)]
}

pub(crate) fn ratios() -> impl Strategy<Value = Ratio> {
    prop_oneof![
        Just(Ratio::ONE),
        (1_u64..=100).prop_map(|hundredths| Ratio::new(hundredths, 100).unwrap()),
        (1_u64..1 << 40, 1_u64..1 << 40).prop_map(|(a, b)| Ratio::new(a.min(b), a.max(b)).unwrap()),
    ]
}

pub(crate) fn pages() -> impl Strategy<Value = PageSize> {
    prop_oneof![Just(1_u64), 1_u64..=300, Just(1 << 20)].prop_map(|slots| PageSize::new(slots).unwrap())
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

pub(crate) fn layers() -> impl Strategy<Value = Layer> {
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

pub(crate) fn runtimes() -> impl Strategy<Value = Runtime> {
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

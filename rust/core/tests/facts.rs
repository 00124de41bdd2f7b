//! Numbers from outside this crate: what SGLang 0.5.23 answered, published formats, worked examples.
//! Laws are in `laws.rs`; the facts of whole checkpoints are tested through Python.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may stop at what is wrong"
)]

use std::num::{NonZeroU32, NonZeroU64};

use poolplan_core::{
    Attention, CacheFormat, Disaggregation, Dtype, Error, Granularity, IndexFormat, IndexKey, LatentAttention, Layer,
    PageSize, Ranks, Ratio, Runtime, Span, SplitPart, State, WindowRule, cell_bytes, heads_on_rank, split_budget,
};

fn heads(num_kv_heads: u32, head_dim: u32, v_head_dim: u32, span: Span) -> State {
    State::Attention(Attention::new(num_kv_heads, head_dim, v_head_dim, span).unwrap())
}

fn tp(size: u32) -> NonZeroU32 {
    NonZeroU32::new(size).unwrap()
}

/// SGLang 0.5.23's own cell of all layers, divided by the layers; V3 in FP4 from `(512 + 64) / 2 + 576 / 16`.
#[test]
fn a_cell_takes_the_bytes_that_sglang_prices() {
    let llama = heads(8, 128, 128, Span::Full);
    let v3 = State::Latent(LatentAttention::new(512, 64, Span::Full).unwrap());
    let mimo_full = heads(4, 192, 128, Span::Full);
    let cases = [
        (llama.clone(), Dtype::Bfloat16, 1, 131_072 / 32),
        (llama.clone(), Dtype::Bfloat16, 16, 16_384 / 32),
        (llama.clone(), Dtype::Fp8E4m3, 1, 65_536 / 32),
        (llama.clone(), Dtype::Mxfp8, 1, 67_584 / 32),
        (llama.clone(), Dtype::Fp4MxBlock16, 1, 36_864 / 32),
        (llama.clone(), Dtype::Nvfp4, 1, 36_864 / 32),
        (v3.clone(), Dtype::Bfloat16, 1, 70_272 / 61),
        (v3.clone(), Dtype::Bfloat16, 8, 70_272 / 61),
        (v3.clone(), Dtype::Fp8E4m3, 8, 35_136 / 61),
        (v3.clone(), Dtype::Nvfp4, 8, 19_764 / 61),
        (mimo_full.clone(), Dtype::Bfloat16, 1, 23_040 / 9),
        (mimo_full.clone(), Dtype::Bfloat16, 4, 640),
        (mimo_full.clone(), Dtype::Bfloat16, 8, 640),
    ];
    for (state, dtype, size, bytes) in cases {
        assert_eq!(
            cell_bytes(&state, CacheFormat::new(dtype), Ranks::new(tp(size))).unwrap(),
            bytes,
            "{state:?} {dtype} tp {size}"
        );
    }
}

/// SGLang 0.5.23 for DeepSeek-V3.2: 61 layers of 1,152 + 132 bytes in BF16, 656 + 132 in FP8, 576 + 132 with trtllm kernels;
/// MiniMax M3 keeps a key of 128 in 16 bits, 14,592 bytes in 57 layers.
#[test]
fn sparse_attention_keeps_an_index_key_and_packs_its_rows() {
    let latent = LatentAttention::new(512, 64, Span::Full).unwrap();
    let latent = State::Latent(LatentAttention { sparse: true, ..latent });
    let key = State::IndexKey(IndexKey::new(128, IndexFormat::Fp8Blocks, Span::Full).unwrap());
    let packed = CacheFormat::new(Dtype::Fp8E4m3);
    let raw = CacheFormat { raw_sparse_rows: true, ..packed };
    for (format, bytes) in [(CacheFormat::new(Dtype::Bfloat16), 78_324), (packed, 48_068), (raw, 43_188)] {
        let cells = [&latent, &key].map(|state| cell_bytes(state, format, Ranks::new(tp(8))).unwrap());
        assert_eq!(61 * cells.iter().sum::<u64>(), bytes);
    }
    assert!(cell_bytes(&latent, CacheFormat::new(Dtype::Nvfp4), Ranks::new(tp(1))).is_err());
    let minimax = State::IndexKey(IndexKey::new(128, IndexFormat::Bfloat16, Span::Full).unwrap());
    assert_eq!(57 * cell_bytes(&minimax, packed, Ranks::new(tp(8))).unwrap(), 14_592);
}

/// OCP Microscaling Formats 1.0: MXFP4 has blocks of 32 with one scale byte: 128 elements are 64 + 4 bytes.
#[test]
fn mxfp4_has_a_scale_byte_for_each_32_elements() {
    assert_eq!(Dtype::Mxfp4.row_bytes(128).unwrap(), (64, 4));
    assert_eq!(Dtype::Nvfp4.row_bytes(128).unwrap(), (64, 8));
    assert!(matches!(Dtype::Mxfp4.row_bytes(80), Err(Error::InvalidOption { option: "kv_cache_dtype", .. })));
}

/// tenstorrent/vllm#50 computed 8 // 32 = 0 heads; a floor of 10 // 4 = 2 heads would drop two.
#[test]
fn fewer_heads_than_ranks_are_replicated_and_uneven_ones_refused() {
    assert_eq!(heads_on_rank(8, tp(32)).unwrap(), 1);
    assert_eq!(heads_on_rank(8, tp(4)).unwrap(), 2);
    for (heads, size) in [(10, 4), (10, 16), (12, 8)] {
        assert!(matches!(heads_on_rank(heads, tp(size)), Err(Error::InvalidOption { option: "tp_size", .. })));
    }
}

/// sgl-project/sglang#18039: 375,360 · 0.8 in pages of 64 is 300,288; binary floats lose pages at 0.7 and 0.29.
#[test]
fn a_ratio_is_the_decimal_that_was_typed() {
    let page = PageSize::new(64).unwrap();
    let window = |ratio: &str, tokens: u64| page.align_down(ratio.parse::<Ratio>().unwrap().floor_of(tokens));
    assert_eq!(window("0.8", 375_360), 300_288);
    assert_eq!(window("0.7", 5_760), 4_032);
    assert_eq!(window("0.29", 6_400), 1_856);
    assert_eq!("8e-1".parse::<Ratio>().unwrap(), Ratio::new(4, 5).unwrap());
    assert_eq!("0.10".parse::<Ratio>().unwrap(), Ratio::new(1, 10).unwrap());
    for text in ["", "0", "-1", "1/0", "nan", "inf", "1e400", "0x1", "1_0", " 1/ -2", "1.2.3", "٣"] {
        assert!(text.parse::<Ratio>().is_err(), "{text}");
    }
}

/// 18 full and 18 window layers of 8 heads of 64 (GPT-OSS-120B), context 131,072, pages of 64.
fn gpt_oss(rule: WindowRule) -> (Runtime, Vec<Layer>) {
    let layers = [Span::Window(128), Span::Full].map(|span| Layer::new(vec![heads(8, 64, 64, span)]));
    let runtime = Runtime {
        page_size: PageSize::new(64).unwrap(),
        window_rule: rule,
        count_padding: false,
        count_request_table: false,
        ..Runtime::new(131_072).unwrap()
    };
    (runtime, std::iter::repeat_n(layers, 18).flatten().collect())
}

/// SGLang 0.5.23 with 50 GiB: 64 requests and chunks of 8,192 need 41,024 window slots and leave 1,415,296 tokens.
#[test]
fn a_request_cap_is_sglangs() {
    let (runtime, layers) = gpt_oss(WindowRule::RequestCap { prefix_tails: 0 });
    let runtime =
        Runtime { max_running_requests: NonZeroU64::new(64), chunked_prefill_size: NonZeroU64::new(8_192), ..runtime };
    let planner = runtime.create_planner(&layers, &[]).unwrap();
    let plan = planner.plan(50 << 30).unwrap();
    let stage = planner.stages().first().unwrap();
    let slots: Vec<_> = stage.pools().iter().map(|pool| stage.slots(pool, &plan)).collect();
    assert_eq!((plan.requests, slots), (64, vec![1_415_296, 41_024]));
}

/// SGLang's own tests: a window of 4, pages of 1 and 10 requests on a decode server hold 100 slots (interval 4); a prefill
/// server with pages of 4, chunks of 16, a window of 8 and 2 requests holds 76.
#[test]
fn a_request_cap_follows_the_role() {
    let cases = [(Disaggregation::Decode, 4, 1, 10, None, 100), (Disaggregation::Prefill, 8, 4, 2, Some(16), 76)];
    for (role, window, page, requests, chunk, expected) in cases {
        let layers = [Span::Window(window), Span::Full].map(|span| Layer::new(vec![heads(4, 64, 64, span)]));
        let runtime = Runtime {
            page_size: PageSize::new(page).unwrap(),
            window_rule: WindowRule::RequestCap { prefix_tails: 0 },
            max_running_requests: NonZeroU64::new(requests),
            chunked_prefill_size: chunk.and_then(NonZeroU64::new),
            disaggregation: role,
            swa_eviction_interval: 4,
            ..Runtime::new(8_192).unwrap()
        };
        let planner = runtime.create_planner(&layers, &[]).unwrap();
        let plan = planner.plan(1 << 30).unwrap();
        let stage = planner.stages().first().unwrap();
        let pool = stage.pools().iter().find(|pool| pool.name() == "swa").unwrap();
        assert_eq!(stage.slots(pool, &plan), expected, "{role:?}");
    }
}

/// 10 MiB leave 64 window slots, and SGLang refuses what does not exceed 128 + 64: the next pages up are 256 window slots,
/// which are 4/5 of 320.
#[test]
fn a_refusal_says_what_is_missing() {
    let (runtime, layers) = gpt_oss(WindowRule::Ratio("0.8".parse().unwrap()));
    let planner = runtime.create_planner(&layers, &[]).unwrap();
    assert_eq!(planner.least_tokens(), 320);
    let error = planner.plan(10 << 20).unwrap_err();
    let required = (320 + 256) * 36_864;
    assert_eq!(error.missing_bytes(), Some(required - (10 << 20)));
    let error = runtime.with_alternatives(&layers, &[], error);
    let Error::InsufficientMemory { alternatives, .. } = error else { panic!("{error}") };
    assert_eq!(alternatives, [("tp_size", "4".to_owned())]);
}

/// 48 layers in stages of 16 and 32 would need 8 and 16 GiB; by default equal parts, and the last own one more.
#[test]
fn the_last_stages_own_one_layer_more() {
    let layers = vec![Layer::new(vec![heads(4, 128, 128, Span::Full)]); 11];
    let runtime = Runtime { pp_size: tp(4), ..Runtime::new(8_192).unwrap() };
    let planner = runtime.create_planner(&layers, &[]).unwrap();
    let owned = planner.stages().iter().map(|stage| stage.pools().first().unwrap().layers().len());
    assert_eq!(owned.collect::<Vec<_>>(), [2, 3, 3, 3]);
}

fn parts(weights: &[u64], granule: u64) -> Vec<SplitPart> {
    let granularity = Granularity::new(granule).unwrap();
    weights.iter().map(|&weight| SplitPart { weight, granularity }).collect()
}

/// SGLang's own tests split 100 by 75 and a pair (15, 10), and by 55, (15, 10) and 20.
#[test]
fn a_host_budget_is_split_by_device_bytes() {
    assert_eq!(split_budget(100, &parts(&[75, 15 + 10], 1)), [75, 25]);
    assert_eq!(split_budget(100, &parts(&[55, 15 + 10, 20], 1)), [55, 25, 20]);
    assert_eq!(split_budget(100, &parts(&[0, 0], 1)), [0, 0]);
    assert_eq!(split_budget(100, &[]), [0; 0]);
}

/// The textbook example of the largest-remainder method with the Hare quota: 10 seats for these votes.
#[test]
fn what_is_left_goes_to_the_largest_remainders() {
    let votes = [47_000, 16_000, 15_800, 12_000, 6_100, 3_100];
    assert_eq!(split_budget(10, &parts(&votes, 1)), [5, 2, 1, 1, 1, 0]);
    assert_eq!(split_budget(100, &parts(&[1, 2], 10)), [30, 70]);
}

"""Single cases that SGLang 0.5.23 answered on a CPU: plans of 50 GiB, what its real pools then took, and its refusals.

Not here, as nothing here plans it: unified memory, HiSparse, and the dequantisation workspace of `nvfp4` under FlashInfer.
Recurrent state is in `test_sglang_states.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from poolplan import InsufficientMemoryError, RuntimeSpec, create_memory_pool_configurator
from reference.cells import State
from strategies import model_of

GIB = 1 << 30
BARE: dict[str, Any] = {"count_padding": False, "count_request_table": False}


def heads(count: int, key: int, value: int, window: int | None = None) -> tuple[State, ...]:
    return (("heads", count, key, value, ("full", None) if window is None else ("window", window)),)


class Model(NamedTuple):
    """Layers and context of a model."""

    layers: tuple[tuple[State, ...], ...]
    context_length: int
    drafts: tuple[tuple[State, ...], ...] = ()


LLAMA = Model((heads(8, 128, 128),) * 32, 8_192)
LLAMA_STAGE = Model((heads(8, 128, 128),) * 11, 8_192)
LATENT: State = ("latent", 512, 64, ("full", None))
V3 = Model(((LATENT,),) * 61, 163_840)
V32_LAYER: tuple[State, ...] = (("sparse", 512, 64, ("full", None)), ("index", 128, 8, ("full", None)))
V32 = Model((V32_LAYER,) * 61, 163_840)
GEMMA = Model((heads(16, 128, 128),) * 10 + (heads(16, 128, 128, 1024),) * 52, 131_072)
GEMMA_WINDOWS = Model((heads(16, 128, 128, 1024),) * 62, 131_072)
GEMMA_STAGE = Model((heads(16, 128, 128),) * 5 + (heads(16, 128, 128, 1024),) * 26, 131_072)
GPT_OSS = Model((heads(8, 64, 64, 128), heads(8, 64, 64)) * 18, 131_072)
MIMO = Model((heads(4, 192, 128),) * 8 + (heads(8, 192, 128, 128),) * 40, 262_144)
LLAMA_EAGLE = LLAMA._replace(drafts=(heads(8, 128, 128),))
V3_MTP = V3._replace(drafts=((LATENT,),))
V32_MTP = V32._replace(drafts=(V32_LAYER,))
GPT_OSS_EAGLE = GPT_OSS._replace(drafts=(heads(8, 64, 64),))
MIMO_MTP = MIMO._replace(drafts=(heads(8, 192, 128, 128),))
EAGLE: dict[str, Any] = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
EAGLE_3_2_5 = EAGLE | {"speculative_eagle_topk": 2, "speculative_num_draft_tokens": 5}
FP8: dict[str, Any] = {"page_size": 64, "kv_cache_dtype": "fp8_e4m3"}
CAP: dict[str, Any] = {"disable_radix_cache": True, "max_running_requests": 64, "chunked_prefill_size": 8192}

# SGLang's max_total, full, swa and default requests with 50 GiB; and our tokens, where they are more.
PLANS: list[tuple[str, Model, dict[str, Any], tuple[int, int | None, int | None, int], int | None]] = [
    ("llama", LLAMA, {}, (409_600, None, None, 4096), None),
    ("llama page 64", LLAMA, {"page_size": 64}, (409_600, None, None, 4096), None),
    ("llama tp 16", LLAMA, {"tp_size": 16}, (3_276_800, None, None, 4096), None),
    ("llama fp8", LLAMA, {"page_size": 16, "kv_cache_dtype": "fp8_e4m3"}, (819_200, None, None, 4096), None),
    ("llama mxfp8", LLAMA, {"page_size": 16, "kv_cache_dtype": "mxfp8"}, (794_368, None, None, 4096), None),
    ("llama fp4", LLAMA, {"page_size": 16, "kv_cache_dtype": "fp4_mx_block16"}, (1_456_352, None, None, 4096), None),
    ("llama nvfp4", LLAMA, {"page_size": 16, "kv_cache_dtype": "nvfp4"}, (1_456_352, None, None, 4096), None),
    ("llama stage", LLAMA_STAGE, {}, (1_191_563, None, None, 4096), None),
    ("llama capped", LLAMA, {"page_size": 16, "max_total_tokens": 100_001}, (100_000, None, None, 4096), None),
    ("v3", V3, {"tp_size": 8, "page_size": 64}, (763_968, None, None, 2387), None),
    ("v3 fp8", V3, {"page_size": 64, "kv_cache_dtype": "fp8_e4m3"}, (1_527_936, None, None, 4096), None),
    ("v3 fp4", V3, {"page_size": 64, "kv_cache_dtype": "fp4_mx_block16"}, (2_716_352, None, None, 4096), None),
    ("v3.2", V32, {"page_size": 64}, (685_440, None, None, 2142), None),
    ("v3.2 fp8", V32, {"page_size": 64, "kv_cache_dtype": "fp8_e4m3"}, (1_116_864, None, None, 3490), None),
    (
        "v3.2 fp8 trtllm",
        V32,
        {"page_size": 64, "kv_cache_dtype": "fp8_e4m3", "dsa_decode_backend": "trtllm"},
        (1_243_072, None, None, 3884),
        None,
    ),
    ("gemma 3", GEMMA, {"page_size": 16, "disable_hybrid_swa_memory": True}, (105_696, None, None, 2048), None),
    ("hybrid page 16", GEMMA, {"page_size": 16}, (126_992, 126_992, 101_584, 2048), 127_008),
    ("hybrid page 256", GEMMA, {"page_size": 256}, (126_976, 126_976, 101_376, 2048), None),
    ("ratio 1", GEMMA, {"page_size": 16, "swa_full_tokens_ratio": 1.0}, (105_696, 105_696, 105_696, 2048), None),
    ("ratio 0.7", GEMMA, {"page_size": 64, "swa_full_tokens_ratio": 0.7}, (141_184, 141_184, 98_816, 2048), 141_248),
    ("windows only", GEMMA_WINDOWS, {"page_size": 16}, (105_696, None, 105_696, 2048), None),
    ("hybrid stage", GEMMA_STAGE, {"page_size": 16}, (254_000, 254_000, 203_200, 2048), 254_016),
    ("gpt-oss", GPT_OSS, {"page_size": 64}, (809_024, 809_024, 647_168, 3160), 809_088),
    ("gpt-oss tp 8", GPT_OSS, {"page_size": 64, "tp_size": 8}, (6_472_640, 6_472_640, 5_178_112, 4096), 6_472_704),
    ("gpt-oss request cap", GPT_OSS, {"page_size": 64, **CAP}, (1_415_296, 1_415_296, 41_024, 64), None),
    ("gpt-oss capped", GPT_OSS, {"page_size": 64, "max_total_tokens": 100_000}, (99_968, 99_968, 79_936, 2048), None),
    ("mimo tp 4", MIMO, {"page_size": 64, "tp_size": 4}, (1_165_056, 1_165_056, 932_032, 2275), None),
    ("mimo tp 8", MIMO, {"tp_size": 8}, (2_097_152, 2_097_152, 1_677_721, 4096), None),
    (
        "mimo fp8 ratio 0.1",
        MIMO,
        {"page_size": 64, "kv_cache_dtype": "fp8_e4m3", "swa_full_tokens_ratio": 0.1},
        (2_621_440, 2_621_440, 262_144, 4096),
        None,
    ),
    ("llama dcp 2", LLAMA, {"page_size": 16, "tp_size": 8, "dcp_size": 2}, (1_638_400, None, None, 4096), None),
    ("llama eagle", LLAMA_EAGLE, {"page_size": 64}, (397_184, None, None, 4096), None),
    ("v3 mtp", V3_MTP, {"page_size": 64}, (751_616, None, None, 2348), None),
    ("v3.2 fp8 mtp", V32_MTP, FP8, (1_098_880, None, None, 3434), None),
    ("v3.2 fp8 dcp 4", V32, {**FP8, "tp_size": 4, "dcp_size": 4}, (743_296, None, None, 2322), None),
    ("gpt-oss eagle", GPT_OSS_EAGLE, {"page_size": 64}, (784_832, 784_832, 627_840, 3065), None),
    (
        "gpt-oss request cap eagle",
        GPT_OSS_EAGLE,
        {"page_size": 64, **CAP, **EAGLE},
        (1_320_896, 1_320_896, 62_016, 64),
        None,
    ),
    ("mimo window draft", MIMO_MTP, {"page_size": 64, "tp_size": 4}, (1_139_712, 1_139_712, 911_744, 2226), None),
]


@pytest.mark.parametrize(
    ("model", "options", "sglangs", "more"), [case[1:] for case in PLANS], ids=[case[0] for case in PLANS]
)
def test_a_plan_of_50_gib_is_sglangs_or_a_page_more(
    model: Model, options: dict[str, Any], sglangs: tuple[int, int | None, int | None, int], more: int | None
) -> None:
    """More where SGLang's float cell, or its page floor of both pools, leaves a page of the full pool that fits."""
    max_total, full, swa, requests = sglangs
    configurator = create_memory_pool_configurator(model_of(*model), RuntimeSpec(**options, **BARE))
    config = configurator.calculate_pool_sizes(50 * GIB)
    assert config.max_total_num_tokens == (more or max_total)
    assert full is None or config.full_max_total_num_tokens == (more or full)
    assert swa is None or (config.swa_max_total_num_tokens or 0) >= swa
    assert more or swa is None or config.swa_max_total_num_tokens == swa
    assert config.max_running_requests == requests
    if more:
        one_page = more - configurator.runtime.page_size
        assert one_page == max_total
        assert config.total_bytes <= 50 * GIB


# What its real pools took, for a budget of 2 GiB: tokens, bytes of the caches, rows and width of the request table (int32).
ALLOCATIONS: list[tuple[str, Model, dict[str, Any], int, int, tuple[int, int]]] = [
    ("llama page 1", LLAMA, {}, 16_384, 2_147_614_720, (2049, 8196)),
    ("llama page 64", LLAMA, {"page_size": 64}, 16_384, 2_155_872_256, (2049, 8196)),
    ("llama page 256", LLAMA, {"page_size": 256}, 16_384, 2_181_038_080, (2049, 8196)),
    ("v3", V3, {"page_size": 64, "tp_size": 8}, 30_528, 2_149_761_024, (2049, 163_844)),
    ("v3.2 fp8", V32, {"page_size": 64, "kv_cache_dtype": "fp8_e4m3"}, 44_672, 2_150_370_048, (2049, 163_844)),
    ("gpt-oss", GPT_OSS, {"page_size": 64}, 32_320, 2_149_318_656, (2049, 131_076)),
    (
        "gpt-oss request cap",
        GPT_OSS,
        {"page_size": 64, "disable_radix_cache": True, "max_running_requests": 32, "chunked_prefill_size": 2048},
        41_792,
        2_151_677_952,
        (33, 131_076),
    ),
    ("hybrid page 16", GEMMA, {"page_size": 16}, 5_072, 2_148_007_936, (2049, 131_076)),
    ("hybrid mxfp8", GEMMA, {"page_size": 128, "kv_cache_dtype": "mxfp8"}, 9_728, 2_131_329_024, (2049, 131_076)),
    ("mimo tp 4", MIMO, {"page_size": 64, "tp_size": 4}, 46_592, 2_149_253_120, (2049, 262_148)),
    ("llama mxfp8", LLAMA, {"page_size": 128, "kv_cache_dtype": "mxfp8"}, 31_744, 2_154_037_248, (2049, 8196)),
    ("llama stage", LLAMA_STAGE, {"page_size": 64}, 47_616, 2_148_270_080, (2977, 8196)),
    ("v3 dcp 4", V3, {"page_size": 64, "tp_size": 4, "dcp_size": 4}, 30_528, 2_149_761_024, (2049, 163_844)),
    ("v3.2 fp8 dcp 4", V32, {**FP8, "tp_size": 4, "dcp_size": 4}, 29_696, 2_149_386_240, (2049, 163_844)),
]


@pytest.mark.parametrize(
    ("model", "options", "tokens", "cache_bytes", "table"),
    [case[1:] for case in ALLOCATIONS],
    ids=[case[0] for case in ALLOCATIONS],
)
def test_the_bytes_of_a_plan_are_what_sglang_allocates_for_it(
    model: Model, options: dict[str, Any], tokens: int, cache_bytes: int, table: tuple[int, int]
) -> None:
    """To the byte: the padding pages that it does not budget are in its allocation, and in our plan."""
    configurator = create_memory_pool_configurator(model_of(*model), RuntimeSpec(**options))
    config = configurator.calculate_pool_sizes_from_max_tokens(tokens)
    *caches, request_table = config.pools
    assert sum(pool.bytes for pool in caches) == cache_bytes
    assert request_table.bytes == table[0] * table[1] * 4
    # With the 2 GiB that it was given, it took more; we do not.
    assert configurator.calculate_pool_sizes(2 * GIB).total_bytes <= 2 * GIB < config.total_bytes


@pytest.mark.parametrize(
    ("model", "options", "budget"),
    [
        pytest.param(LLAMA, {}, 1000, id="RuntimeError: not enough memory"),
        pytest.param(GPT_OSS, {"page_size": 64}, 10 << 20, id="ValueError: 64 window slots do not exceed 128 + 64"),
        pytest.param(GPT_OSS, {"page_size": 64, **CAP}, 64 << 20, id="RuntimeError: 41,024 window slots take 1.41 GiB"),
    ],
)
def test_what_sglang_refuses_is_refused_with_the_missing_bytes(
    model: Model, options: dict[str, Any], budget: int
) -> None:
    with pytest.raises(InsufficientMemoryError) as caught:
        create_memory_pool_configurator(model_of(*model), RuntimeSpec(**options, **BARE)).calculate_pool_sizes(budget)
    assert caught.value.missing_bytes > 0


@pytest.mark.parametrize(
    ("window", "options", "slots"),
    [
        pytest.param(4, {"max_running_requests": 10, "disaggregation_mode": "decode"}, 100, id="decode role"),
        pytest.param(
            8,
            {"page_size": 4, "max_running_requests": 2, "chunked_prefill_size": 16, "disaggregation_mode": "prefill"},
            76,
            id="prefill role",
        ),
        pytest.param(
            8,
            {
                "page_size": 4,
                "max_running_requests": 2,
                "chunked_prefill_size": 4,
                "disable_overlap_schedule": True,
                **EAGLE_3_2_5,
            },
            104,
            id="eagle, one batch in flight",
        ),
        pytest.param(
            8,
            {"max_running_requests": 2, "chunked_prefill_size": 4, **EAGLE_3_2_5},
            91,
            id="eagle, two batches in flight",
        ),
    ],
)
def test_a_request_cap_is_the_one_of_sglangs_own_tests(window: int, options: dict[str, Any], slots: int) -> None:
    """Its tests use 4 heads of 64, pages of 1 and an eviction interval of 4."""
    model = model_of((heads(4, 64, 64),) * 16 + (heads(4, 64, 64, window),) * 16, 8192, (heads(4, 64, 64),))
    runtime = RuntimeSpec(disable_radix_cache=True, swa_eviction_interval=4, **options)
    assert create_memory_pool_configurator(model, runtime).calculate_pool_sizes(GIB).swa_max_total_num_tokens == slots

"""How pool sizing went wrong in public: each report's inputs, the wrong answer that it got, and ours.

Drafts, recurrent state and ranks that share tokens are in `test_faults_states.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from poolplan import (
    InsufficientMemoryError,
    InvalidOptionError,
    ModelSpec,
    RuntimeSpec,
    create_memory_pool_configurator,
)
from poolplan.cli.report import plan_report
from reference.cells import State
from strategies import model_of

GIB = 1 << 30
BARE: dict[str, Any] = {"count_padding": False, "count_request_table": False}


def heads(count: int, key: int, value: int, window: int | None = None) -> tuple[State, ...]:
    return (("heads", count, key, value, ("full", None) if window is None else ("window", window)),)


def cells(model: ModelSpec, **options: Any) -> dict[str, int]:
    configurator = create_memory_pool_configurator(model, RuntimeSpec(**options, **BARE))
    return {pool.name: pool.cell_bytes for pool in configurator.calculate_pool_sizes(1 << 40).pools}


# Cells and layers


def test_windows_are_not_charged_on_top_of_all_layers() -> None:
    """sgl-project/sglang#18039: MiMo-V2-Flash at tp 4 got 375,360 tokens from a cell that counted layers twice."""
    model = model_of((heads(4, 192, 128),) * 9 + (heads(8, 192, 128, 128),) * 39)
    assert cells(model, tp_size=4) == {"full": 9 * 1 * 320 * 2, "swa": 39 * 2 * 320 * 2}


def test_a_hybrid_needs_no_list_of_architectures() -> None:
    """sgl-project/sglang#39310: 73,728 bytes a token where 18,432 + ratio · 55,296 are right."""
    model = model_of((heads(4, 256, 256),) * 9 + (heads(4, 256, 256, 1024),) * 27)
    assert cells(model, kv_cache_dtype="fp8_e4m3") == {"full": 18_432, "swa": 55_296}


def test_kv_heads_are_not_query_heads() -> None:
    """jranaraki/vllm-fit#2 multiplied the query heads in again."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 8192,
    }
    assert cells(ModelSpec.from_config(config)) == {"full": 8 * 256 * 2}


def test_sub_byte_elements_have_bytes_and_scales() -> None:
    """kekzl/imp#942 counted 0 bytes for NVFP4: half a byte an element and one for each 16."""
    model = model_of((heads(8, 128, 128),))
    assert cells(model, kv_cache_dtype="nvfp4") == {"full": 8 * 2 * (128 // 2 + 128 // 16)}


# Ranks and stages


@pytest.mark.parametrize(("kv_heads", "tp_size", "on_rank"), [(8, 32, 1), (2, 4, 1), (8, 4, 2)])
def test_fewer_heads_than_ranks_are_one_each(kv_heads: int, tp_size: int, on_rank: int) -> None:
    """tenstorrent/vllm#50 computed 8 // 32 = 0."""
    assert cells(model_of((heads(kv_heads, 128, 128),)), tp_size=tp_size) == {"full": on_rank * 512}


def test_a_stage_pays_for_its_own_layers_only() -> None:
    """vllm-project/vllm#32105: all 92 layers against one rank's memory asked for 71.16 GiB; a rank of 12 needs 9.28."""
    model = model_of((heads(4, 128, 128),) * 92)
    runtime = RuntimeSpec(pp_size=8, page_size=16, **BARE)
    config = create_memory_pool_configurator(model, runtime).calculate_pool_sizes_from_max_tokens(202_752)
    assert len(config.pools[0].layers) == 12
    assert config.total_bytes == 202_752 * 12 * 4 * 256 * 2
    assert config.total_bytes * 100 // GIB == 464  # K and V in BF16: half of the report's, whose heads are 8


def test_all_stages_hold_the_same_tokens() -> None:
    """sgl-project/sglang#10214: stages with unequal layers planned different tokens, and crashed."""
    model = model_of((heads(8, 128, 128),) * 7)
    tokens = {
        create_memory_pool_configurator(model, RuntimeSpec(pp_size=3, pp_rank=rank))
        .calculate_pool_sizes(GIB)
        .max_total_num_tokens
        for rank in range(3)
    }
    assert len(tokens) == 1


# Padding, tables, rounding


def test_padding_and_tables_are_inside_the_budget() -> None:
    """The largest of what planners leave out: a table of 2 GiB for a context of 262,144 and 2,048 requests."""
    model = model_of((heads(8, 128, 128),) * 32, context_length=262_144)
    config = create_memory_pool_configurator(model, RuntimeSpec(page_size=64)).calculate_pool_sizes(20 * GIB)
    assert {pool.name for pool in config.pools} == {"full", "request_table"}
    assert config.pools[1].bytes == 2_049 * (262_144 + 4) * 4 > 2 * GIB - (1 << 20)
    assert config.total_bytes <= 20 * GIB


def test_a_count_is_rounded_down() -> None:
    """NVIDIA/TensorRT-LLM#2268: 0.9 · 21.89 GiB hold 630.4 blocks of 32 MiB, and 631 were planned."""
    model = model_of((heads(1, 2048, 2048),) * 128)  # a token of 1 MiB: 32 in a block
    budget = 630 * (32 << 20) + 4 * (32 << 20) // 10
    config = create_memory_pool_configurator(model, RuntimeSpec(page_size=32, **BARE)).calculate_pool_sizes(budget)
    assert config.max_total_num_tokens // 32 == 630


# Pools too small for a request

GPT_OSS = model_of((heads(8, 64, 64, 128), heads(8, 64, 64)) * 18, 131_072)


def test_a_window_pool_of_one_page_is_refused() -> None:
    """sgl-project/sglang#37610: 4,096 tokens at ratio 0.1 left 256 window slots; 128 + 256 are needed, and it hung."""
    options: dict[str, Any] = {"page_size": 256, "swa_full_tokens_ratio": 0.1, "max_total_tokens": 4096}
    with pytest.raises(InvalidOptionError, match="window of 128 tokens and a page of 256") as caught:
        create_memory_pool_configurator(GPT_OSS, RuntimeSpec(**options))
    assert caught.value.option == "max_total_tokens"
    # 512 slots are the first whole pages above 384, and a tenth of 5,120.
    assert "at least 5120" in str(caught.value)
    works = create_memory_pool_configurator(GPT_OSS, RuntimeSpec(**(options | dict[str, Any](max_total_tokens=5120))))
    assert works.calculate_pool_sizes(10 * GIB).swa_max_total_num_tokens == 512


def test_a_window_pool_below_window_page_and_chunk_is_refused() -> None:
    """sgl-project/sglang#36458: a chunk held 12,800 of 13,056 slots (131,072 tokens at 0.1), and nothing moved."""
    options: dict[str, Any] = {"page_size": 256, "swa_full_tokens_ratio": 0.1, "max_total_tokens": 131_072}
    create_memory_pool_configurator(GPT_OSS, RuntimeSpec(**options, chunked_prefill_size=8192))
    with pytest.raises(InvalidOptionError, match="prefill chunk of 12800"):
        create_memory_pool_configurator(GPT_OSS, RuntimeSpec(**options, chunked_prefill_size=12_800))


def test_a_request_longer_than_the_pool_is_refused() -> None:
    """FlashML-org/FreeToken#111: a pool of 8,209 tokens took a prompt of 8,760, which hung."""
    model = model_of((heads(8, 128, 128),), 131_072)
    options: dict[str, Any] = {"max_total_tokens": 8209, "page_size": 1}
    create_memory_pool_configurator(model, RuntimeSpec(**options, request_tokens=8011))
    with pytest.raises(InvalidOptionError, match="at least 8760"):
        create_memory_pool_configurator(model, RuntimeSpec(**options, request_tokens=8760))


@pytest.mark.parametrize("budget", [-2_297_808_977, 0])
def test_a_negative_budget_is_an_error_and_never_a_size(budget: int) -> None:
    """vllm-project/vllm#23278 had -2.14 GiB; another log printed -40,934 full and -32,747 window tokens."""
    with pytest.raises(InsufficientMemoryError) as caught:
        create_memory_pool_configurator(GPT_OSS, RuntimeSpec()).calculate_pool_sizes(budget)
    assert caught.value.missing_bytes > -budget


def test_requests_that_are_asked_for_are_kept_or_said_to_be_lowered() -> None:
    """sgl-project/sglang#27399: 12,800 asked, 4,096 served, and nobody told."""
    model = model_of((heads(1, 64, 64),), 4096)
    configurator = create_memory_pool_configurator(model, RuntimeSpec(max_running_requests=12_800))
    assert configurator.calculate_pool_sizes(20 * GIB).max_running_requests == 12_800
    # 4 MiB of caches and tables hold far fewer.
    config = configurator.calculate_pool_sizes(4 << 20)
    assert config.max_running_requests < 12_800
    notes = plan_report(configurator, config, 16)["notes"]
    assert any("max_running_requests=12800 is lowered to" in note for note in notes)


# What is reported


def test_a_hybrid_is_reported_as_bytes_a_token_and_bytes_a_request() -> None:
    """vllm-project/vllm#51041: "tokens" that depend on the length are no capacity where a part is fixed."""
    configurator = create_memory_pool_configurator(GPT_OSS, RuntimeSpec(page_size=64))
    config = configurator.calculate_pool_sizes(20 * GIB)
    reports = [plan_report(configurator, config, length) for length in (8192, 131_072)]
    assert {report["bytes_per_token"] for report in reports} == {18 * 2048}
    assert {report["bytes_per_request"] for report in reports} == {3 * 64 * 18 * 2048 + (131_072 + 4) * 4}


def test_offsets_beyond_32_bits_are_flagged() -> None:
    """ROCm/aiter#2608: 6.3 million tokens of 1,024 bytes a layer are 6.4 GB, and offsets of 32 bits broke."""
    model = model_of((heads(4, 128, 128),))
    configurator = create_memory_pool_configurator(model, RuntimeSpec())
    config = configurator.calculate_pool_sizes_from_max_tokens(6_300_000)
    assert configurator.buffer_bytes(config)["full"] == (((6_300_000 + 1) * 1024, 2),)
    assert any("32-bit" in note for note in plan_report(configurator, config, 8192)["notes"])
    small = configurator.calculate_pool_sizes_from_max_tokens(100_000)
    assert not any("32-bit" in note for note in plan_report(configurator, small, 8192)["notes"])


def test_copies_of_heads_are_said() -> None:
    model = model_of((heads(4, 128, 128),))
    configurator = create_memory_pool_configurator(model, RuntimeSpec(tp_size=8))
    notes = plan_report(configurator, configurator.calculate_pool_sizes(GIB), 8192)["notes"]
    # Eight ranks hold a head of 512 bytes each; four heads are 2,048.
    assert any("2,048 are copies" in note for note in notes)

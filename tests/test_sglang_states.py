"""Recurrent state and compressed entries as SGLang 0.5.23 sized them on a CPU: `_handle_max_mamba_cache` for Qwen3-Next with
20 GiB, `DSV4PoolConfigurator` for DeepSeek V4 with 50 GiB.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from poolplan import (
    CompressedPoolConfigurator,
    InsufficientMemoryError,
    InvalidOptionError,
    MambaPoolConfigurator,
    MemoryPoolConfig,
    ModelSpec,
    RuntimeSpec,
    create_memory_pool_configurator,
)

GIB = 1 << 30
CONFIGS = Path(__file__).parent / "facts" / "configs"
BARE: dict[str, Any] = {"count_padding": False, "count_request_table": False}


def model(name: str) -> ModelSpec:
    return ModelSpec.from_config(json.loads((CONFIGS / f"{name}.json").read_text()), name=name)


def pool_slots(config: MemoryPoolConfig) -> dict[str, int]:
    return {pool.name: pool.slots for pool in config.pools}


# State slots, tokens and requests. The state of a request takes 77,266,944 bytes, a token 24,576, on one rank.
STATES: list[tuple[str, dict[str, Any], tuple[int, int, int]]] = [
    ("default", {}, (130, 461_949, 43)),
    ("ratio 0.5", {"mamba_full_memory_ratio": 0.5}, (91, 584_565, 30)),
    ("slots given", {"max_mamba_cache_size": 64}, (64, 669_453, 21)),
    ("tp 4", {"tp_size": 4}, (525, 920_754, 175)),
    ("no radix cache", {"disable_radix_cache": True, "max_running_requests": 48}, (48, 719_757, 48)),
]


@pytest.mark.parametrize(("options", "sglangs"), [case[1:] for case in STATES], ids=[case[0] for case in STATES])
def test_the_state_of_qwen3_next_is_pooled_as_sglang_pools_it(
    options: dict[str, Any], sglangs: tuple[int, int, int]
) -> None:
    """Its budget counts the padding slot of the state pool, and so does ours without the padding of tokens.

    Of its slots a request holds three; one or two more serve nobody, and go to tokens here.
    """
    qwen = model("Qwen--Qwen3-Next-80B-A3B-Thinking")
    configurator = create_memory_pool_configurator(qwen, RuntimeSpec(**options, **BARE))
    config = configurator.calculate_pool_sizes(20 * GIB)
    assert type(configurator) is MambaPoolConfigurator
    slots, tokens, requests = sglangs
    state, full = config.pool("mamba"), config.pool("full")
    assert state is not None
    assert full is not None
    assert config.max_running_requests == requests
    spare = 0 if "max_mamba_cache_size" in options else slots % configurator.runtime.state_slots_per_request
    assert state.slots == slots - spare
    assert 0 <= config.max_total_num_tokens - tokens - spare * state.cell_bytes // full.cell_bytes <= 1


def test_a_state_pool_takes_the_bytes_that_sglang_allocates() -> None:
    """8 GiB: 51 slots and one of padding, 4,017,881,088 bytes; it served 17 requests with 186,037 tokens."""
    qwen = model("Qwen--Qwen3-Next-80B-A3B-Thinking")
    config = create_memory_pool_configurator(qwen, RuntimeSpec(**BARE)).calculate_pool_sizes(8 * GIB)
    state = config.pool("mamba")
    assert state is not None
    assert (state.slots, state.padding_slots, state.bytes) == (51, 1, 4_017_881_088)
    assert (config.max_total_num_tokens, config.max_running_requests) == (186_037, 17)


@pytest.mark.parametrize(
    ("strategy", "disable_overlap_schedule", "slots"),
    [("no_buffer", False, 3), ("extra_buffer_lazy", False, 4), ("extra_buffer", False, 5), ("extra_buffer", True, 4)],
)
def test_a_request_holds_the_state_slots_of_its_strategy(
    strategy: Any, disable_overlap_schedule: bool, slots: int
) -> None:
    runtime = RuntimeSpec(
        mamba_radix_cache_strategy=strategy, disable_overlap_schedule=disable_overlap_schedule, max_mamba_cache_size=60
    )
    config = create_memory_pool_configurator(model("Qwen--Qwen3.5-27B"), runtime).calculate_pool_sizes(60 * GIB)
    assert config.max_running_requests == 60 // slots


def test_states_after_drafted_tokens_share_the_budget_of_states() -> None:
    """`K` slots and `D` states for each of `K // 3` requests, a padding slot of each, within 9/19 of the budget.

    SGLang 0.5.23, `_handle_max_mamba_cache`: `K = (B - p (1 + D)) // (p (1 + D / 3))`, here with `D = 4`.
    """
    runtime = RuntimeSpec(
        speculative_algorithm="NGRAM", speculative_num_draft_tokens=4, max_running_requests=4096, **BARE
    )
    qwen = model("Qwen--Qwen3-Next-80B-A3B-Thinking")
    config = create_memory_pool_configurator(qwen, runtime).calculate_pool_sizes(20 * GIB)
    share, state = 20 * GIB * 9 // 19, 77_266_944
    sglangs = (share - state * 5) * 3 // (state * 7)
    slots = pool_slots(config)
    # It divides by a fraction of a request; whole requests leave room for one slot more.
    assert sglangs == 54
    assert slots["mamba"] == sglangs
    assert slots["mamba_draft"] == 4 * (slots["mamba"] // 3)
    taken = sum(pool.bytes for pool in config.pools if pool.name.startswith("mamba"))
    assert taken <= share


def test_a_model_of_states_only_gives_them_all() -> None:
    """Mamba-Codestral-7B: 272,367,616 bytes a slot: 20 GiB hold 78, of which one is padding and 75 are those of 25 requests."""
    codestral = model("mistralai--Mamba-Codestral-7B-v0.1")
    config = create_memory_pool_configurator(codestral, RuntimeSpec(**BARE)).calculate_pool_sizes(20 * GIB)
    assert pool_slots(config) == {"mamba": 25 * 3}
    assert config.max_running_requests == 25
    assert config.unused_bytes < 3 * 272_367_616


# 43 layers, of which 21 keep entries of 4 tokens and 20 of 128.
V4 = "deepseek-ai--DeepSeek-V4-Flash"


def test_deepseek_v4_is_pooled_as_sglang_pools_it() -> None:
    """256 requests, 1/10 window slots: SGLang's pools, each as large or a few pages larger, and its 2,715,811,840 bytes of
    rings for requests. It prices window slots without rounding them to pages, and so leaves some pages.
    """
    runtime = RuntimeSpec(page_size=256, max_running_requests=256, swa_full_tokens_ratio=0.1, **BARE)
    configurator = create_memory_pool_configurator(model(V4), runtime)
    config = configurator.calculate_pool_sizes(50 * GIB)
    assert type(configurator) is CompressedPoolConfigurator
    slots = pool_slots(config)
    sglangs = {"full": 7_192_320, "swa": 719_104, "c4": 1_798_080, "c128": 56_190, "c4_state": 22_472}
    more = {name: (slots[name] - least) * 256 // least for name, least in sglangs.items()}
    assert set(more.values()) == {0}
    assert slots["full"] - sglangs["full"] in range(0, 5 * 256, 256)
    rings = config.pool("c128_state")
    assert rings is not None
    assert (rings.slots + rings.padding_slots, rings.bytes) == (32_896 + 256, 2_715_811_840)


def test_deepseek_v4_prices_a_token_as_sglang_does() -> None:
    """31,875 bytes a window slot with the rings that follow its page, 7,086.75 a token at 1/10; pages padded to 576."""
    runtime = RuntimeSpec(page_size=256, max_running_requests=1, swa_full_tokens_ratio=0.1, **BARE)
    configurator = create_memory_pool_configurator(model(V4), runtime)
    pools = {pool.name: pool for pool in configurator.calculate_pool_sizes_from_max_tokens(25_600_000).pools}
    windows = pools["swa"].bytes + pools["c4_state"].bytes
    assert windows == 31_875 * pools["swa"].slots == 31_875 * 2_560_000
    assert windows + pools["c4"].bytes + pools["c128"].bytes == 25_600_000 * 7_086.75


def test_deepseek_v4_needs_pages_of_whole_entries() -> None:
    with pytest.raises(InvalidOptionError, match=r"page_size=64 .*multiple of 128"):
        create_memory_pool_configurator(model(V4), RuntimeSpec(page_size=64))


def test_the_rings_are_longer_where_drafts_are_verified() -> None:
    """SGLang 0.5.23, `get_compress_state_ring_size`: 16 rows for each window page, and 256 for each request."""
    runtime = RuntimeSpec(page_size=256, max_running_requests=8, speculative_algorithm="NEXTN")
    configurator = create_memory_pool_configurator(model(V4), runtime)
    config = configurator.calculate_pool_sizes(20 * GIB)
    slots = pool_slots(config)
    assert slots["c4_state"] == slots["swa"] // 256 * 16
    assert slots["c128_state"] == 8 * 256
    # The MTP layer keeps a window, in a pool of its own that follows the model's.
    draft = config.pool("draft_swa")
    assert draft is not None
    assert (draft.slots, draft.cell_bytes, draft.layers) == (slots["swa"], 584, (43,))


def test_a_plan_beside_states_is_finished_and_pickled_as_it_is() -> None:
    """Fewer requests keep fewer states after drafted tokens, and the state pool and the tokens as they are."""
    runtime = RuntimeSpec(speculative_algorithm="NGRAM", max_running_requests=32)
    configurator = create_memory_pool_configurator(model("Qwen--Qwen3.5-35B-A3B"), runtime)
    config = configurator.calculate_pool_sizes(60 * GIB)
    assert configurator.finalize_with_max_running_requests(config) == config
    again: MemoryPoolConfig = pickle.loads(pickle.dumps(config))
    assert configurator.concurrent_requests(again, 1000) == configurator.concurrent_requests(config, 1000)
    fewer = configurator.finalize_with_max_running_requests(again.__replace__(max_running_requests=8))
    assert pool_slots(fewer) == pool_slots(config) | {"mamba_draft": 8 * 4, "request_table": 8}
    with pytest.raises(InsufficientMemoryError, match="the state pool holds 32"):
        configurator.finalize_with_max_running_requests(again.__replace__(max_running_requests=33))


def test_more_requests_than_a_plan_has_states_for_need_the_budget_that_the_error_says() -> None:
    configurator = create_memory_pool_configurator(model("Qwen--Qwen3.5-27B"), RuntimeSpec())
    config = configurator.calculate_pool_sizes(40 * GIB)
    more = config.__replace__(max_running_requests=config.max_running_requests + 5)
    with pytest.raises(InsufficientMemoryError) as caught:
        configurator.finalize_with_max_running_requests(more)
    required = caught.value.required_bytes
    assert required > 40 * GIB
    enough = more.__replace__(available_bytes=required)
    assert configurator.finalize_with_max_running_requests(enough).total_bytes <= required
    with pytest.raises(InsufficientMemoryError):
        configurator.finalize_with_max_running_requests(more.__replace__(available_bytes=required - 1))

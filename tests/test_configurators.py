"""The configurators: which applies, both entry points, and what a plan refuses. Laws are in `test_laws.py`."""

from __future__ import annotations

from typing import Any, cast

import pytest

from poolplan import (
    Attention,
    DefaultPoolConfigurator,
    HybridSWAPoolConfigurator,
    InsufficientMemoryError,
    InvalidOptionError,
    LatentAttention,
    Layer,
    MemoryPoolConfigurator,
    ModelSpec,
    RuntimeSpec,
    Span,
    SWARequestCapPoolConfigurator,
    UnsupportedModelError,
    create_memory_pool_configurator,
)

GIB = 1 << 30
# What a runtime plans that counts neither padding nor tables.
BARE: dict[str, Any] = {"count_padding": False, "count_request_table": False}


def model(*spans: Span, heads: int = 8, head_dim: int = 64, context_length: int = 131_072) -> ModelSpec:
    """A model with a layer of each span."""
    layers = tuple(Layer(states=[Attention(num_kv_heads=heads, head_dim=head_dim, span=span)]) for span in spans)
    return ModelSpec(
        name="test",
        model_type="test",
        layers=layers,
        context_length=context_length,
        dtype="bfloat16",
        kv_cache_dtype="bfloat16",
    )


FULL = model(*[Span.full()] * 36)
HYBRID = model(*[Span.window(128), Span.full()] * 18)  # GPT-OSS-120B
WINDOWS = model(*[Span.window(128)] * 36)
CHUNKED = model(*[Span.chunk(8192)] * 3, Span.full())
CAPPED: dict[str, Any] = {"disable_radix_cache": True, "max_running_requests": 64}


@pytest.mark.parametrize(
    ("spec", "options", "cls"),
    [
        (FULL, {}, DefaultPoolConfigurator),
        (HYBRID, {}, HybridSWAPoolConfigurator),
        (CHUNKED, {}, HybridSWAPoolConfigurator),
        (WINDOWS, {}, HybridSWAPoolConfigurator),
        (HYBRID, {"disable_hybrid_swa_memory": True}, DefaultPoolConfigurator),
        (HYBRID, CAPPED | {"chunked_prefill_size": 8192}, SWARequestCapPoolConfigurator),
        (HYBRID, CAPPED | {"disaggregation_mode": "decode"}, SWARequestCapPoolConfigurator),
        (HYBRID, CAPPED, HybridSWAPoolConfigurator),
        (HYBRID, {"disable_radix_cache": True, "chunked_prefill_size": 8192}, HybridSWAPoolConfigurator),
        (WINDOWS, CAPPED | {"chunked_prefill_size": 8192}, HybridSWAPoolConfigurator),
        (FULL, CAPPED | {"chunked_prefill_size": 8192}, DefaultPoolConfigurator),
    ],
    ids=lambda value: repr(cast("object", value)) if isinstance(value, dict) else None,
)
def test_the_configurator_that_applies_is_chosen(spec: ModelSpec, options: dict[str, Any], cls: type) -> None:
    assert type(create_memory_pool_configurator(spec, RuntimeSpec(**options))) is cls


def test_the_base_class_is_abstract() -> None:
    with pytest.raises(TypeError, match="create_memory_pool_configurator"):
        MemoryPoolConfigurator(FULL, RuntimeSpec())


def test_a_model_that_keeps_nothing_is_refused() -> None:
    empty = ModelSpec(
        name="empty",
        model_type="test",
        layers=(Layer(),),
        context_length=8,
        dtype="bfloat16",
        kv_cache_dtype="bfloat16",
    )
    with pytest.raises(UnsupportedModelError, match="keeps"):
        create_memory_pool_configurator(empty, RuntimeSpec())


def test_the_two_pools_of_a_hybrid() -> None:
    config = create_memory_pool_configurator(HYBRID, RuntimeSpec(page_size=64, **BARE)).calculate_pool_sizes(50 * GIB)
    assert config.max_total_num_tokens == config.full_max_total_num_tokens == 809_088
    assert config.swa_max_total_num_tokens == 647_232
    assert [(pool.name, pool.cell_bytes) for pool in config.pools] == [("full", 36_864), ("swa", 36_864)]
    assert config.pools[0].layers == tuple(range(1, 36, 2))
    assert config.pools[1].layers == tuple(range(0, 36, 2))


def test_windows_only_have_a_window_pool_that_is_the_anchor() -> None:
    config = create_memory_pool_configurator(WINDOWS, RuntimeSpec(page_size=16, **BARE)).calculate_pool_sizes(GIB)
    assert config.full_max_total_num_tokens is None
    assert config.max_total_num_tokens == config.swa_max_total_num_tokens == GIB // 73_728 // 16 * 16


def test_a_plan_from_tokens_says_what_it_takes() -> None:
    configurator = create_memory_pool_configurator(HYBRID, RuntimeSpec(page_size=64))
    config = configurator.calculate_pool_sizes_from_max_tokens(100_000)
    assert (config.max_total_num_tokens, config.swa_max_total_num_tokens) == (99_968, 79_936)
    assert config.available_bytes == config.total_bytes == sum(pool.bytes for pool in config.pools)
    assert configurator.calculate_pool_sizes(config.total_bytes) == config
    assert configurator.calculate_pool_sizes(config.total_bytes - 1).max_total_num_tokens == 99_904


def test_padding_and_request_table_are_counted_unless_switched_off() -> None:
    """SGLang 0.5.23 allocates a page more in each pool and int32 [requests + 1, context + 4] beside what it plans."""
    config = create_memory_pool_configurator(HYBRID, RuntimeSpec(page_size=64)).calculate_pool_sizes_from_max_tokens(
        64_000
    )
    full, swa, table = config.pools
    assert (full.padding_slots, swa.padding_slots, table.padding_slots) == (64, 64, 1)
    assert full.bytes == (64_000 + 64) * 36_864
    assert table.bytes == (config.max_running_requests + 1) * (131_072 + 4) * 4
    bare = create_memory_pool_configurator(HYBRID, RuntimeSpec(page_size=64, **BARE))
    assert bare.calculate_pool_sizes_from_max_tokens(64_000).total_bytes == (64_000 + 51_200) * 36_864


def test_another_page_size_for_one_call() -> None:
    configurator = create_memory_pool_configurator(HYBRID, RuntimeSpec(page_size=64))
    for page_size in (1, 64, 256):
        other = create_memory_pool_configurator(HYBRID, RuntimeSpec(page_size=page_size))
        assert configurator.calculate_pool_sizes(GIB, page_size) == other.calculate_pool_sizes(GIB)
        assert configurator.calculate_pool_sizes(GIB, page_size=page_size) == other.calculate_pool_sizes(GIB)
    with pytest.raises(InvalidOptionError, match="page_size"):
        configurator.calculate_pool_sizes(GIB, 0)


def test_more_requests_resize_what_follows_requests() -> None:
    configurator = create_memory_pool_configurator(HYBRID, RuntimeSpec(page_size=64, max_running_requests=16))
    config = configurator.calculate_pool_sizes(GIB)
    fewer = configurator.finalize_with_max_running_requests(_replace(config, max_running_requests=8))
    assert fewer.max_total_num_tokens == config.max_total_num_tokens
    assert config.total_bytes - fewer.total_bytes == 8 * (131_072 + 4) * 4
    with pytest.raises(InsufficientMemoryError):
        configurator.finalize_with_max_running_requests(_replace(config, max_running_requests=100_000))


def test_a_config_of_another_page_size_keeps_it() -> None:
    configurator = create_memory_pool_configurator(HYBRID, RuntimeSpec(page_size=64, max_running_requests=16))
    config = configurator.calculate_pool_sizes(GIB, 256)
    for same in (config, _replace(config)):
        assert configurator.finalize_with_max_running_requests(same) == config
        assert configurator.concurrent_requests(same, 200)["full"] == config.max_total_num_tokens // 256


def _replace(config: Any, **changes: Any) -> Any:
    return config.__replace__(**changes)


def test_every_stage_has_the_tokens_of_the_poorest() -> None:
    """35 layers in 2 stages: the last owns 18. The plan shows the stage that takes most, or the one asked for."""
    spec = model(*[Span.full()] * 35)
    configs = [
        create_memory_pool_configurator(spec, RuntimeSpec(pp_size=2, pp_rank=rank, **BARE)).calculate_pool_sizes(GIB)
        for rank in (0, 1, None)
    ]
    assert len({config.max_total_num_tokens for config in configs}) == 1
    assert [len(config.pools[0].layers) for config in configs] == [17, 18, 18]
    assert configs[1].max_total_num_tokens == GIB // (18 * 2048)


def test_a_latent_is_held_in_full_by_every_rank() -> None:
    """kaito-project/kaito#2139 divided it: 576 elements of 2 bytes in 47 layers are 54,144 bytes on each rank."""
    latent = Layer(states=[LatentAttention(kv_lora_rank=512, qk_rope_head_dim=64)])
    spec = _replace_spec(FULL, layers=(latent,) * 47)
    for tp_size in (1, 2, 8, 100):
        config = create_memory_pool_configurator(spec, RuntimeSpec(tp_size=tp_size)).calculate_pool_sizes(10 * GIB)
        assert config.pools[0].cell_bytes == 54_144


def _replace_spec(spec: ModelSpec, **changes: Any) -> ModelSpec:
    from dataclasses import replace

    return replace(spec, **changes)


@pytest.mark.parametrize("budget", [0, -1, -(2**100), 1, 10 << 20])
def test_a_budget_below_the_least_plan_says_how_much_is_missing(budget: int) -> None:
    configurator = create_memory_pool_configurator(HYBRID, RuntimeSpec(page_size=64))
    with pytest.raises(InsufficientMemoryError) as caught:
        configurator.calculate_pool_sizes(budget)
    error = caught.value
    assert error.available_bytes == budget
    assert error.missing_bytes == error.required_bytes - budget
    assert configurator.calculate_pool_sizes(error.required_bytes).swa_max_total_num_tokens == 256
    with pytest.raises(InsufficientMemoryError):
        configurator.calculate_pool_sizes(error.required_bytes - 1)


@pytest.mark.parametrize("budget", [1.0, True, "1", None, 2**64, 2**200, [1]], ids=repr)
def test_a_budget_is_a_whole_number_of_bytes(budget: Any) -> None:
    with pytest.raises(InvalidOptionError, match="available_bytes"):
        create_memory_pool_configurator(HYBRID, RuntimeSpec()).calculate_pool_sizes(budget)


@pytest.mark.parametrize("tokens", [0, 1, 319, -1, 1.0, True, 2**63, 2**64, 2**62], ids=repr)
def test_too_few_tokens_for_a_request_or_too_many_for_any_memory_are_refused(tokens: Any) -> None:
    with pytest.raises(InvalidOptionError, match="max_total_num_tokens"):
        create_memory_pool_configurator(HYBRID, RuntimeSpec(page_size=64)).calculate_pool_sizes_from_max_tokens(tokens)


def test_a_request_that_is_stated_must_be_able_to_run() -> None:
    runtime = RuntimeSpec(page_size=64, request_tokens=100_000, max_running_requests=1)
    configurator = create_memory_pool_configurator(HYBRID, runtime)
    with pytest.raises(InsufficientMemoryError, match="100000 tokens") as caught:
        configurator.calculate_pool_sizes(GIB)
    config = configurator.calculate_pool_sizes(caught.value.required_bytes)
    assert config.max_total_num_tokens == 100_032
    assert configurator.concurrent_requests(config, 100_000)["full"] == 1


def test_a_ratio_that_no_number_of_tokens_makes_large_enough_is_the_option_to_blame() -> None:
    with pytest.raises(InvalidOptionError) as caught:
        create_memory_pool_configurator(HYBRID, RuntimeSpec(page_size=64, swa_full_tokens_ratio="1e-18"))
    assert caught.value.option == "swa_full_tokens_ratio"


def test_a_chunk_of_chunked_attention_counts_like_a_window() -> None:
    config = create_memory_pool_configurator(CHUNKED, RuntimeSpec(page_size=64)).calculate_pool_sizes(4 * GIB)
    assert [pool.name for pool in config.pools] == ["full", "swa", "request_table"]
    assert config.pools[1].layers == (0, 1, 2)
    # 8,192 + 64 must be exceeded: 8,320 slots are 4/5 of 10,400, and the next whole page is 10,432.
    with pytest.raises(InvalidOptionError, match="at least 10432"):
        create_memory_pool_configurator(CHUNKED, RuntimeSpec(page_size=64, max_total_tokens=10_400))


def test_a_window_longer_than_the_context_holds_the_context() -> None:
    """tenstorrent/tt-xla#5860: rings sized by the window although requests are shorter."""
    runtime = RuntimeSpec(page_size=64, context_length=64, **CAPPED, chunked_prefill_size=64)
    config = create_memory_pool_configurator(HYBRID, runtime).calculate_pool_sizes(4 * GIB)
    assert config.swa_max_total_num_tokens == 64 * (64 + 128 + 64 + 64) + 2 * 64 + 64

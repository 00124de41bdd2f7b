"""How a call grows: with nothing but the pools. Each group is one curve."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from poolplan import (
    Attention,
    Layer,
    MemoryPoolConfigurator,
    ModelSpec,
    RuntimeSpec,
    Span,
    create_memory_pool_configurator,
)
from worlds import BUDGET, our_configurator


def configurator_of(layers: int, page_size: int = 64, **options: Any) -> MemoryPoolConfigurator:
    """A model like Gemma-3-27B with so many layers."""

    def layer(index: int) -> Layer:
        span = Span.full() if index % 6 == 5 else Span.window(1024)
        return Layer(states=[Attention(num_kv_heads=16, head_dim=128, v_head_dim=128, span=span)])

    model = ModelSpec(
        name="growth",
        model_type="growth",
        layers=tuple(map(layer, range(layers))),
        context_length=131_072,
        dtype="bfloat16",
        kv_cache_dtype="bfloat16",
    )
    return create_memory_pool_configurator(model, RuntimeSpec(page_size=page_size, **options))


@pytest.mark.benchmark(group="a call by budget")
@pytest.mark.parametrize("power", [34, 36, 40, 46, 52, 58, 62])
def test_budget(benchmark: BenchmarkFixture, power: int) -> None:
    benchmark(our_configurator({}).calculate_pool_sizes, 1 << power)


@pytest.mark.benchmark(group="a call by page size")
@pytest.mark.parametrize("page_size", [1, 16, 64, 256, 1024])
def test_page_size(benchmark: BenchmarkFixture, page_size: int) -> None:
    benchmark(configurator_of(62, page_size).calculate_pool_sizes, BUDGET)


@pytest.mark.benchmark(group="a call by layers")
@pytest.mark.parametrize("layers", [12, 62, 124, 496])
def test_layers(benchmark: BenchmarkFixture, layers: int) -> None:
    benchmark(configurator_of(layers).calculate_pool_sizes, BUDGET << 3)


@pytest.mark.benchmark(group="a call and all its fields by pools")
@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B", "google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V4-Flash"])
def test_pools(benchmark: BenchmarkFixture, model: str) -> None:
    """2, 3 and 6 pools: a plan is read from its pools when a field is asked for."""
    spec = ModelSpec.from_pretrained(model)
    configurator = create_memory_pool_configurator(spec, RuntimeSpec(page_size=256))
    benchmark(lambda: configurator.calculate_pool_sizes(BUDGET << 2).total_bytes)


@pytest.mark.benchmark(group="a configurator by layers")
@pytest.mark.parametrize("layers", [62, 124, 496])
def test_build(benchmark: BenchmarkFixture, layers: int) -> None:
    built = configurator_of(layers)
    benchmark(create_memory_pool_configurator, built.model, built.runtime)

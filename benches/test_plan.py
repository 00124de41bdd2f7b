"""What a call costs through Python: an empty call as the floor, ours, and the pure-Python reference in closed form.

Each group is one table of one run; `make bench` prints the ratios. The core alone is measured by `benches/plan.rs`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from poolplan import MemoryPoolConfig, ModelSpec, RuntimeSpec, Span, create_memory_pool_configurator
from poolplan.models.pretrained import catalog
from worlds import BUDGET, CASES, gemma, our_configurator, reference_planner


@pytest.mark.benchmark(group="one plan")
def test_floor_an_empty_call_that_returns_a_small_object(benchmark: BenchmarkFixture) -> None:
    benchmark(Span.full)


@pytest.mark.benchmark(group="one plan")
@pytest.mark.parametrize("case", CASES)
def test_ours(benchmark: BenchmarkFixture, case: str) -> None:
    configurator = our_configurator(CASES[case])
    config: MemoryPoolConfig = cast("Any", benchmark)(configurator.calculate_pool_sizes, BUDGET)
    assert config.max_total_num_tokens == reference_planner(CASES[case]).plan(BUDGET).tokens


@pytest.mark.benchmark(group="one plan")
@pytest.mark.parametrize("case", CASES)
def test_reference(benchmark: BenchmarkFixture, case: str) -> None:
    benchmark(reference_planner(CASES[case]).plan, BUDGET)


@pytest.mark.benchmark(group="build")
def test_build_ours(benchmark: BenchmarkFixture) -> None:
    """From a model that has been read to a configurator that is ready."""
    benchmark(create_memory_pool_configurator, gemma(), RuntimeSpec(page_size=64))


@pytest.mark.benchmark(group="build")
def test_build_reference(benchmark: BenchmarkFixture) -> None:
    benchmark(reference_planner, {})


@pytest.mark.benchmark(group="read")
def test_read_a_config_json(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """From a file to a model."""
    (tmp_path / "config.json").write_text(json.dumps(catalog()["google/gemma-3-27b-it"]["config"]))
    benchmark(ModelSpec.from_pretrained, tmp_path)

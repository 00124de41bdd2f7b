"""What a plan costs where many are asked for at once: ours on one core and on all, and NumPy on whole arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from numpy_plan import Array, NumpyHybrid
from worlds import CONTEXT, our_configurator

ROWS = 100_000
PAGE = 64


def budgets() -> Array:
    """From 16 to 80 GiB, in no order: a processor cannot guess what comes next."""
    return np.random.default_rng(1).integers(16 << 30, 80 << 30, ROWS)


def numpy_planner() -> NumpyHybrid:
    """Gemma-3-27B: 10 full layers and 52 with windows, each with keys and values of 16 heads of 128 in 16 bits."""
    layer = 2 * 16 * 128 * 2
    row = (CONTEXT + 4) * 4
    return NumpyHybrid(
        full=10 * layer,
        window=52 * layer,
        ratio=Fraction(4, 5),
        page=PAGE,
        row=row,
        context=CONTEXT,
        window_tokens=1024,
    )


@pytest.fixture
def one_core() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.mark.benchmark(group=f"{ROWS:,} plans")
@pytest.mark.usefixtures("one_core")
def test_batch_on_one_core(benchmark: BenchmarkFixture) -> None:
    benchmark(our_configurator({}).calculate_pool_sizes_batch, budgets())


@pytest.mark.benchmark(group=f"{ROWS:,} plans")
def test_batch_on_all_cores(benchmark: BenchmarkFixture) -> None:
    benchmark(our_configurator({}).calculate_pool_sizes_batch, budgets())


@pytest.mark.benchmark(group=f"{ROWS:,} plans")
@pytest.mark.usefixtures("one_core")
def test_batch_in_numpy(benchmark: BenchmarkFixture) -> None:
    benchmark(numpy_planner().plan, budgets())


def test_numpy_gives_the_same_answers() -> None:
    """Over the same domain: any budget."""
    random = np.random.default_rng(2)
    budgets = random.integers(0, 2**63, ROWS) >> random.integers(0, 40, ROWS)
    theirs, ours = numpy_planner().plan(budgets), our_configurator({}).calculate_pool_sizes_batch(budgets)
    assert list(theirs) == list(ours)
    for name, column in ours.items():
        assert (theirs[name] == column).all(), name

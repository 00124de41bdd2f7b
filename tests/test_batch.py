"""Many budgets at once are what each of them is alone, whatever they come in; and grids of options are their batches."""

from __future__ import annotations

import array
import sys
import threading
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolplan import (
    InsufficientMemoryError,
    InvalidOptionError,
    MemoryPoolConfigurator,
    ModelSpec,
    PoolPlanError,
    RuntimeSpec,
    create_memory_pool_configurator,
    iter_sweep,
    sweep,
)
from strategies import BUDGETS, Case, cases

GIB = 1 << 30
CAPPED: dict[str, Any] = {"disable_radix_cache": True, "max_running_requests": 64, "chunked_prefill_size": 8192}
WORLDS: dict[str, tuple[str, dict[str, Any]]] = {
    "windows": ("google/gemma-3-27b-it", {"page_size": 64}),
    "pages of one token": ("openai/gpt-oss-120b", {}),
    "windows capped by requests": ("google/gemma-3-27b-it", {"page_size": 16, **CAPPED}),
    "one pool": ("meta-llama/Llama-3.1-8B", {"page_size": 32, "tp_size": 2}),
    "an odd ratio": ("google/gemma-3-27b-it", {"swa_full_tokens_ratio": Fraction(13, 97), "page_size": 48}),
    "stages": ("openai/gpt-oss-120b", {"pp_size": 5, "page_size": 64}),
    "one of the stages": ("openai/gpt-oss-120b", {"pp_size": 5, "pp_rank": 2, "page_size": 64}),
    "states": ("Qwen/Qwen3.5-35B-A3B", {"page_size": 64, "max_running_requests": 64}),
    "compressed entries": ("deepseek-ai/DeepSeek-V4-Flash", {"page_size": 256, "tp_size": 8}),
    "an allocator": ("google/gemma-3-27b-it", {"page_size": 64, "allocator": "torch"}),
}


def configurator_of(model: str, options: dict[str, Any]) -> MemoryPoolConfigurator:
    return create_memory_pool_configurator(ModelSpec.from_pretrained(model), RuntimeSpec(**options))


def row_of(configurator: MemoryPoolConfigurator, budget: int) -> dict[str, int]:
    """The plan of one budget, as a row; empty where there is none, which takes long to explain."""
    if budget < configurator.required_bytes:
        return {}
    config = configurator.calculate_pool_sizes(budget)
    return {
        "max_total_num_tokens": config.max_total_num_tokens,
        "max_running_requests": config.max_running_requests,
        "total_bytes": config.total_bytes,
    } | {pool.name: pool.slots for pool in config.pools}


def rows_of(columns: dict[str, Any]) -> list[dict[str, int]]:
    assert all(column.dtype == np.int64 for column in columns.values())
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*(column.tolist() for column in columns.values()), strict=True)
    ]


@pytest.mark.parametrize("world", WORLDS)
def test_a_million_random_rows_are_what_each_of_them_is_alone(world: str) -> None:
    """A tenth of a million for each kind of model, over budgets of every size from 0 to 2^63 - 1."""
    configurator = configurator_of(*WORLDS[world])
    random = np.random.default_rng(20261207)
    budgets = random.integers(0, 2**63, 100_000, dtype=np.int64) >> random.integers(0, 50, 100_000)
    budgets[:2] = 0, 2**63 - 1
    planned = 0
    for budget, row in zip(budgets.tolist(), rows_of(configurator.calculate_pool_sizes_batch(budgets)), strict=True):
        expected = row_of(configurator, budget)
        assert row == expected or (not expected and not any(row.values()))
        planned += bool(expected)
    assert planned > 20_000
    with pytest.raises(InsufficientMemoryError):
        configurator.calculate_pool_sizes(configurator.required_bytes - 1)


@given(case=cases(), budgets=st.lists(BUDGETS, max_size=20))
def test_a_batch_is_its_plans(case: Case, budgets: list[int]) -> None:
    try:
        configurator = case.configurator()
    except PoolPlanError:
        return
    budgets = [min(budget, 2**63 - 1) for budget in (*budgets, case.budget)]
    for budget, row in zip(budgets, rows_of(configurator.calculate_pool_sizes_batch(budgets)), strict=True):
        expected = row_of(configurator, budget)
        assert row == expected or (not expected and not any(row.values()))


SIZES = [60 * GIB, 0, 50 * GIB, 41 * GIB]


@pytest.mark.parametrize(
    "budgets",
    [
        SIZES,
        tuple(SIZES),
        array.array("q", SIZES),
        memoryview(array.array("Q", SIZES)),
        np.array(SIZES),
        np.array(SIZES, np.uint64),
        np.array(SIZES, ">i8"),
        np.repeat(SIZES, 3)[::3],
        np.array(SIZES[::-1])[::-1],
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_budgets_come_in_any_array_of_integers(budgets: Any) -> None:
    configurator = configurator_of(*WORLDS["windows"])
    expected = [row_of(configurator, budget).get("max_total_num_tokens", 0) for budget in SIZES]
    assert configurator.calculate_pool_sizes_batch(budgets)["max_total_num_tokens"].tolist() == expected


def test_columns_have_the_shape_of_the_budgets() -> None:
    configurator = configurator_of(*WORLDS["windows"])
    for shape in ((), (0,), (1,), (2, 2), (2, 0, 3)):
        columns = configurator.calculate_pool_sizes_batch(np.full(shape, 60 * GIB))
        assert list(columns) == [
            "max_total_num_tokens",
            "max_running_requests",
            "total_bytes",
            "full",
            "swa",
            "request_table",
        ]
        assert all(column.shape == shape for column in columns.values())
    assert configurator.calculate_pool_sizes_batch(np.array([5], np.int8))["total_bytes"].tolist() == [0]
    assert configurator.calculate_pool_sizes_batch([-(2**63)])["total_bytes"].tolist() == [0]


@pytest.mark.parametrize("budgets", [[1.5], [True], ["60GiB"], [2**63], [2**70], None, [None], {}], ids=repr)
def test_what_is_no_whole_number_of_bytes_is_refused(budgets: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"available_bytes=.* pass whole numbers of bytes up to 2\^63 - 1"):
        configurator_of(*WORLDS["windows"]).calculate_pool_sizes_batch(budgets)


def test_another_thread_runs_meanwhile() -> None:
    """With an interval of a thousand seconds between threads, one that kept the interpreter would finish first."""
    configurator = configurator_of(*WORLDS["states"])
    budgets = np.full(2_000_000, 60 * GIB)
    begun, done = threading.Event(), threading.Event()

    def plan() -> None:
        begun.set()
        configurator.calculate_pool_sizes_batch(budgets)
        done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    thread = threading.Thread(target=plan)
    try:
        thread.start()
        begun.wait()
        assert not done.is_set()
    finally:
        thread.join()
        sys.setswitchinterval(interval)


# Grids

GRID: dict[str, Any] = {
    "page_size": (1, 64),
    "swa_full_tokens_ratio": [None, "0.5"],
    "max_running_requests": 64,
    "disable_hybrid_swa_memory": [False, True],
    "available_bytes": [GIB * size for size in (0, 20, 40, 60, 80)],
}


def gemma() -> ModelSpec:
    return ModelSpec.from_pretrained("google/gemma-3-27b-it")


def test_a_grid_is_nested_loops_with_budgets_innermost() -> None:
    columns = sweep(gemma(), GRID)
    names = ["option_max_running_requests" if name == "max_running_requests" else name for name in GRID]
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    loops = product((1, 64), (None, "0.5"), (64,), (False, True), GRID["available_bytes"])
    for found, combination in zip(rows, loops, strict=True):
        row = dict(zip(columns, found, strict=True))
        assert tuple(row[name] for name in names) == combination
        *options, budget = combination
        configurator = configurator_of("google/gemma-3-27b-it", dict(zip(GRID, options, strict=False)))
        expected = row_of(configurator, int(budget or 0))
        assert {name: value for name, value in row.items() if name not in names and value} == expected
    assert [column.dtype.kind for column in columns.values()][:4] == ["i", "O", "i", "b"]


@pytest.mark.parametrize("chunk_rows", [1, 3, 5, 7, 40, 1000])
def test_chunks_are_the_whole(chunk_rows: int) -> None:
    whole = sweep(gemma(), GRID)
    chunks = list(iter_sweep(gemma(), GRID, chunk_rows=chunk_rows))
    assert all(list(chunk) == list(whole) for chunk in chunks)
    assert max(len(chunk["page_size"]) for chunk in chunks) <= chunk_rows
    for name, column in whole.items():
        assert np.concatenate([chunk[name] for chunk in chunks]).tolist() == column.tolist()


def test_a_refused_combination_is_an_error_or_rows_of_zero() -> None:
    grid = {"tp_size": [1, 3], "available_bytes": [60 * GIB, 80 * GIB]}
    with pytest.raises(InvalidOptionError, match="tp_size=3"):
        sweep(gemma(), grid)
    assert [tokens > 0 for tokens in sweep(gemma(), grid, errors="zero")["max_total_num_tokens"]] == [True] * 2 + [
        False
    ] * 2


@pytest.mark.parametrize(
    ("grid", "arguments", "option"),
    [
        ({"page_size": 1}, {}, "available_bytes"),
        ({"pages": 1, "available_bytes": GIB}, {}, "pages"),
        ({"available_bytes": GIB}, {"errors": "ignore"}, "errors"),
        ({"available_bytes": 1.5}, {}, "available_bytes"),
    ],
)
def test_a_grid_is_checked(grid: dict[str, Any], arguments: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        sweep(gemma(), grid, **arguments)
    assert caught.value.option == option
    with pytest.raises(InvalidOptionError, match="chunk_rows"):
        list(iter_sweep(gemma(), GRID, chunk_rows=0))


def test_a_grid_without_combinations_has_no_rows() -> None:
    columns = sweep(gemma(), {"page_size": [], "available_bytes": [GIB]})
    assert {name: len(column) for name, column in columns.items()} == {"page_size": 0, "available_bytes": 0}

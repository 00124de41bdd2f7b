"""What SGLang 0.5.23 answers for whole files (`tests/facts/sglang_plans.csv`), and where and why we differ.

SGLang counts no padding and no request table, so neither do we here. The cells are equal on every line. The plans differ
only where SGLang's is worse: it multiplies and divides in binary floats, and so may lose a page or pass its budget.
"""

from __future__ import annotations

import csv
import json
import warnings
from collections import Counter
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from poolplan import (
    DefaultPoolConfigurator,
    HybridSWAPoolConfigurator,
    InvalidOptionError,
    MemoryPoolConfigurator,
    ModelSpec,
    RuntimeSpec,
    UnknownModelWarning,
    create_memory_pool_configurator,
)

FACTS = Path(__file__).parent / "facts"
ROWS = list(csv.DictReader((FACTS / "sglang_plans.csv").read_text(encoding="utf-8").splitlines()))
CONFIGS = sorted({row["config"] for row in ROWS})
CLASSES = {cls.__name__: cls for cls in (DefaultPoolConfigurator, HybridSWAPoolConfigurator)}

# SGLang read the defaults of transformers' class, as that class wants the keys nested: the files say otherwise.
CONTEXT_FROM_CLASS = {"stepfun-ai--Step-3.7-Flash": 65_536, "zai-org--GLM-4.1V-9B-Thinking": 65_536}
# Heads that no rank can hold whole: SGLang prices a floored count, and then fails to load (its QKV projection asserts
# that one number divides the other). We refuse before.
UNEVEN = {
    "Qwen--Qwen1.5-4B-Chat": {8},
    "facebook--opt-125m": {8},
    "microsoft--phi-4": {8},
    "openai-community--gpt2": {8},
    "SpecForge-draft--phi4-eagle3": {8},
}


class SGLangPlan(NamedTuple):
    """One of its answers."""

    available_bytes: int
    max_total: int
    full: int | None
    swa: int | None
    requests: int


def plans_of(row: dict[str, str]) -> list[SGLangPlan]:
    numbers = [
        [int(number) if number else None for number in row[gib].split(":")] for gib in ("8GiB", "20GiB", "60GiB")
    ]
    return [SGLangPlan(*plan) for plan in numbers]  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@cache
def model_of(name: str) -> ModelSpec:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownModelWarning)
        return ModelSpec.from_config(json.loads((FACTS / "configs" / f"{name}.json").read_text()), name=name)


def configurator_of(row: dict[str, str]) -> MemoryPoolConfigurator:
    """Our configurator, with windows pooled where SGLang pools them: it knows them by a list of architectures."""
    runtime = RuntimeSpec(
        tp_size=int(row["tp_size"]),
        page_size=int(row["page_size"]),
        kv_cache_dtype=row["kv_cache_dtype"],
        disable_hybrid_swa_memory=row["class"] == "DefaultPoolConfigurator",
        count_padding=False,
        count_request_table=False,
    )
    return create_memory_pool_configurator(model_of(row["config"]), runtime)


def rows_of(config: str) -> list[dict[str, str]]:
    uneven = UNEVEN.get(config, set())
    return [row for row in ROWS if row["config"] == config and int(row["tp_size"]) not in uneven]


@pytest.mark.parametrize("config", CONFIGS)
def test_the_context_length_is_sglangs(config: str) -> None:
    (sglangs,) = {int(row["context_length"]) for row in ROWS if row["config"] == config}
    ours = model_of(config).context_length
    assert ours == CONTEXT_FROM_CLASS.get(config, sglangs)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_cells_are_sglangs_to_the_byte(config: str) -> None:
    for row in rows_of(config):
        configurator = configurator_of(row)
        assert type(configurator) is CLASSES[row["class"]]
        pools = configurator.calculate_pool_sizes(60 << 30).pools
        if row["class"] == "DefaultPoolConfigurator":
            assert [pool.cell_bytes for pool in pools] == [int(row["cell_bytes"])]
        else:
            full, swa = (pool.cell_bytes for pool in pools)
            ratio = Fraction(4, 5)
            # SGLang prints the sum as a float.
            assert float(full + ratio * swa) == float(row["cell_bytes"])
            assert full == int(row["full_cell_bytes"]) * len(pools[0].layers)
            assert swa == int(row["swa_cell_bytes"]) * len(pools[1].layers)


@pytest.mark.parametrize("config", CONFIGS)
def test_no_pool_is_smaller_than_sglangs(config: str) -> None:
    for row in rows_of(config):
        configurator = configurator_of(row)
        for plan in plans_of(row):
            ours = configurator.calculate_pool_sizes(plan.available_bytes)
            pairs = [
                (ours.max_total_num_tokens, plan.max_total),
                (ours.full_max_total_num_tokens, plan.full),
                (ours.swa_max_total_num_tokens, plan.swa),
            ]
            assert all(theirs is None or (own is not None and own >= theirs) for own, theirs in pairs), (row, plan)
            if row["class"] == "DefaultPoolConfigurator":
                assert ours.max_total_num_tokens == plan.max_total
            if config not in CONTEXT_FROM_CLASS and ours.max_total_num_tokens == plan.max_total:
                assert ours.max_running_requests == plan.requests


def test_what_the_exact_ratio_gains() -> None:
    """SGLang's cell is a float, and `int(budget // cell)` then rounds below what fits: never by more than a page."""
    gained: Counter[int] = Counter()
    for row in ROWS:
        if row["class"] == "HybridSWAPoolConfigurator":
            page = int(row["page_size"])
            for plan in plans_of(row):
                ours = configurator_of(row).calculate_pool_sizes(plan.available_bytes)
                pages, rest = divmod(ours.max_total_num_tokens - plan.max_total, page)
                assert rest == 0
                gained[pages] += 1
    assert set(gained) == {0, 1}
    assert gained[1] > 50


@pytest.mark.parametrize(("config", "tp_size"), [(config, size) for config, sizes in UNEVEN.items() for size in sizes])
def test_heads_that_ranks_cannot_share_are_refused(config: str, tp_size: int) -> None:
    rows = [row for row in ROWS if row["config"] == config and int(row["tp_size"]) == tp_size]
    assert len(rows) == 6
    for row in rows:
        with pytest.raises(InvalidOptionError, match="tp_size"):
            configurator_of(row)


def test_every_line_of_sglang_is_compared() -> None:
    compared = sum(len(rows_of(config)) for config in CONFIGS)
    refused = sum(6 * len(sizes) for sizes in UNEVEN.values())
    assert (len(CONFIGS), len(ROWS), compared, refused) == (105, 1890, 1860, 30)

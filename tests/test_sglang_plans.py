"""What SGLang 0.5.23 answers for whole files (`tests/facts/sglang_plans.csv`), and where and why we differ.

SGLang counts no padding of tokens and no request table, so neither do we here. The cells and the bytes of a state are equal
on every line but those of the models named in `ALL_LAYERS`. The plans differ only where SGLang's is worse: it multiplies
and divides in binary floats, and so may lose a page or pass its budget; it leaves half of the budget of a model of states
only unused; and it sizes the rings of DeepSeek V4 for more requests than it then serves.
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
    CompressedPoolConfigurator,
    DefaultPoolConfigurator,
    HybridSWAPoolConfigurator,
    InvalidOptionError,
    MambaPoolConfigurator,
    MemoryPoolConfig,
    MemoryPoolConfigurator,
    ModelSpec,
    RuntimeSpec,
    UnknownModelWarning,
    create_memory_pool_configurator,
)

FACTS = Path(__file__).parent / "facts"
ROWS = list(csv.DictReader((FACTS / "sglang_plans.csv").read_text(encoding="utf-8").splitlines()))
CONFIGS = sorted({row["config"] for row in ROWS})
# Its classes, and ours for the same models. It has none for recurrent state, which its caller takes from the budget.
CLASSES: dict[str, tuple[type[MemoryPoolConfigurator], ...]] = {
    "DefaultPoolConfigurator": (DefaultPoolConfigurator, MambaPoolConfigurator),
    "HybridSWAPoolConfigurator": (HybridSWAPoolConfigurator,),
    "DSV4PoolConfigurator": (CompressedPoolConfigurator,),
}

# SGLang read the defaults of transformers' class, as that class wants the keys nested: the files say otherwise.
# Of Kimi Linear the file says nothing: transformers' class has 1,048,576 positions, SGLang's 4,096.
CONTEXT_FROM_CLASS = {
    "stepfun-ai--Step-3.7-Flash": 65_536,
    "zai-org--GLM-4.1V-9B-Thinking": 65_536,
    "moonshotai--Kimi-Linear-48B-A3B-Instruct": 1_048_576,
}
# SGLang has no description of these as hybrids and prices K and V in every layer, where most keep a state instead (Bamba,
# Zamba 2) or keys and values of the image only (Llama 3.2 Vision, whose cross layers it puts into the same pool).
ALL_LAYERS = {
    "Zyphra--Zamba2-7B",
    "ibm-ai-platform--Bamba-9B-v1",
    "meta-llama--Llama-3.2-11B-Vision-Instruct",
}
# It prices the decoder's own keys and values, and not those of the source that each request holds.
ENCODERS = {"facebook--bart-large-cnn"}
STATES_ONLY = "mistralai--Mamba-Codestral-7B-v0.1"
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
    state_slots: int | None


def plans_of(row: dict[str, str]) -> list[SGLangPlan]:
    numbers = [
        [int(number) if number else None for number in row[gib].split(":")] for gib in ("8GiB", "20GiB", "60GiB")
    ]
    # It refuses DeepSeek V4 where 2,048 requests and more leave no windows: there are no numbers then.
    return [SGLangPlan(*plan) for plan in numbers if plan[1] is not None]  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


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
        kv_cache_dtype="fp8_e4m3" if row["class"] == "DSV4PoolConfigurator" else row["kv_cache_dtype"],
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
        assert type(configurator) in CLASSES[row["class"]]
        pools = configurator.calculate_pool_sizes(60 << 30).pools
        cells = {pool.name: pool.cell_bytes for pool in pools}
        if row["config"] in ALL_LAYERS:
            assert cells.get("full", 0) < int(row["cell_bytes"])
        elif row["class"] == "DefaultPoolConfigurator":
            assert cells.get("full", 0) == int(row["cell_bytes"])
            assert cells.get("mamba") == (int(row["state_bytes"]) if row["state_bytes"] else None)
        elif row["class"] == "HybridSWAPoolConfigurator":
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
            if plan.state_slots is not None:
                check_states(ours, plan)
            if config in ALL_LAYERS | ENCODERS:
                assert (ours.max_total_num_tokens > plan.max_total) == (config in ALL_LAYERS)
                continue
            assert all(theirs is None or (own is not None and own >= theirs) for own, theirs in pairs), (row, plan)
            if row["class"] == "DefaultPoolConfigurator" and plan.state_slots is None:
                assert all(theirs is None or own == theirs for own, theirs in pairs), (row, plan)
            if (
                config not in CONTEXT_FROM_CLASS
                and plan.state_slots is None
                and ours.max_total_num_tokens == plan.max_total
            ):
                assert ours.max_running_requests == plan.requests


def check_states(ours: MemoryPoolConfig, plan: SGLangPlan) -> None:
    """A request holds three of SGLang's state slots: ours are those of whole requests, and what is spared goes to tokens."""
    state, full = ours.pool("mamba"), ours.pool("full")
    assert state is not None
    assert plan.state_slots is not None
    if full is None:
        assert state.slots > plan.state_slots
        return
    assert ours.max_running_requests >= plan.requests
    assert state.slots == min(plan.state_slots // 3, 4096) * 3
    spared = (plan.state_slots - state.slots) * state.cell_bytes
    pages, rest = divmod(ours.max_total_num_tokens - plan.max_total, full.page_size)
    assert rest == 0
    assert pages in (gained := spared // (full.cell_bytes * full.page_size), gained + 1)


def test_what_a_model_of_states_only_gains() -> None:
    """SGLang gives states 9/19 of the budget, and tokens, which take no bytes, the rest."""
    for row in rows_of(STATES_ONLY):
        for plan in plans_of(row):
            ours = configurator_of(row).calculate_pool_sizes(plan.available_bytes)
            assert ours.max_running_requests >= 2 * plan.requests


def test_what_exact_rings_gain() -> None:
    """DeepSeek V4: SGLang sizes rings for the requests that the whole budget would hold, and serves fewer."""
    for row in ROWS:
        if row["class"] == "DSV4PoolConfigurator":
            assert len(plans_of(row)) < 3
            for plan in plans_of(row):
                ours = configurator_of(row).calculate_pool_sizes(plan.available_bytes)
                assert ours.max_total_num_tokens > plan.max_total
            # What it refuses, we plan with the requests that fit.
            assert configurator_of(row).calculate_pool_sizes(40 << 30).max_running_requests >= 1


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
    assert (len(CONFIGS), len(ROWS), compared, refused) == (130, 2316, 2286, 30)

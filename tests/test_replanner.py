"""Planning again while serving: what changes, hysteresis, and refusals below what is in use; models that share a device."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolplan import (
    InsufficientMemoryError,
    InvalidOptionError,
    MemoryPoolConfigurator,
    ModelSpec,
    PoolPlanError,
    Replanner,
    RuntimeSpec,
    create_memory_pool_configurator,
    split_device,
)
from samples import LLAMA
from strategies import BUDGETS, Case, cases

GIB = 1 << 30


def configurator_of(source: Any = "openai/gpt-oss-120b", **options: Any) -> MemoryPoolConfigurator:
    return create_memory_pool_configurator(ModelSpec.from_pretrained(source), RuntimeSpec(**options))


def slots_of(config: Any) -> dict[str, int]:
    return {pool.name: pool.slots for pool in config.pools}


def replanner_of(available_bytes: int, **options: Any) -> Replanner:
    configurator = configurator_of(tp_size=8, page_size=64)
    return Replanner(configurator, configurator.calculate_pool_sizes(available_bytes), **options)


def test_a_smaller_budget_shrinks_at_once_and_says_each_pool() -> None:
    replanner = replanner_of(60 * GIB)
    before = replanner.config
    replan = replanner.replan(59 * GIB, in_use={"full": 1000})
    assert replan.config == replanner.config == replanner.configurator.calculate_pool_sizes(59 * GIB)
    after = slots_of(replan.config)
    assert {change.name: (change.slots_before, change.slots) for change in replan.changes} == {
        name: (slots, after[name]) for name, slots in slots_of(before).items() if slots != after[name]
    }
    assert sum(change.bytes - change.bytes_before for change in replan.changes) == (
        replan.config.total_bytes - before.total_bytes
    )


def test_a_plan_grows_only_where_it_is_worth_it() -> None:
    replanner = replanner_of(50 * GIB)
    before = replanner.config
    assert replanner.replan(51 * GIB).changes == ()  # 2%
    assert replanner.config == before
    grown = replanner.replan(60 * GIB)
    assert grown.config == replanner.configurator.calculate_pool_sizes(60 * GIB)
    assert all(change.slots > change.slots_before for change in grown.changes)
    always = replanner_of(50 * GIB, min_growth=0)
    assert always.replan(51 * GIB).config == always.configurator.calculate_pool_sizes(51 * GIB)


@given(st.lists(st.integers(970, 1010), min_size=1, max_size=20))
def test_no_plan_grows_within_a_band_of_four_percent(percents: list[int]) -> None:
    """A band of budgets whose plans differ by less than `min_growth`: at most one shrink for each new low."""
    replanner = replanner_of(40 * GIB)
    budgets = [40 * GIB * percent // 1000 for percent in percents]
    changed = [budget for budget in budgets if replanner.replan(budget).changes]
    assert changed == sorted(set(changed), reverse=True)
    assert replanner.config.total_bytes <= min(budgets)


def test_pools_do_not_shrink_below_what_is_in_use() -> None:
    replanner = replanner_of(60 * GIB)
    before = replanner.config
    in_use = slots_of(before)["full"] * 9 // 10
    with pytest.raises(InsufficientMemoryError) as caught:
        replanner.replan(40 * GIB, {"full": in_use})
    assert replanner.config == before
    required = caught.value.required_bytes
    calculate = replanner.configurator.calculate_pool_sizes
    assert slots_of(calculate(required))["full"] >= in_use > slots_of(calculate(required - 1))["full"]
    assert replanner.replan(required, {"full": in_use}).config == calculate(required)


@given(case=cases(), budget=BUDGETS, part=st.fractions(0, 1))
def test_a_replan_fits_and_holds_what_is_in_use_or_is_refused(case: Case, budget: int, part: Fraction) -> None:
    try:
        configurator = case.configurator()
        before = configurator.calculate_pool_sizes(case.budget)
    except PoolPlanError:
        return
    replanner = Replanner(configurator, before, min_growth="0.01")
    in_use = {name: int(slots * part) for name, slots in slots_of(before).items()}
    try:
        replan = replanner.replan(budget, in_use)
    except InsufficientMemoryError as error:
        assert replanner.config == before
        assert error.required_bytes > budget
        if error.required_bytes < 2**64:
            replan = replanner.replan(error.required_bytes, in_use)
        else:
            return
    after = slots_of(replan.config)
    assert all(after[name] >= used for name, used in in_use.items())
    assert max(configurator.stage_bytes(replan.config)) <= max(budget, replan.config.available_bytes)
    assert bool(replan.changes) == (slots_of(before) != after)


@pytest.mark.parametrize(
    "in_use",
    [{"full": -1}, {"full": 1.5}, {"full": 2**63}, {"swan": 1}],
    ids=repr,
)
def test_what_cannot_be_in_use_is_refused(in_use: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match="in_use"):
        replanner_of(60 * GIB).replan(50 * GIB, in_use)


def test_a_plan_of_another_configurator_is_refused() -> None:
    other = configurator_of(LLAMA).calculate_pool_sizes(GIB)
    with pytest.raises(InvalidOptionError, match="config"):
        Replanner(configurator_of(), other)
    with pytest.raises(InvalidOptionError):
        replanner_of(60 * GIB, min_growth=-1)


# Several models on one device.


def test_a_device_is_divided_in_proportion() -> None:
    models = [configurator_of(), configurator_of(LLAMA)]
    configs = split_device(60 * GIB, models, weights=(1, 2))
    assert [config.available_bytes for config in configs] == [20 * GIB, 40 * GIB]
    assert list(configs) == [models[0].calculate_pool_sizes(20 * GIB), models[1].calculate_pool_sizes(40 * GIB)]


def test_no_model_gets_less_than_its_minimum_or_than_one_request() -> None:
    models = [configurator_of(), configurator_of(LLAMA), configurator_of(LLAMA)]
    configs = split_device(10 * GIB, models, weights=(0, 1, 3), minimums=(0, 4 * GIB, 0))
    least = models[0].required_bytes
    assert [config.available_bytes for config in configs] == [least, 4 * GIB, 6 * GIB - least]


def test_too_little_for_all_models_says_what_each_needs() -> None:
    models = [configurator_of(), configurator_of(LLAMA)]
    with pytest.raises(InsufficientMemoryError, match="openai/gpt-oss-120b") as caught:
        split_device(GIB, models, minimums=(GIB, GIB))
    assert (caught.value.available_bytes, caught.value.required_bytes) == (GIB, 2 * GIB)


@given(
    served=st.lists(st.tuples(cases(), st.integers(0, 2**40), st.integers(0, 2**40)), min_size=1, max_size=4),
    budget=st.integers(0, 2**62),
    more=st.integers(0, 2**62),
)
def test_shares_of_a_device_obey_the_laws(served: list[tuple[Case, int, int]], budget: int, more: int) -> None:
    """Fits, maximal (all of it is given out), monotone, and never below what a model needs."""
    try:
        models = [case.configurator() for case, _, _ in served]
        weights = [weight for _, weight, _ in served]
        minimums = [minimum for _, _, minimum in served]
        configs = split_device(budget, models, weights, minimums)
    except InsufficientMemoryError as error:
        assert error.required_bytes > budget
        return
    except PoolPlanError:
        return
    shares = [config.available_bytes for config in configs]
    assert sum(shares) == budget or (not any(weights) and sum(shares) <= budget)
    for config, model, minimum in zip(configs, models, minimums, strict=True):
        assert config.available_bytes >= max(minimum, model.required_bytes)
    larger = split_device(budget + more, models, weights, minimums)
    assert all(small <= large.available_bytes for small, large in zip(shares, larger, strict=True))


@pytest.mark.parametrize(
    "options", [{"weights": [1]}, {"minimums": [1, 2, 3]}, {"weights": [1, -1]}, {"minimums": [0.5, 1]}]
)
def test_bad_shares_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError):
        split_device(60 * GIB, [configurator_of(), configurator_of(LLAMA)], **options)

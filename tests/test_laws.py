"""The three laws through the public API, for random models, options and budgets up to 2^63."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from poolplan import InsufficientMemoryError, MemoryPoolConfig, PoolPlanError
from strategies import BUDGETS, Case, cases

# With HYPOTHESIS_PROFILE=slow these run 100,000 examples each; `--hypothesis-show-statistics` says how many were plans.
pytestmark = pytest.mark.slow


def plan(case: Case, budget: int) -> MemoryPoolConfig | None:
    """The plan, or None where there is none. Any other error than ours fails the test."""
    try:
        config = case.configurator().calculate_pool_sizes(budget)
    except PoolPlanError as error:
        event(type(error).__name__)
        return None
    event("a plan")
    return config


@given(cases())
def test_a_plan_fits_the_budget_and_adds_up(case: Case) -> None:
    config = plan(case, case.budget)
    if config is None:
        return
    assert config.total_bytes == sum(pool.bytes for pool in config.pools) <= case.budget == config.available_bytes
    assert config.unused_bytes == case.budget - config.total_bytes
    for pool in config.pools:
        assert pool.bytes == (pool.slots + pool.padding_slots) * pool.cell_bytes
        assert pool.slots % pool.page_size == 0
    assert config.max_total_num_tokens % case.options.page_size == 0


@given(cases())
def test_one_more_page_of_the_anchor_does_not_fit(case: Case) -> None:
    config = plan(case, case.budget)
    if config is None:
        return
    more = config.max_total_num_tokens + case.options.page_size
    cap = case.options.max_total_tokens
    if cap is None or more <= cap:
        assert case.configurator().calculate_pool_sizes_from_max_tokens(more).available_bytes > case.budget


@given(cases(), BUDGETS)
def test_more_budget_never_gives_fewer_tokens(case: Case, more: int) -> None:
    config, larger = plan(case, case.budget), plan(case, min(case.budget + more, 2**63))
    if config is not None:
        assert larger is not None
        assert larger.max_total_num_tokens >= config.max_total_num_tokens
        assert larger.max_running_requests >= config.max_running_requests


@given(cases(), st.integers(1, 64))
def test_a_larger_cell_never_gives_more_tokens(case: Case, more: int) -> None:
    """One state more in the last layer, which adds to a pool that is there already."""
    last = case.layers[-1]
    if not last:
        return
    larger = dataclasses.replace(case, layers=(*case.layers[:-1], (*last, ("heads", 24, 32 * more, 32, last[0][-1]))))
    config, less = plan(case, case.budget), plan(larger, case.budget)
    if less is not None:
        assert config is not None
        assert less.max_total_num_tokens <= config.max_total_num_tokens


@given(cases())
def test_a_refusal_names_the_least_budget_that_works(case: Case) -> None:
    try:
        configurator = case.configurator()
    except PoolPlanError:
        return
    with pytest.raises(InsufficientMemoryError) as caught:
        configurator.calculate_pool_sizes(0)
    required = caught.value.required_bytes
    assert caught.value.missing_bytes == required > 0
    if required < 2**63:
        assert configurator.calculate_pool_sizes(required).total_bytes <= required
        with pytest.raises(InsufficientMemoryError):
            configurator.calculate_pool_sizes(required - 1)


@given(cases(), st.integers(1, 2**50))
def test_a_plan_from_tokens_is_the_plan_of_its_budget(case: Case, tokens: int) -> None:
    uncapped = dataclasses.replace(case, options=dataclasses.replace(case.options, max_total_tokens=None))
    try:
        configurator = uncapped.configurator()
        config = configurator.calculate_pool_sizes_from_max_tokens(tokens)
    except PoolPlanError:
        return
    assert 0 <= tokens - config.max_total_num_tokens < case.options.page_size
    assert config.total_bytes == config.available_bytes
    from_budget = configurator.calculate_pool_sizes(config.available_bytes)
    assert from_budget.max_total_num_tokens >= config.max_total_num_tokens

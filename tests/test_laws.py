"""The three laws through the public API, for random models, options and budgets up to 2^63."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from poolplan import InsufficientMemoryError, MemoryPoolConfig, PoolPlanError
from strategies import BUDGETS, Case, cases

# The pools of rows whose pages are padded in 8 bits.
PADDED = ("swa", "draft_swa", "c4", "c16", "c128")


def plan(case: Case, budget: int) -> MemoryPoolConfig | None:
    """The plan, or None where there is none. Any other error than ours fails the test."""
    try:
        config = case.configurator().calculate_pool_sizes(budget)
    except PoolPlanError as error:
        event(type(error).__name__)
        return None
    event("a plan")
    return config


# With HYPOTHESIS_PROFILE=slow 100,000 examples; `--hypothesis-show-statistics` says how many were plans.
@pytest.mark.slow
@given(case=cases(), more_budget=BUDGETS, more_cell=st.integers(1, 64))
def test_the_three_laws_hold(case: Case, more_budget: int, more_cell: int) -> None:
    config = plan(case, case.budget)
    if config is not None:
        check_fits(case, config)
        check_maximal(case, config)
    check_monotone_in_budget(case, config, min(case.budget + more_budget, 2**63))
    check_monotone_in_cell(case, config, more_cell)


def check_fits(case: Case, config: MemoryPoolConfig) -> None:
    """Law 1, and that the numbers of a plan add up."""
    assert config.total_bytes == sum(pool.bytes for pool in config.pools) <= case.budget == config.available_bytes
    assert config.unused_bytes == case.budget - config.total_bytes
    for pool in config.pools:
        slots = pool.slots + pool.padding_slots
        # Each page of compressed entries in 8 bits is padded to 576 bytes, in every buffer.
        states = [state for layer in (*case.layers, *case.drafts) for state in layer]
        buffers = sum(state[0] == "compressed" for state in states) if pool.name in PADDED else 0
        assert 0 <= pool.bytes - slots * pool.cell_bytes <= buffers * (slots // pool.page_size + 1) * 575
        assert pool.slots % pool.page_size == 0
    assert config.max_total_num_tokens % case.world().step == 0


def check_maximal(case: Case, config: MemoryPoolConfig) -> None:
    """Law 2: one more step of the anchor does not fit beside the state slots that there are."""
    world = case.world()
    more = config.max_total_num_tokens + world.step
    if more <= world.max_tokens:
        assert world.cost(more, state_slots(config)) > case.budget


def state_slots(config: MemoryPoolConfig) -> int:
    pool = config.pool("mamba")
    return 2**63 - 1 if pool is None else pool.slots


def check_monotone_in_budget(case: Case, config: MemoryPoolConfig | None, larger_budget: int) -> None:
    """Law 3: more budget never gives fewer tokens; fewer state slots never, and with as many never fewer tokens."""
    larger = plan(case, larger_budget)
    if config is None:
        return
    assert larger is not None
    assert state_slots(larger) >= state_slots(config)
    if state_slots(larger) == state_slots(config) or not case.world().has_share:
        assert larger.max_total_num_tokens >= config.max_total_num_tokens
        assert larger.max_running_requests >= config.max_running_requests


def check_monotone_in_cell(case: Case, config: MemoryPoolConfig | None, more: int) -> None:
    """Law 3: a larger cell never gives more tokens, beside as many state slots. One state more adds to a pool that is there."""
    last = case.layers[-1]
    if last and last[0][-1][0] != "request":
        extra = ("heads", 24, 32 * more, 32, last[0][-1])
        less = plan(dataclasses.replace(case, layers=(*case.layers[:-1], (*last, extra))), case.budget)
        if less is None:
            return
        assert config is not None
        assert state_slots(less) <= state_slots(config)
        # Beside fewer states fewer requests are served, and what each of them held goes to tokens.
        if state_slots(less) == state_slots(config) or not case.world().has_share:
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
    world = uncapped.world()
    assert 0 <= tokens - config.max_total_num_tokens < world.step
    assert config.total_bytes == config.available_bytes or (
        world.has_share and config.total_bytes < config.available_bytes
    )
    from_budget = configurator.calculate_pool_sizes(config.available_bytes)
    # Where nothing grows with tokens, no budget gives more than the requests that are asked for.
    assert from_budget.max_total_num_tokens >= min(
        config.max_total_num_tokens, world.max_tokens // world.step * world.step
    )

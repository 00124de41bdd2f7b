"""The public API against the plain-Python reference: every number of every pool, or the same refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolplan import InsufficientMemoryError, InvalidOptionError, UnsupportedModelError
from reference import Answer, ClosedForm, Refusal, World, plan_by_scan
from strategies import Case, answer_of, cases, small_cases

Outcome = Answer | tuple[str, object]


def ours(case: Case) -> Outcome:
    try:
        return answer_of(case.configurator().calculate_pool_sizes(case.budget))
    except InsufficientMemoryError as error:
        return "required_bytes", error.required_bytes
    except InvalidOptionError as error:
        return "option", error.option
    except UnsupportedModelError:
        return "option", "model"


def refused(refusal: Refusal) -> Outcome:
    if refusal.option is None:
        return "required_bytes", refusal.required_bytes
    return "option", refusal.option


def by_closed_form(case: Case) -> Outcome:
    try:
        return ClosedForm(World(case.layers, case.options)).plan(case.budget)
    except Refusal as refusal:
        return refused(refusal)


def by_scan(case: Case) -> Outcome:
    try:
        return plan_by_scan(World(case.layers, case.options), case.budget)
    except Refusal as refusal:
        return refused(refusal)


# With HYPOTHESIS_PROFILE=slow 100,000 examples.
@pytest.mark.slow
@given(cases())
def test_a_plan_of_any_size_equals_the_closed_form(case: Case) -> None:
    assert ours(case) == by_closed_form(case)


@given(small_cases())
def test_a_small_plan_equals_the_scan(case: Case) -> None:
    assert ours(case) == by_scan(case)


@given(cases(), st.integers(0, 2**36))
def test_a_plan_from_tokens_equals_the_closed_form(case: Case, tokens: int) -> None:
    try:
        planner = ClosedForm(World(case.layers, case.options))
    except Refusal as refusal:
        with pytest.raises((InvalidOptionError, UnsupportedModelError)) as caught:
            case.configurator().calculate_pool_sizes_from_max_tokens(tokens)
        assert getattr(caught.value, "option", "model") == refusal.option
        return
    configurator = case.configurator()
    for pages in (planner.least_pages, tokens // planner.page):
        try:
            expected = planner.plan_from_max_tokens(pages * planner.page)
        except Refusal:
            continue
        assert answer_of(configurator.calculate_pool_sizes_from_max_tokens(expected.tokens)) == expected
    with pytest.raises(InvalidOptionError, match="max_total_num_tokens"):
        configurator.calculate_pool_sizes_from_max_tokens((planner.least_pages - 1) * planner.page)


@given(small_cases())
def test_the_reference_agrees_with_itself(case: Case) -> None:
    assert by_closed_form(case) == by_scan(case)

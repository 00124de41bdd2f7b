"""The public API against the plain-Python reference: every number of every pool, or the same refusal."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolplan import InsufficientMemoryError, InvalidOptionError, UnsupportedModelError
from reference import Answer, ClosedForm, Options, Refusal, plan_by_scan
from strategies import Case, Layers, answer_of, cases, small_cases

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
        return ClosedForm(case.world()).plan(case.budget)
    except Refusal as refusal:
        return refused(refusal)


def by_scan(case: Case) -> Outcome:
    try:
        return plan_by_scan(case.world(), case.budget)
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


@pytest.mark.parametrize("role", ["null", "prefill", "decode"])
@pytest.mark.parametrize("disable_overlap_schedule", [False, True])
@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("page_size", [1, 4])
def test_every_kind_of_request_cap_equals_the_scan(
    role: Literal["null", "prefill", "decode"], disable_overlap_schedule: bool, chunk: int | None, page_size: int
) -> None:
    layers: Layers = ((("heads", 1, 2, 2, ("full", None)),), (("heads", 1, 2, 2, ("window", 6)),))
    for requests in (1, 5):
        options = Options(
            page_size=page_size,
            context_length=8,
            max_running_requests=requests,
            chunked_prefill_size=chunk,
            eviction_interval=4,
            disaggregation_mode=role,
            disable_radix_cache=True,
            disable_overlap_schedule=disable_overlap_schedule,
        )
        for budget in (300, 1000, 2500, 5000):
            case = Case(layers, options, budget)
            assert ours(case) == by_closed_form(case) == by_scan(case)


@given(cases(), st.integers(0, 2**36))
def test_a_plan_from_tokens_equals_the_closed_form(case: Case, tokens: int) -> None:
    try:
        planner = ClosedForm(case.world())
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

"""`split_budget` through Python: facts, laws and bad input. Its proofs in Rust are in `rust/core/tests`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolplan import InvalidOptionError, split_budget


@pytest.mark.parametrize(
    ("total", "weights", "granularity", "parts"),
    [
        pytest.param(100, [75, 25], None, [75, 25], id="SGLang's own test: device bytes 75:25"),
        pytest.param(100, [55, 15 + 10, 20], None, [55, 25, 20], id="SGLang's own test: a (k, v) pair counts its sum"),
        pytest.param(10, [47000, 16000, 15800, 12000, 6100, 3100], None, [5, 2, 1, 1, 1, 0], id="Hare quota, textbook"),
        pytest.param(20 * 10**9, [1, 0], 1, [20 * 10**9, 0], id="sgl-project/sglang#29034: one total, not one each"),
        pytest.param(100, [], None, [], id="no parts"),
        pytest.param(100, [0, 0], None, [0, 0], id="no weight"),
        pytest.param(0, [1, 2], None, [0, 0], id="nothing to divide"),
        pytest.param(99, [1, 1], 100, [0, 0], id="less than a granule"),
        pytest.param(100, [3, 1], [64, 1], [64, 36], id="each part its own granularity"),
    ],
)
def test_a_budget_is_split(total: int, weights: list[int], granularity: Any, parts: list[int]) -> None:
    assert split_budget(total, weights, granularity) == parts


@given(
    total=st.integers(0, 2**64 - 1),
    parts=st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 2**40)), max_size=8),
)
def test_parts_are_granules_below_the_total_that_leave_less_than_a_granule(
    total: int, parts: list[tuple[int, int]]
) -> None:
    weights, granularities = [weight for weight, _ in parts], [granularity for _, granularity in parts]
    shares = split_budget(total, weights, granularities)
    assert sum(shares) <= total
    assert all(share % granularity == 0 for share, granularity in zip(shares, granularities, strict=True))
    assert all(share == 0 for share, weight in zip(shares, weights, strict=True) if weight == 0)
    granules = [granularity for weight, granularity in parts if weight]
    assert not granules or total - sum(shares) < min(granules)


@given(total=st.integers(0, 2**64 - 1), weights=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=8))
def test_a_part_is_within_one_byte_of_its_proportion(total: int, weights: list[int]) -> None:
    for share, weight in zip(split_budget(total, weights), weights, strict=True):
        assert sum(weights) == 0 or abs(share * sum(weights) - total * weight) < sum(weights)


@pytest.mark.parametrize(
    "arguments",
    [
        (-1, [1]),
        (1.5, [1]),
        (2**64, [1]),
        (1, [-1]),
        (1, [True]),
        (1, [0.5]),
        (1, [1], 0),
        (1, [1], [1, 2]),
        (1, [1], 1.5),
    ],
    ids=repr,
)
def test_bad_input_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidOptionError):
        split_budget(*arguments)

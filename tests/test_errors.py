"""The errors: what they carry, and that they travel between processes."""

from __future__ import annotations

import pickle

import pytest

from poolplan import (
    InsufficientMemoryError,
    InvalidOptionError,
    MemoryQueryError,
    PoolPlanError,
    RankError,
    UnsupportedModelError,
)

ERRORS = [
    InsufficientMemoryError("too little", 10, 30, [("tp_size", "2")]),
    InvalidOptionError("page_size", 0, "pass 1 or more"),
    UnsupportedModelError("unknown model", "model_type"),
    MemoryQueryError("/proc/meminfo has no MemAvailable"),
    RankError(3, "too little"),
    RankError(None, "the ranks disagree"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: PoolPlanError) -> None:
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is type(error)
    assert vars(twin) == vars(error)
    assert str(twin) == str(error)


def test_errors_are_also_what_callers_already_catch() -> None:
    assert issubclass(InsufficientMemoryError, RuntimeError)
    assert issubclass(InvalidOptionError, ValueError)
    assert issubclass(UnsupportedModelError, ValueError)
    assert issubclass(MemoryQueryError, RuntimeError)
    assert issubclass(RankError, RuntimeError)


def test_too_little_memory_says_how_much_is_missing_and_what_would_help() -> None:
    error = ERRORS[0]
    assert isinstance(error, InsufficientMemoryError)
    assert (error.missing_bytes, error.alternatives) == (20, {"tp_size": "2"})


def test_an_option_is_shown_with_its_value_and_what_is_allowed() -> None:
    assert str(ERRORS[1]) == "page_size=0 is not valid: pass 1 or more"


def test_the_rank_that_failed_is_named() -> None:
    assert str(RankError(3, "too little")) == "rank 3 could not plan: too little"
    assert str(RankError(None, "the ranks disagree")) == "the ranks disagree"

"""The errors of poolplan, each with its data; the sentence is made from it.

The Rust side raises these same classes; what can go wrong there is in `rust/core/src/error.rs`.
"""

from __future__ import annotations

from collections.abc import Iterable


class PoolPlanError(Exception):
    """The base of every error of poolplan."""


class InsufficientMemoryError(PoolPlanError, RuntimeError):
    """The budget does not hold the least plan with which the runtime can serve one request.

    Attributes:
        available_bytes: The budget.
        required_bytes: The least budget that works with all other options as they are.
        missing_bytes: The difference.
        alternatives: For each other option that would help alone, the nearest value with which this budget works.
    """

    def __init__(
        self, message: str, available_bytes: int, required_bytes: int, alternatives: Iterable[tuple[str, str]] = ()
    ) -> None:
        alternatives = tuple(alternatives)
        super().__init__(message, available_bytes, required_bytes, alternatives)
        self.available_bytes = available_bytes
        self.required_bytes = required_bytes
        self.missing_bytes = required_bytes - available_bytes
        self.alternatives = dict(alternatives)

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidOptionError(PoolPlanError, ValueError):
    """An option has a value that it may not have.

    Attributes:
        option: The option's name.
        value: The value, as text.
        allowed: What to pass instead.
    """

    def __init__(self, option: str, value: object, allowed: str) -> None:
        super().__init__(option, value, allowed)
        self.option = option
        self.value = value
        self.allowed = allowed

    def __str__(self) -> str:
        return f"{self.option}={self.value} is not valid: {self.allowed}"


class UnsupportedModelError(PoolPlanError, ValueError):
    """The model cannot be read, or keeps something that no pool here holds.

    Attributes:
        message: What is wrong, and what would be right.
        key: The key of `config.json`, or the `model_type`, that is not known; None where no single one is to blame.
    """

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message, key)
        self.message = message
        self.key = key

    def __str__(self) -> str:
        return self.message


class MemoryQueryError(PoolPlanError, RuntimeError):
    """The machine does not say how much memory it has: no torch, no device, or files that cannot be read.

    The message says what to install or to pass instead.
    """


class RankError(PoolPlanError, RuntimeError):
    """A rank of a distributed job could not plan, so that no rank has a plan.

    Attributes:
        rank: The rank that failed, in the group; None where the ranks disagree and no single one is to blame.
        reason: Why.
    """

    def __init__(self, rank: int | None, reason: str) -> None:
        super().__init__(rank, reason)
        self.rank = rank
        self.reason = reason

    def __str__(self) -> str:
        return self.reason if self.rank is None else f"rank {self.rank} could not plan: {self.reason}"


class UnknownModelWarning(UserWarning):
    """A `model_type` that is not known was planned as a plain decoder, since nothing in its keys says otherwise."""

"""Several models on one device: the budget divided exactly between them, and each planned."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, SupportsIndex

from poolplan._core import split_above_minimums
from poolplan.errors import InsufficientMemoryError, InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolplan._core import MemoryPoolConfig, MemoryPoolConfigurator


def split_device(
    available_bytes: SupportsIndex,
    configurators: Sequence[MemoryPoolConfigurator],
    weights: Sequence[SupportsIndex] | None = None,
    minimums: Sequence[SupportsIndex] | None = None,
) -> tuple[MemoryPoolConfig, ...]:
    """Return the plan of each model, of its share of a device's memory: its `available_bytes`.

    The shares add up to the whole budget and are in proportion to the weights, but none is below what one request of
    its model needs. A larger budget gives no model less.

        >>> from poolplan import ModelSpec, RuntimeSpec, create_memory_pool_configurator
        >>> names = ("openai/gpt-oss-120b", "Qwen/Qwen3-8B")
        >>> models = [create_memory_pool_configurator(ModelSpec.from_pretrained(name), RuntimeSpec()) for name in names]
        >>> [config.available_bytes >> 30 for config in split_device(60 << 30, models, weights=(1, 2))]
        [20, 40]

    Args:
        available_bytes: The budget of all pools of all models, once their weights are loaded.
        configurators: The models, each with its runtime.
        weights: Each model's claim on the budget; equal claims where it is not given. One of weight 0 gets its minimum.
        minimums: Bytes that each model must get, such as the `total_bytes` of the least plan that it should have.

    Raises:
        InsufficientMemoryError: The minimums together, or the `required_bytes` of the models, are not there.
        InvalidOptionError: A number that is not whole or out of range; not one weight or minimum for each model.
    """
    weights = [1] * len(configurators) if weights is None else weights
    minimums = [0] * len(configurators) if minimums is None else minimums
    for option, numbers in (("weights", weights), ("minimums", minimums)):
        if len(numbers) != len(configurators):
            raise InvalidOptionError(option, len(numbers), f"pass one for each of the {len(configurators)} models")
    required = [configurator.required_bytes for configurator in configurators]
    least = [max(*both) for both in zip(map(_whole, minimums), required, strict=True)]
    try:
        shares = split_above_minimums(available_bytes, weights, least)
    except InsufficientMemoryError as error:
        needs = ", ".join(
            f"{configurator.model.name} {bytes_}" for configurator, bytes_ in zip(configurators, least, strict=True)
        )
        raise InsufficientMemoryError(
            f"the models on the device need {error.required_bytes} bytes, "
            f"{error.required_bytes - error.available_bytes} more than there are: {needs}",
            error.available_bytes,
            error.required_bytes,
        ) from None
    plans = zip(configurators, shares, strict=True)
    return tuple(configurator.calculate_pool_sizes(share) for configurator, share in plans)


def _whole(minimum: SupportsIndex) -> int:
    try:
        return operator.index(minimum)
    except TypeError:
        raise InvalidOptionError("minimums", repr(minimum), "pass whole numbers of bytes") from None

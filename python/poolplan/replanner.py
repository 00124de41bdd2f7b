"""Planning again while a model is served: what changes, when to grow, and when not to shrink."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, SupportsIndex

from poolplan._core import parse_ratio
from poolplan.errors import InsufficientMemoryError, InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolplan._core import MemoryPoolConfig, MemoryPoolConfigurator

_MAX_BYTES = 2**64 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolChange:
    """One pool whose size changes.

    Attributes:
        name: The pool's name.
        slots_before: Slots that it has.
        slots: Slots that it is to have.
        bytes_before: Bytes that it takes.
        bytes: Bytes that it is to take.
    """

    name: str
    slots_before: int
    slots: int
    bytes_before: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Replan:
    """What to do about a new budget.

    Attributes:
        config: The plan to serve with. Where it could grow and does not, its budget is that which it was planned for.
        changes: The pools whose size changes, those that shrink first, so that there is room when the others grow.
            Empty where the plan stays as it is.
    """

    config: MemoryPoolConfig
    changes: tuple[PoolChange, ...]


class Replanner:
    """A configurator and the plan that is served with, planned again whenever the memory changes.

    A plan shrinks as soon as it must, and grows only where that is worth the interruption: where a pool gains
    `min_growth` of its slots. So it never grows while budgets stay within a band of plans that differ by less, and does
    not flap. It decides by the budgets and by what is in use: ranks that agree on the one (`poolplan.agree`) and have
    the other in common decide alike.

        >>> from poolplan import ModelSpec, RuntimeSpec, create_memory_pool_configurator
        >>> model = ModelSpec.from_pretrained("openai/gpt-oss-120b")
        >>> configurator = create_memory_pool_configurator(model, RuntimeSpec(tp_size=8, page_size=64))
        >>> replanner = Replanner(configurator, configurator.calculate_pool_sizes(60 << 30))
        >>> lora_loaded = replanner.replan(58 << 30, in_use={"full": 1_000_000})
        >>> [(change.name, change.slots < change.slots_before) for change in lora_loaded.changes]
        [('full', True), ('swa', True)]
        >>> replanner.replan(59 << 30).changes
        ()

    Not for several threads at once.

    Args:
        configurator: What plans.
        config: The current plan.
        min_growth: The part of a pool's slots by which it must grow; 0 for every growth.

    Raises:
        InvalidOptionError: A plan of another configurator, or a `min_growth` below 0.
    """

    def __init__(
        self,
        configurator: MemoryPoolConfigurator,
        config: MemoryPoolConfig,
        *,
        min_growth: Fraction | float | str = Fraction(1, 20),
    ) -> None:
        if _shape(config) != _shape(configurator.calculate_pool_sizes(configurator.required_bytes)):
            made = "pass a plan that the configurator made, with its page size"
            raise InvalidOptionError("config", f"a plan of {len(config.pools)} pools", made)
        self._configurator = configurator
        self._config = config
        self._min_growth = Fraction(0) if min_growth == 0 else parse_ratio(min_growth)

    @property
    def configurator(self) -> MemoryPoolConfigurator:
        """What plans."""
        return self._configurator

    @property
    def config(self) -> MemoryPoolConfig:
        """The current plan."""
        return self._config

    @property
    def min_growth(self) -> Fraction:
        """The part of a pool's slots by which it must grow."""
        return self._min_growth

    def replan(self, available_bytes: SupportsIndex, in_use: Mapping[str, SupportsIndex] | None = None) -> Replan:
        """Return the plan for a new budget, which is the current plan from then on, and what it changes.

        Args:
            available_bytes: The budget of all pools together, those of the current plan included.
            in_use: Slots that cannot be given up, by the pool's name: of running requests and of locked prefixes.

        Raises:
            InsufficientMemoryError: Less than one request needs, or than what is in use takes, with a budget that
                holds it. The current plan stays.
            InvalidOptionError: A number that is not whole or out of range, more in use than a pool has, no such pool.
        """
        used = self._check_use(in_use or {})
        try:
            config = self._configurator.calculate_pool_sizes(available_bytes)
        except InsufficientMemoryError as error:
            required = self._bytes_for(error.required_bytes - 1, used)
            if required == error.required_bytes:
                raise
            raise _cannot_shrink(error.available_bytes, required, "more is in use than one request needs") from error
        changes = _changes(self._config, config)
        below = [pool for pool in config.pools if pool.slots < used.get(pool.name, 0)]
        if changes and max(self._configurator.stage_bytes(self._config)) <= config.available_bytes:
            # The current plan fits. Beside more recurrent states the new one may have fewer tokens.
            if below or not any(self._is_worth_it(change) for change in changes):
                return Replan(config=self._config, changes=())
        elif below:
            pools = "; ".join(f"{pool.name} has {used[pool.name]} slots in use, not {pool.slots}" for pool in below)
            required = self._bytes_for(config.available_bytes, used)
            raise _cannot_shrink(config.available_bytes, required, pools)
        self._config = config
        return Replan(config=config, changes=changes)

    def _check_use(self, in_use: Mapping[str, SupportsIndex]) -> dict[str, int]:
        slots = {pool.name: pool.slots for pool in self._config.pools}
        used: dict[str, int] = {}
        for name, value in in_use.items():
            if name not in slots:
                raise InvalidOptionError("in_use", repr(name), f"pass the slots of {', '.join(slots)}")
            try:
                used[name] = operator.index(value)
            except TypeError:
                used[name] = -1
            if not 0 <= used[name] <= slots[name]:
                raise InvalidOptionError("in_use", f"{name}: {value!r}", f"{name} has {slots[name]} slots")
        return used

    def _bytes_for(self, too_few: int, used: Mapping[str, int]) -> int:
        """A budget whose plan has the slots in use, and which with one byte less has not."""

        def holds(available_bytes: int) -> bool:
            config = self._configurator.calculate_pool_sizes(available_bytes)
            return all(pool.slots >= used.get(pool.name, 0) for pool in config.pools)

        enough = _MAX_BYTES
        if not holds(enough):
            raise InvalidOptionError("in_use", repr(dict(used)), "the options allow fewer slots at any budget")
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            too_few, enough = (too_few, middle) if holds(middle) else (middle, enough)
        return enough

    def _is_worth_it(self, change: PoolChange) -> bool:
        return change.slots - change.slots_before >= self._min_growth * change.slots_before


def _cannot_shrink(available_bytes: int, required_bytes: int, reason: str) -> InsufficientMemoryError:
    message = f"the pools cannot shrink to {available_bytes} bytes, but to {required_bytes}: {reason}"
    return InsufficientMemoryError(message, available_bytes, required_bytes)


def _shape(config: MemoryPoolConfig) -> list[tuple[str, int]]:
    return [(pool.name, pool.page_size) for pool in config.pools]


def _changes(before: MemoryPoolConfig, after: MemoryPoolConfig) -> tuple[PoolChange, ...]:
    changes = [
        PoolChange(name=new.name, slots_before=old.slots, slots=new.slots, bytes_before=old.bytes, bytes=new.bytes)
        for old, new in zip(before.pools, after.pools, strict=True)
        if old.slots != new.slots
    ]
    return tuple(sorted(changes, key=lambda change: change.slots > change.slots_before))

"""The host tier (HiCache): the pools that a cached prefix needs, once more in host memory.

What the device holds is planned by the other configurators; how much host memory there is says `poolplan.memory`.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from poolplan._core import host_pools, split_budget
from poolplan.errors import InsufficientMemoryError, InvalidOptionError

if TYPE_CHECKING:
    from poolplan._core import MemoryPoolConfig, MemoryPoolConfigurator, PoolSize

# SGLang 0.5.23, `--hicache-ratio`.
_DEFAULT_RATIO = Fraction(2)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostPoolConfig:
    """The host pools of one rank: what to allocate, and what that leaves.

    Attributes:
        hicache_ratio: Host slots for each device slot, of every pool that has no bytes of its own.
        available_bytes: What the host pools may take together.
        total_bytes: What they take, on the pipeline stage where that is most.
        pools: Every pool, on the stage of the device's config. None has padding: a host slot is always handed out.
    """

    hicache_ratio: Fraction
    available_bytes: int
    total_bytes: int
    pools: tuple[PoolSize, ...]

    @property
    def unused_bytes(self) -> int:
        """Bytes of `available_bytes` that no pool takes."""
        return self.available_bytes - self.total_bytes

    def pool(self, name: str) -> PoolSize | None:
        """Return the pool of that name, or None."""
        return next((pool for pool in self.pools if pool.name == name), None)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values, `unused_bytes` and the pools included."""
        return {
            "hicache_ratio": str(self.hicache_ratio),
            "available_bytes": self.available_bytes,
            "total_bytes": self.total_bytes,
            "unused_bytes": self.unused_bytes,
            "pools": [pool.as_dict() for pool in self.pools],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class HostPoolConfigurator:
    """Sizes the host pools of a plan in proportion to the device's: `full`, `swa`, `mamba`, compressed entries, drafts.

    Each has `floor(device slots · ratio)` slots in whole pages, index keys and scales included, so a draft has the
    slots of the pool that it shadows. With a size, the ratio is the largest, in steps of one token of the device, at
    which all of them together fit it: one total is never taken twice and never exceeded. More size never gives any
    pool fewer slots.

        >>> from poolplan import ModelSpec, RuntimeSpec, create_memory_pool_configurator
        >>> model = ModelSpec.from_pretrained("openai/gpt-oss-120b")
        >>> configurator = create_memory_pool_configurator(model, RuntimeSpec(tp_size=8, page_size=64))
        >>> config = configurator.calculate_pool_sizes(60 << 30)
        >>> host = HostPoolConfigurator(configurator=configurator, config=config, hicache_size=100 * 10**9)
        >>> sum(pool.bytes for pool in host.calculate_pool_sizes(200 << 30).pools) <= 100 * 10**9
        True

    Attributes:
        configurator: What planned `config`.
        config: The pools on the device.
        hicache_size: Bytes of all host pools of a rank together (SGLang's `--hicache-size` counts 10^9 bytes).
        hicache_ratio: Host slots for each device slot; exact, so 0.8 is 4/5. With neither: 2, or what fits.
        pool_bytes: Bytes of single pools, drafts included: `{"mamba": 10**10}`. They are a part of the size.
        granularity: Bytes to whose multiple each buffer is rounded up: of a huge page, where pools lie in these.

    Raises:
        InvalidOptionError: Both a size and a ratio.
    """

    configurator: MemoryPoolConfigurator
    config: MemoryPoolConfig
    hicache_size: SupportsIndex | None = None
    hicache_ratio: Fraction | float | str | None = None
    pool_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    granularity: SupportsIndex = 1

    def __post_init__(self) -> None:
        """Check that there is one rule."""
        if self.hicache_size is not None and self.hicache_ratio is not None:
            raise InvalidOptionError("hicache_ratio", self.hicache_ratio, "pass it or hicache_size, not both")

    def calculate_pool_sizes(self, available_bytes: SupportsIndex) -> HostPoolConfig:
        """Return the host pools of one rank that may take `available_bytes`, such as `HostMemory` says.

        Raises:
            InsufficientMemoryError: What is asked for is not there; or less than a cached prefix needs of every pool.
            InvalidOptionError: A number that is not whole or out of range, or a pool that is not on the host.
            UnsupportedModelError: No pool holds what a cached prefix needs.
        """
        if self.hicache_size is not None:
            sized = self._sized(available_bytes, hicache_size=self.hicache_size)
            self._check_room(available_bytes, operator.index(self.hicache_size), "hicache_size")
            return sized
        if self.hicache_ratio is not None:
            sized = self._sized(available_bytes, hicache_ratio=self.hicache_ratio)
            self._check_room(available_bytes, sized.total_bytes, "hicache_ratio")
            return sized
        largest = self._sized(available_bytes, hicache_size=available_bytes)
        if largest.hicache_ratio <= _DEFAULT_RATIO:
            return largest
        return self._sized(available_bytes, hicache_ratio=_DEFAULT_RATIO)

    def _sized(self, available_bytes: SupportsIndex, **rule: Any) -> HostPoolConfig:
        ratio, total_bytes, pools = host_pools(
            self.configurator,
            self.config,
            **rule,
            pool_bytes=dict(self.pool_bytes),
            granularity=self.granularity,
        )
        budget = rule.get("hicache_size", available_bytes)
        return HostPoolConfig(
            hicache_ratio=ratio, available_bytes=operator.index(budget), total_bytes=total_bytes, pools=pools
        )

    def _check_room(self, available_bytes: SupportsIndex, required_bytes: int, option: str) -> None:
        """Refuse before anything is allocated."""
        available = operator.index(available_bytes)
        if required_bytes <= available:
            return
        largest = self._sized(available, hicache_size=available)
        value = available if option == "hicache_size" else _decimal_below(largest.hicache_ratio)
        raise InsufficientMemoryError(
            f"{option} asks for {required_bytes} bytes of host memory, {required_bytes - available} more than the "
            f"{available} that one rank may take; or pass {option}={value}",
            available,
            required_bytes,
            [(option, str(value))],
        )


def _decimal_below(ratio: Fraction) -> Fraction | str:
    """The ratio in thousandths, rounded down, as people type it; exact where that is zero."""
    thousandths = ratio.numerator * 1000 // ratio.denominator
    return f"{thousandths // 1000}.{thousandths % 1000:03d}" if thousandths else ratio


def split_hicache_size(
    hicache_size: int,
    device_bytes: Mapping[str, int | tuple[int, ...]],
    granularity: int | Mapping[str, int] = 1,
) -> dict[str, int]:
    """Return the bytes of each host pool, from one total and the bytes of the device pools.

    For runtimes that size their host pools themselves; `HostPoolConfigurator` also keeps drafts in step. A device pool
    may come as one number or as its parts, such as the bytes of keys and of values.

        >>> split_hicache_size(100, {"full": 75, "swa": (15, 10)})
        {'full': 75, 'swa': 25}

    Args:
        hicache_size: Bytes of all host pools together.
        device_bytes: Bytes of each device pool.
        granularity: Bytes of a page of each pool, or of all.

    Raises:
        InvalidOptionError: A number that is not whole or out of range.
    """
    weights = [sum(part) if isinstance(part, tuple) else part for part in device_bytes.values()]
    pages = [granularity[name] for name in device_bytes] if isinstance(granularity, Mapping) else granularity
    return dict(zip(device_bytes, split_budget(hicache_size, weights, cast("Any", pages)), strict=True))

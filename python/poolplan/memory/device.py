"""How much memory a device has left, for the pools of a runtime: what its driver and PyTorch's allocator say.

How PyTorch is asked is in `pytorch.py`, the host's memory in `host.py`; what the pools then hold is the planner's part.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING, Any, cast

from poolplan._core import parse_ratio
from poolplan.errors import InsufficientMemoryError, InvalidOptionError
from poolplan.memory.pytorch import read_device

if TYPE_CHECKING:
    import torch

_RULES = "pass either mem_fraction_static and before_load, or gpu_memory_utilization and non_kv_bytes"
_STEPS = 1000  # fractions are advised with three decimals, as operators write them and as SGLang does


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceMemory:
    """What a device's memory holds at one moment, as one process sees it. Bytes throughout; nothing is rounded.

    Never take the difference of two readings of a shared device for what one process uses: the others are in it too
    (vllm-project/vllm#55828). What the pools may take follows from one reading and a rule:

        >>> device = DeviceMemory(device="cuda:0", backend="cuda", total_bytes=80 << 30, free_bytes=63 << 30)
        >>> device.available_bytes(mem_fraction_static=0.88, before_load=75 << 30) >> 30
        54
        >>> device.available_bytes(gpu_memory_utilization="3/4", non_kv_bytes=20 << 30) >> 30
        40

    Attributes:
        device: Its name in PyTorch, with an index.
        backend: `cuda`, `rocm`, `xpu`, `mps`, or PyTorch's name of another accelerator.
        total_bytes: The device's memory, of a MIG slice the slice's; of `mps` what Metal recommends to use at most.
        free_bytes: What the driver says is free, for all processes.
        host_available_bytes: What the host has available, where the device shares its memory; else None.
        reserved_bytes: What this process's caching allocator has from the driver.
        allocated_bytes: What of that is in tensors, or waits for a stream that still uses it.
        inactive_split_bytes: What of that is free and still cannot go back to the driver: beside a tensor in the same
            segment, or in the pool of a graph.
        process_fraction: The part of the total that the allocator may reserve (`set_per_process_memory_fraction`),
            kept as an exact fraction; None where it is not known, as if there was no limit.
        expandable_segments: Whether segments can grow, for `RuntimeSpec.allocator`; None where no setting says so.

    Raises:
        InvalidOptionError: A number that is not whole, or below 0; more free than in all; a fraction not in 0..1.
    """

    device: str
    backend: str
    total_bytes: int
    free_bytes: int
    host_available_bytes: int | None = None
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    inactive_split_bytes: int = 0
    process_fraction: Fraction | None = None
    expandable_segments: bool | None = None

    def __post_init__(self) -> None:
        """Check the numbers, and store the exact fraction."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_bytes") and not (value is None and field.default is None):
                _check_whole(field.name, value)
        if self.free_bytes > self.total_bytes:
            raise InvalidOptionError("free_bytes", self.free_bytes, f"pass at most total_bytes={self.total_bytes}")
        if self.process_fraction is not None:
            fraction = _parse_fraction("process_fraction", self.process_fraction, may_be_zero=True)
            object.__setattr__(self, "process_fraction", fraction)

    @classmethod
    def query(cls, device: str | int | torch.device | None = None) -> DeviceMemory:
        """Return what `device` has; by default PyTorch's current device.

        This starts PyTorch's runtime on that device, if it has not started, since no driver answers without; it
        neither allocates nor empties a cache. Drop what is no longer used first (`gc.collect()`): memory that a loader
        still refers to is not free (sgl-project/sglang#36583).

        Raises:
            MemoryQueryError: No PyTorch, no such device, or a backend that does not say.
            InvalidOptionError: Not the name of a device.
        """
        return cls(**read_device(device))

    @property
    def is_integrated(self) -> bool:
        """Whether the device shares the host's memory."""
        return self.host_available_bytes is not None

    @property
    def releasable_bytes(self) -> int:
        """What `empty_cache` surely gives back to the driver: the segments in which nothing is.

        Of expandable segments it can give back more, as it unmaps free pages beside tensors too. How many is not said,
        and none of them are counted.
        """
        return max(0, self.reserved_bytes - self.allocated_bytes - self.inactive_split_bytes)

    @property
    def headroom_bytes(self) -> int:
        """What this process can allocate in all once its cache is empty: the least of what `source` tells apart."""
        return max(0, min(self._bounds())[0])

    @property
    def source(self) -> str:
        """Which number binds, in one line."""
        return f"{self.device} ({self.backend}), {min(self._bounds())[1]}"

    def _bounds(self) -> list[tuple[int, str]]:
        """Each number that bounds what can be allocated, with the words for it."""
        kept_bytes = self.reserved_bytes - self.releasable_bytes
        cached = f"{self.releasable_bytes:,} in its cache"
        bounds: list[tuple[int, str]] = []
        if self.host_available_bytes is None:
            driver = f"driver: {self.free_bytes:,} bytes free of {self.total_bytes:,}, and {cached}"
            bounds.append((self.free_bytes + self.releasable_bytes, driver))
        else:
            # The driver leaves out page cache that the system would drop (vllm-project/vllm#48140). So SGLang 0.5.23
            # (`get_available_gpu_memory`) and vLLM 0.33.0 (`MemorySnapshot.measure`) ask the system instead.
            host = f"host: {self.host_available_bytes:,} bytes available, and {cached}"
            bounds.append((self.host_available_bytes + self.releasable_bytes, host))
            taken = f"device: {kept_bytes:,} bytes taken of {self.total_bytes:,}"
            bounds.append((self.total_bytes - kept_bytes, taken))
        if self.process_fraction is not None:
            limit_bytes = floor(self.process_fraction * self.total_bytes)
            limit = f"limit of the process: {kept_bytes:,} bytes taken of {limit_bytes:,}"
            bounds.append((limit_bytes - kept_bytes, f"{limit} ({self.process_fraction} of {self.total_bytes:,})"))
        return bounds

    def available_bytes(
        self,
        *,
        mem_fraction_static: Fraction | Decimal | float | str | None = None,
        before_load: DeviceMemory | int | None = None,
        gpu_memory_utilization: Fraction | Decimal | float | str | None = None,
        non_kv_bytes: int | None = None,
    ) -> int:
        """Return what all pools of a rank may take together, at least 1 byte, by SGLang's rule or by vLLM's.

        SGLang 0.5.23 (`_profile_available_bytes`) reads the device after the weights are loaded and keeps
        `before_load · (1 - mem_fraction_static)` free, rounded up here; of a multimodal model it keeps more, which is
        to be subtracted. Both readings are the least over all ranks.

        vLLM 0.33.0 (`request_memory`, `determine_available_memory`) reads it at start-up, asks for
        `total · gpu_memory_utilization`, rounded up, and gives the pools what all else does not need at its peak.

        Args:
            mem_fraction_static: The part of what was free before the weights were loaded that weights and pools take.
            before_load: What was free then: a reading of the same device, or bytes.
            gpu_memory_utilization: The part of the total that the process takes.
            non_kv_bytes: What it takes beside the pools: weights, the peak of activations, graphs, and memory from
                elsewhere than PyTorch.

        Raises:
            InsufficientMemoryError: Nothing is left for pools, or the process asks for more than can be allocated.
            InvalidOptionError: Options of no rule or of both, a fraction not in 0..1, or a number that is not whole.
        """
        options = (mem_fraction_static, before_load, gpu_memory_utilization, non_kv_bytes)
        match tuple(option is not None for option in options):
            case (True, True, False, False):
                fraction = _parse_fraction("mem_fraction_static", mem_fraction_static)
                return self._left_beside_reserve(fraction, self._before_load_bytes(before_load))
            case (False, False, True, True):
                _check_whole("non_kv_bytes", non_kv_bytes)
                fraction = _parse_fraction("gpu_memory_utilization", gpu_memory_utilization)
                return self._left_of_request(fraction, cast("int", non_kv_bytes))
            case given:
                names = ("mem_fraction_static", "before_load", "gpu_memory_utilization", "non_kv_bytes")
                first = given.index(True) if any(given) else 0
                raise InvalidOptionError(names[first], repr(options[first]), _RULES)

    def _before_load_bytes(self, before_load: object) -> int:
        if isinstance(before_load, DeviceMemory):
            if before_load.device != self.device:
                raise InvalidOptionError("before_load", before_load.device, f"pass a reading of {self.device}")
            return before_load.headroom_bytes
        _check_whole("before_load", before_load)
        return cast("int", before_load)

    def _left_beside_reserve(self, fraction: Fraction, before_bytes: int) -> int:
        reserve_bytes = ceil(before_bytes * (1 - fraction))
        if reserve_bytes < self.headroom_bytes:
            return self.headroom_bytes - reserve_bytes
        message = (
            f"mem_fraction_static={_text(fraction)} keeps {reserve_bytes} of {before_bytes} bytes free, and there are"
        )
        message = f"{message} {self.headroom_bytes} ({self.source}): "
        if not self.headroom_bytes:
            raise InsufficientMemoryError(f"{message}no value leaves any for pools", 0, reserve_bytes + 1)
        # The least that leaves a byte.
        least = _text(Fraction(ceil((1 - Fraction(self.headroom_bytes - 1, before_bytes)) * _STEPS), _STEPS))
        message = f"{message}pass mem_fraction_static={least} or more"
        alternatives = [("mem_fraction_static", least)]
        raise InsufficientMemoryError(message, self.headroom_bytes, reserve_bytes + 1, alternatives)

    def _left_of_request(self, fraction: Fraction, non_kv_bytes: int) -> int:
        requested_bytes = ceil(self.total_bytes * fraction)
        if non_kv_bytes < requested_bytes <= self.headroom_bytes:
            return requested_bytes - non_kv_bytes
        message = (
            f"gpu_memory_utilization={_text(fraction)} asks for {requested_bytes} of {self.total_bytes} bytes, and "
        )
        too_much = requested_bytes > self.headroom_bytes
        if too_much:
            message += f"{self.headroom_bytes} can be had ({self.source}): "
            required = (self.headroom_bytes, requested_bytes)
        else:
            message += f"non_kv_bytes={non_kv_bytes} leaves none of them for pools: "
            required = (requested_bytes, non_kv_bytes + 1)
        least = floor(Fraction(non_kv_bytes * _STEPS, self.total_bytes or 1)) + 1
        greatest = min(_STEPS, floor(Fraction(self.headroom_bytes * _STEPS, self.total_bytes or 1)))
        if least > greatest:
            message += f"no value of three decimals works with non_kv_bytes={non_kv_bytes}"
            raise InsufficientMemoryError(message, *required)
        ends = [_text(Fraction(steps, _STEPS)) for steps in (least, greatest)]
        message += f"pass gpu_memory_utilization={ends[0]} to {ends[1]}"
        raise InsufficientMemoryError(message, *required, [("gpu_memory_utilization", ends[too_much])])


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidOptionError(name, repr(value), "pass a whole number from 0")


def _parse_fraction(name: str, value: object, *, may_be_zero: bool = False) -> Fraction:
    """The exact fraction of what was typed: 0.88 is 22/25."""
    try:
        fraction = value if isinstance(value, Fraction) else parse_ratio(cast("Any", value))
    except InvalidOptionError:
        fraction = Fraction(-1)
    if not (0 < fraction <= 1 or (may_be_zero and fraction == 0)):
        raise InvalidOptionError(name, value, "pass a fraction above 0, up to 1, such as 0.8, '4/5' or Fraction(4, 5)")
    return fraction


def _text(fraction: Fraction) -> str:
    """`fraction` as operators write it: a decimal, unless that is long."""
    if 10**6 % fraction.denominator:
        return str(fraction)
    return str(Decimal(fraction.numerator) / fraction.denominator)

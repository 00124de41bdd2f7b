"""What PyTorch says of a device's memory. Its modules are typed as Any, since what they have depends on the backend.

What follows from it is in `device.py`.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from fractions import Fraction
from typing import Any, cast

from poolplan.errors import InvalidOptionError, MemoryQueryError
from poolplan.memory.host import HostMemory

_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def read_device(device: object) -> dict[str, Any]:
    """Return the fields of a `DeviceMemory`: of PyTorch's current device, or of the one with that name or index.

    Raises:
        MemoryQueryError: No PyTorch, no such device, or a backend that does not say.
        InvalidOptionError: Not the name of a device.
    """
    torch = _import_torch()
    try:
        kind, index = _find_device(torch, device)
        return {"device": f"{kind}:{index}", **_read_device(torch, kind, index)}
    except MemoryQueryError:
        raise
    except (AttributeError, RuntimeError) as error:  # a function that is not there; what PyTorch makes of the driver's
        raise _query_error(str(error)) from error


def _import_torch() -> Any:
    try:
        torch = importlib.import_module("torch")
    except (ImportError, OSError) as error:  # OSError: a library that it loads is missing
        raise _query_error(f"torch cannot be imported ({error}); install torch") from error
    if not hasattr(torch, "accelerator"):
        raise _query_error(f"torch {cast('Any', torch).__version__} is too old; install torch 2.6 or later")
    return torch


def _find_device(torch: Any, device: object) -> tuple[str, int]:
    """The type and the index of a device that is there."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        raise _query_error(f"torch {torch.__version__} is built for the CPU only; install a build for the accelerator")
    kind, index = str(accelerator.type), None
    if isinstance(device, int) and not isinstance(device, bool):
        index = device
    elif device is not None:
        kind, index = _parse_device(torch, device)
    if kind != accelerator.type:
        raise _query_error(f"torch {torch.__version__} is built for {accelerator.type}, and {device} is none")
    module = getattr(torch, kind)
    count = int(module.device_count()) if module.is_available() else 0
    if not count:
        raise _query_error(f"torch {torch.__version__} is built for {kind} and finds no device; check the driver")
    if index is None:
        index = int(module.current_device()) if hasattr(module, "current_device") else 0
    if not 0 <= index < count:
        raise _query_error(f"{kind}:{index} is not there, as devices are {kind}:0 to {kind}:{count - 1}; pass another")
    return kind, index


def _parse_device(torch: Any, device: object) -> tuple[str, int | None]:
    try:
        parsed = torch.device(None if isinstance(device, bool) else device)
    except (RuntimeError, TypeError):
        raise InvalidOptionError("device", repr(device), "pass a device's name or index, such as 'cuda:0'") from None
    if parsed.type == "cpu":
        raise InvalidOptionError("device", device, "pass an accelerator; HostMemory.query() reads the host's memory")
    return str(parsed.type), parsed.index


def _read_device(torch: Any, kind: str, index: int) -> dict[str, Any]:
    module = getattr(torch, kind)
    if kind == "mps":
        return _read_metal(module)
    # These read the driver of the very device, so that a MIG slice is a slice (vllm-project/vllm#39874).
    read = getattr(module, "mem_get_info", None) or getattr(torch.accelerator, "get_memory_info", None)
    if read is None:
        raise _query_error(f"torch.{kind} has no mem_get_info; install a later torch")
    free_bytes, total_bytes = read(index)
    properties = module.get_device_properties(index) if hasattr(module, "get_device_properties") else None
    is_integrated = any(getattr(properties, name, False) for name in ("is_integrated", "is_integrated_gpu"))
    fraction = getattr(module, "get_per_process_memory_fraction", None)
    return {
        "backend": "rocm" if kind == "cuda" and torch.version.hip else kind,
        "total_bytes": int(total_bytes),
        "free_bytes": int(free_bytes),
        "host_available_bytes": _read_host_available() if is_integrated else None,
        "process_fraction": Fraction(str(fraction(index))) if fraction else None,
        "expandable_segments": _read_expandable_segments(),
        **_read_allocator(torch, module, index),
    }


def _read_metal(metal: Any) -> dict[str, Any]:
    """Metal says what it has given to this process, and nothing of what others use: the host's memory bounds that."""
    total_bytes, reserved_bytes = int(metal.recommended_max_memory()), int(metal.driver_allocated_memory())
    allocated_bytes = min(int(metal.current_allocated_memory()), reserved_bytes)
    return {
        "backend": "mps",
        "total_bytes": total_bytes,
        "free_bytes": max(0, total_bytes - reserved_bytes),
        "host_available_bytes": _read_host_available(),
        "reserved_bytes": reserved_bytes,
        "allocated_bytes": allocated_bytes,
        # Metal's graphs are in it too: none surely goes back.
        "inactive_split_bytes": reserved_bytes - allocated_bytes,
    }


def _read_allocator(torch: Any, module: Any, index: int) -> dict[str, int]:
    """What the caching allocator has; all 0 for a backend without one, or before it has started."""
    read = getattr(module, "memory_stats", None) or getattr(torch.accelerator, "memory_stats", None)
    stats: dict[str, int] = dict(read(index)) if read else {}
    reserved_bytes = stats.get("reserved_bytes.all.current", 0)
    # Blocks that wait for a stream are active, and no longer allocated.
    names = ("allocated_bytes.all.current", "active_bytes.all.current")
    allocated_bytes = min(reserved_bytes, max(stats.get(name, 0) for name in names))
    free_bytes = reserved_bytes - allocated_bytes
    releasable_bytes = min(free_bytes, _read_releasable(module, index, free_bytes, stats))
    return {
        "reserved_bytes": reserved_bytes,
        "allocated_bytes": allocated_bytes,
        "inactive_split_bytes": free_bytes - releasable_bytes,
    }


def _read_releasable(module: Any, index: int, free_bytes: int, stats: dict[str, int]) -> int:
    """The segments in which nothing is and that no graph's pool holds (`release_cached_blocks` of PyTorch)."""
    if not hasattr(module, "memory_snapshot"):
        # Free blocks of segments that hold a tensor; a backend that does not count these is not trusted with the rest.
        return max(0, free_bytes - stats.get("inactive_split_bytes.all.current", free_bytes))
    # The statistic leaves out expandable segments and the pools of graphs, so that it would promise too much.
    try:
        segments = cast("list[dict[str, Any]]", module.memory_snapshot())
    except RuntimeError:  # cudaMallocAsync has no segments
        return 0
    return sum(
        int(segment["total_size"])
        for segment in segments
        if segment["device"] == index
        and not segment["active_size"]
        and tuple(segment.get("segment_pool_id", (0, 0))) == (0, 0)
    )


def _read_expandable_segments() -> bool | None:
    """What the environment says; None too where it says both, as the order in which PyTorch asks has changed."""
    settings = ",".join(os.environ.get(name, "") for name in _ALLOCATOR_SETTINGS)
    said = set(re.findall(r"\bexpandable_segments\s*:\s*(True|False)\b", settings))
    return said == {"True"} if len(said) == 1 else None


def _read_host_available() -> int:
    try:
        return HostMemory.query().headroom_bytes
    except MemoryQueryError as error:
        if sys.platform == "linux":  # a limit that cannot be read is not passed over
            raise _query_error(f"it shares the host's, and {error}") from error
    try:
        return int(cast("Any", importlib.import_module("psutil")).virtual_memory().available)
    except ImportError as error:
        raise _query_error("it shares the host's, which on this system psutil reads; install psutil") from error


def _query_error(problem: str) -> MemoryQueryError:
    return MemoryQueryError(f"the device's memory cannot be read: {problem}; or pass the available bytes yourself")

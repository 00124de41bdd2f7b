"""What a real CUDA or ROCm device says, and what PyTorch takes of it for the tensors of a plan.

Each test runs its code in a fresh process, so that the allocator starts empty and has the settings of that test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from fractions import Fraction
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
with warnings.catch_warnings():  # a driver that is too old warns, and then there is no device to test either
    warnings.simplefilter("ignore")
    if not torch.cuda.is_available():
        pytest.skip(
            "no CUDA or ROCm device: run these with `pytest -m gpu` where there is one", allow_module_level=True
        )

pytestmark = pytest.mark.gpu

MIB, GIB = 1 << 20, 1 << 30
PLAIN = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")

PRELUDE = """
import dataclasses, json, sys, torch
from poolplan import ModelSpec, RuntimeSpec, create_memory_pool_configurator
from poolplan.memory.device import DeviceMemory

MIB = 1 << 20

def tensor(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")

def read():
    memory = DeviceMemory.query()
    numbers = {field.name: getattr(memory, field.name) for field in dataclasses.fields(memory)}
    fraction = numbers["process_fraction"]
    numbers["process_fraction"] = None if fraction is None else str(fraction)
    numbers |= {name: getattr(memory, name) for name in ("releasable_bytes", "headroom_bytes", "source")}
    return numbers

arguments = json.loads(sys.argv[1])
"""


def run(code: str, settings: dict[str, str], **arguments: Any) -> Any:
    """The JSON that `code` prints in a process of its own, with these settings of the allocator and no others."""
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS} | settings
    command = [sys.executable, "-W", "ignore", "-c", PRELUDE + code, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# Readings


def test_a_reading_is_what_the_driver_and_the_allocator_say() -> None:
    """Nothing is allocated by it, whether PyTorch has started or not."""
    code = """
first = read()
kept = [tensor(30 * MIB), tensor(3 * MIB), tensor(700)]
dropped = [tensor(50 * MIB), tensor(4 * MIB)]
del dropped
second = read()
stats = torch.cuda.memory_stats()
print(json.dumps([first, second, stats, torch.cuda.mem_get_info(), torch.cuda.get_device_properties(0).is_integrated]))
"""
    first, second, stats, (free, total), is_integrated = run(code, PLAIN)
    assert (first["device"], first["backend"]) == ("cuda:0", "rocm" if torch.version.hip else "cuda")
    assert first["reserved_bytes"] == first["allocated_bytes"] == first["inactive_split_bytes"] == 0
    assert first["total_bytes"] == second["total_bytes"] == total
    assert abs(second["free_bytes"] - free) < GIB  # other processes come and go
    assert second["reserved_bytes"] == stats["reserved_bytes.all.current"]
    assert second["allocated_bytes"] == stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"]
    assert second["inactive_split_bytes"] == stats["inactive_split_bytes.all.current"]
    assert (second["host_available_bytes"] is not None) == bool(is_integrated)
    assert (first["expandable_segments"], second["expandable_segments"]) == (False, False)


RELEASE = """
kept = [tensor(30 * MIB), tensor(3 * MIB), tensor(700)]
dropped = [tensor(50 * MIB), tensor(4 * MIB), tensor(900), tensor(64 * MIB)]
del dropped
before = read()
torch.cuda.empty_cache()
print(json.dumps([before, read()]))
"""


def test_an_emptied_cache_gives_back_what_was_promised() -> None:
    before, after = run(RELEASE, PLAIN)
    assert before["releasable_bytes"] >= 114 * MIB
    assert before["reserved_bytes"] - after["reserved_bytes"] == before["releasable_bytes"]
    assert after["releasable_bytes"] == 0
    assert after["allocated_bytes"] == before["allocated_bytes"]


@pytest.mark.skipif(bool(torch.version.hip), reason="ROCm has no expandable segments in every release")
def test_expandable_segments_give_back_no_less_than_was_promised() -> None:
    before, after = run(RELEASE, EXPANDABLE)
    assert before["expandable_segments"] is True
    assert before["reserved_bytes"] - after["reserved_bytes"] >= before["releasable_bytes"]


def test_the_pool_of_a_graph_is_not_promised() -> None:
    """Its tensor is dropped, and its segment stays as long as the graph does."""
    code = """
tensor(MIB)
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    inside = tensor(64 * MIB)
    inside.fill_(1)
    del inside
torch.cuda.synchronize()
before = read()
torch.cuda.empty_cache()
print(json.dumps([before, read()]))
"""
    before, after = run(code, PLAIN)
    assert before["inactive_split_bytes"] >= 64 * MIB
    assert before["reserved_bytes"] - after["reserved_bytes"] == before["releasable_bytes"]


def test_a_limit_of_the_process_is_read_and_kept() -> None:
    """A twentieth of the device: what is left of it can be allocated, and a segment more cannot."""
    code = """
torch.cuda.set_per_process_memory_fraction(0.05)
kept = tensor(32 * MIB)
before = read()
segment = 2 * MIB
fits = tensor(before["headroom_bytes"] // segment * segment)
after = read()
try:
    tensor(16 * segment)
    refused = False
except torch.cuda.OutOfMemoryError:
    refused = True
print(json.dumps([before, after, refused, hasattr(torch.cuda, "get_per_process_memory_fraction")]))
"""
    free, total = torch.cuda.mem_get_info()
    if free < total // 10:
        pytest.skip("others have taken most of the device, so that the limit would not bind")
    before, after, refused, is_said = run(code, PLAIN)
    assert refused
    if not is_said:
        pytest.skip("this PyTorch does not say the limit")
    assert abs(Fraction(before["process_fraction"]) - Fraction(1, 20)) < Fraction(1, 10**9)
    assert "limit of the process" in before["source"]
    assert 0 <= before["headroom_bytes"] <= total // 20 - 32 * MIB
    assert after["headroom_bytes"] < 2 * MIB


# Plans

PLAN = """
model = ModelSpec.from_pretrained(arguments["name"])
options = {"page_size": 64, "max_running_requests": 8, "context_length": 8192, **arguments["options"]}
configurator = create_memory_pool_configurator(model, RuntimeSpec(**options))
tensor(1)
torch.cuda.empty_cache()
before = read()
config = configurator.calculate_pool_sizes(min(arguments["budget"], before["headroom_bytes"] // 2))
buffers = configurator.buffer_bytes(config)
taken = [tensor(size) for kinds in buffers.values() for size, count in kinds for _ in range(count)]
exact = sum(size * count for kinds in buffers.values() for size, count in kinds)
assert exact == sum(each.untyped_storage().nbytes() for each in taken)
reserved = torch.cuda.memory_reserved()
print(json.dumps([before, read(), exact, reserved, config.total_bytes]))
"""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("Qwen/Qwen3-8B", {}, id="dense"),
        pytest.param("deepseek-ai/DeepSeek-V3.2", {"kv_cache_dtype": "fp8_e4m3"}, id="latents and index keys"),
        pytest.param("openai/gpt-oss-120b", {}, id="windows"),
        pytest.param("Qwen/Qwen3.5-35B-A3B", {"speculative_algorithm": "NEXTN"}, id="states and drafts"),
        pytest.param("deepseek-ai/DeepSeek-V4-Flash", {"page_size": 256}, id="compressed entries"),
    ],
)
@pytest.mark.parametrize(
    ("allocator", "settings"),
    [
        pytest.param("torch", PLAIN, id="torch"),
        pytest.param(
            "torch_expandable",
            EXPANDABLE,
            id="torch_expandable",
            marks=pytest.mark.skipif(
                bool(torch.version.hip), reason="ROCm has no expandable segments in every release"
            ),
        ),
    ],
)
@pytest.mark.parametrize("budget", [2 * GIB, 6 * GIB + 12_345_678], ids=["2 GiB", "6 GiB"])
def test_a_plan_holds_what_the_allocator_takes(
    name: str, options: dict[str, Any], allocator: str, settings: dict[str, str], budget: int
) -> None:
    """The tensors of all pools, one after the other: no more is reserved than was planned, and all of it was in need."""
    arguments = {"name": name, "options": options | {"allocator": allocator}, "budget": budget}
    before, after, exact, reserved, planned = run(PLAN, settings, **arguments)
    assert before["reserved_bytes"] == 0
    assert exact <= reserved <= planned <= budget
    assert after["reserved_bytes"] == reserved
    assert after["allocated_bytes"] >= exact

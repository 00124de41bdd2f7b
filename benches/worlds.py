"""What the benchmarks plan: Gemma-3-27B, as poolplan reads it and as the reference in plain Python is told."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from poolplan import MemoryPoolConfigurator, ModelSpec, RuntimeSpec, create_memory_pool_configurator
from reference import ClosedForm, Options, World
from reference.world import Layer

BUDGET = 60 << 30
CONTEXT = 131_072
# Gemma-3-27B: 62 layers, every sixth of them full.
HYBRID: tuple[Layer, ...] = tuple(
    (("heads", 16, 128, 128, ("window", 1024) if (index + 1) % 6 else ("full", None)),) for index in range(62)
)
CASES: dict[str, dict[str, Any]] = {
    "default": {"disable_hybrid_swa_memory": True},
    "hybrid": {},
    "request cap": {"disable_radix_cache": True, "max_running_requests": 64, "chunked_prefill_size": 8192},
}


def our_configurator(options: dict[str, Any]) -> MemoryPoolConfigurator:
    """The configurator of Gemma-3-27B."""
    return create_memory_pool_configurator(gemma(), RuntimeSpec(page_size=64, **options))


def gemma() -> ModelSpec:
    return ModelSpec.from_pretrained("google/gemma-3-27b-it")


def reference_planner(options: dict[str, Any]) -> ClosedForm:
    """The same in plain Python."""
    return ClosedForm(World(HYBRID, Options(page_size=64, context_length=CONTEXT, ratio=Fraction(4, 5), **options)))

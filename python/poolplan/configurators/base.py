"""The choice of a configurator. Each class says itself when it applies; the base class is in Rust."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolplan.configurators.compressed import CompressedPoolConfigurator
from poolplan.configurators.default import DefaultPoolConfigurator
from poolplan.configurators.hybrid_swa import HybridSWAPoolConfigurator, SWARequestCapPoolConfigurator
from poolplan.configurators.mamba import MambaPoolConfigurator

if TYPE_CHECKING:
    from poolplan._core import MemoryPoolConfigurator
    from poolplan.configurators.runtime import RuntimeSpec
    from poolplan.models import ModelSpec

# The first that applies; the last always does.
_CLASSES = (
    CompressedPoolConfigurator,
    MambaPoolConfigurator,
    SWARequestCapPoolConfigurator,
    HybridSWAPoolConfigurator,
    DefaultPoolConfigurator,
)


def create_memory_pool_configurator(model: ModelSpec, runtime: RuntimeSpec) -> MemoryPoolConfigurator:
    """Return the configurator that plans `model` under `runtime`.

    Raises:
        InvalidOptionError: An option does not fit the model or another option.
        UnsupportedModelError: The model keeps nothing that a pool could hold.
    """
    for cls in _CLASSES:
        if cls.applies(model, runtime):
            return cls(model, runtime)
    raise AssertionError("the last class always applies")

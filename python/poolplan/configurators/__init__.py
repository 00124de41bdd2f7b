"""From a model and a runtime to its pools: the class hierarchy, and the choice of a class.

What a model's layers keep is in `poolplan.models`; the arithmetic is in Rust (`rust/core`).
"""

from poolplan.configurators.base import create_memory_pool_configurator
from poolplan.configurators.compressed import CompressedPoolConfigurator
from poolplan.configurators.default import DefaultPoolConfigurator
from poolplan.configurators.host import HostPoolConfig, HostPoolConfigurator, split_hicache_size
from poolplan.configurators.hybrid_swa import HybridSWAPoolConfigurator, SWARequestCapPoolConfigurator
from poolplan.configurators.mamba import MambaPoolConfigurator
from poolplan.configurators.runtime import RuntimeSpec

__all__ = [
    "CompressedPoolConfigurator",
    "DefaultPoolConfigurator",
    "HostPoolConfig",
    "HostPoolConfigurator",
    "HybridSWAPoolConfigurator",
    "MambaPoolConfigurator",
    "RuntimeSpec",
    "SWARequestCapPoolConfigurator",
    "create_memory_pool_configurator",
    "split_hicache_size",
]

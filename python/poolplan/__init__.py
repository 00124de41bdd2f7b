"""Exact sizes of the memory pools of LLM serving runtimes.

    >>> from poolplan import ModelSpec, RuntimeSpec, create_memory_pool_configurator
    >>> model = ModelSpec.from_pretrained("openai/gpt-oss-120b")
    >>> runtime = RuntimeSpec(tp_size=8, page_size=64)
    >>> config = create_memory_pool_configurator(model, runtime).calculate_pool_sizes(60 << 30)
    >>> config.total_bytes <= 60 << 30
    True

The way of the data: `models` reads a `config.json` into one entry a layer, `configurators` turn the layers into pools
and plan them (in Rust), `cli` shows the plan to people.
"""

from poolplan._core import (
    Attention,
    CompressedLatent,
    CompressorState,
    IndexKey,
    LatentAttention,
    Layer,
    MemoryPoolConfig,
    MemoryPoolConfigurator,
    PoolSize,
    RecurrentState,
    Span,
    StateTensor,
    __version__,
    cell_bytes,
    split_budget,
)
from poolplan.configurators import (
    CompressedPoolConfigurator,
    DefaultPoolConfigurator,
    HostPoolConfig,
    HostPoolConfigurator,
    HybridSWAPoolConfigurator,
    MambaPoolConfigurator,
    RuntimeSpec,
    SWARequestCapPoolConfigurator,
    create_memory_pool_configurator,
    split_hicache_size,
)
from poolplan.distributed import Agreement, StagePlans, agree, plan_stages
from poolplan.errors import (
    InsufficientMemoryError,
    InvalidOptionError,
    MemoryQueryError,
    PoolPlanError,
    RankError,
    UnknownModelWarning,
    UnsupportedModelError,
)
from poolplan.grid import iter_sweep, sweep
from poolplan.memory import DeviceMemory, HostMemory
from poolplan.models import ModelSpec, State, register_model
from poolplan.replanner import PoolChange, Replan, Replanner
from poolplan.sharing import split_device
from poolplan.workload import Workload, WorkloadFit

__all__ = [
    "Agreement",
    "Attention",
    "CompressedLatent",
    "CompressedPoolConfigurator",
    "CompressorState",
    "DefaultPoolConfigurator",
    "DeviceMemory",
    "HostMemory",
    "HostPoolConfig",
    "HostPoolConfigurator",
    "HybridSWAPoolConfigurator",
    "IndexKey",
    "InsufficientMemoryError",
    "InvalidOptionError",
    "LatentAttention",
    "Layer",
    "MambaPoolConfigurator",
    "MemoryPoolConfig",
    "MemoryPoolConfigurator",
    "MemoryQueryError",
    "ModelSpec",
    "PoolChange",
    "PoolPlanError",
    "PoolSize",
    "RankError",
    "RecurrentState",
    "Replan",
    "Replanner",
    "RuntimeSpec",
    "SWARequestCapPoolConfigurator",
    "Span",
    "StagePlans",
    "State",
    "StateTensor",
    "UnknownModelWarning",
    "UnsupportedModelError",
    "Workload",
    "WorkloadFit",
    "__version__",
    "agree",
    "cell_bytes",
    "create_memory_pool_configurator",
    "iter_sweep",
    "plan_stages",
    "register_model",
    "split_budget",
    "split_device",
    "split_hicache_size",
    "sweep",
]

"""What a plan means for an operator, as plain data; shown as a table by `tables.py`, and as it is with `--json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from poolplan._core import (
    Attention,
    CompressedLatent,
    CompressorState,
    IndexKey,
    LatentAttention,
    RecurrentState,
    cell_bytes,
)
from poolplan.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolplan._core import MemoryPoolConfig, MemoryPoolConfigurator
    from poolplan.configurators import HostPoolConfig, RuntimeSpec
    from poolplan.memory import DeviceMemory, HostMemory
    from poolplan.models import ModelSpec, State

# Kernels have addressed a buffer by 32-bit byte offsets, signed and unsigned.
_OFFSET_LIMITS = (2**32, 2**31)


def plan_report(
    configurator: MemoryPoolConfigurator,
    config: MemoryPoolConfig,
    request_tokens: int,
    workloads: Sequence[Workload] = (),
    host: HostPoolConfig | None = None,
) -> dict[str, Any]:
    """Return the plan, what it leaves and why, and how many requests of `request_tokens` fit at once."""
    model, runtime = configurator.model, configurator.runtime
    fit = Workload(request_tokens).fit(configurator, config)
    return {
        "model": model.name,
        "model_type": model.model_type,
        "configurator": type(configurator).__name__,
        "kv_cache_dtype": _cache_dtype(model, runtime),
        "tp_size": runtime.tp_size,
        "page_size": runtime.page_size,
        "context_length": context_length_of(configurator),
        **config.as_dict(),
        "unused_because": _unused_because(configurator, config),
        "concurrent_requests": {
            "request_tokens": request_tokens,
            "requests": fit.requests,
            "bound_by": fit.bound_by,
            "per_pool": fit.per_pool,
        },
        "workloads": [asdict(workload) | asdict(workload.fit(configurator, config)) for workload in workloads],
        "request_bytes": configurator.request_bytes(request_tokens),
        **_costs(configurator),
        "host": host and host.as_dict(),
        "notes": _notes(configurator, config),
    }


def context_length_of(configurator: MemoryPoolConfigurator) -> int:
    """Return the tokens of the longest request: as the operator says, or as the model was made for."""
    return configurator.runtime.context_length or configurator.model.context_length


def memory_report(
    device: DeviceMemory | None, why_no_device: str | None, host: HostMemory, budget: int
) -> dict[str, Any]:
    """Return what was read of the device and of the host, what binds, and what the host pools of a rank may take."""

    def read(memory: DeviceMemory | HostMemory) -> dict[str, Any]:
        return asdict(memory) | {"headroom_bytes": memory.headroom_bytes, "source": memory.source}

    return {
        "device": device and read(device) | {"releasable_bytes": device.releasable_bytes},
        "why_no_device": why_no_device,
        "host": read(host) | {"budget_bytes": budget},
    }


def layers_report(model: ModelSpec, runtime: RuntimeSpec) -> dict[str, Any]:
    """Return what each layer keeps, and its bytes a slot on one rank."""
    dtype = _cache_dtype(model, runtime)
    layers: list[dict[str, Any]] = []
    for index, layer in enumerate(model.layers):
        states = [_state(state, model, runtime) for state in layer.states]
        layers.append({"layer": index, "cell_bytes": sum(state["cell_bytes"] for state in states), "states": states})
    spans = ("full", "window", "chunk", "compressed", "encoder", "request")
    states = [state for layer in layers for state in layer["states"]]
    return {
        "model": model.name,
        "model_type": model.model_type,
        "context_length": model.context_length,
        "kv_cache_dtype": dtype,
        "tp_size": runtime.tp_size,
        "cell_bytes": {
            span: sum(state["cell_bytes"] for state in states if state["span"]["kind"] == span) for span in spans
        },
        "layers": layers,
    }


def _cache_dtype(model: ModelSpec, runtime: RuntimeSpec) -> str:
    return model.kv_cache_dtype if runtime.kv_cache_dtype == "auto" else runtime.kv_cache_dtype


_STATE_FIELDS: dict[type, tuple[str, tuple[str, ...]]] = {
    Attention: ("attention", ("num_kv_heads", "head_dim", "v_head_dim")),
    LatentAttention: ("latent", ("kv_lora_rank", "qk_rope_head_dim", "sparse")),
    IndexKey: ("index_key", ("head_dim", "format")),
    CompressedLatent: ("compressed_latent", ("qk_nope_head_dim", "qk_rope_head_dim")),
    CompressorState: ("compressor", ("compress_ratio", "row_elements")),
}


def _state(state: State, model: ModelSpec, runtime: RuntimeSpec) -> dict[str, Any]:
    kind, names = _STATE_FIELDS.get(type(state), ("recurrent", ()))
    fields: dict[str, Any] = {name: getattr(state, name) for name in names}
    if isinstance(state, RecurrentState):
        names = ("role", "num_heads", "head_elements", "sharding")
        fields = {"tensors": [{name: getattr(tensor, name) for name in names} for tensor in state.tensors]}
    return {
        "kind": kind,
        **fields,
        "span": {"kind": state.span.kind, "tokens": state.span.tokens},
        "cell_bytes": _cell_bytes(state, model, runtime, runtime.attention_tp_size),
    }


def _cell_bytes(state: State, model: ModelSpec, runtime: RuntimeSpec, tp_size: int) -> int:
    def dtype(option: str, own: str) -> str:
        return own if option == "auto" else option

    return cell_bytes(
        state,
        kv_cache_dtype=_cache_dtype(model, runtime),
        v_cache_dtype=runtime.v_cache_dtype,
        tp_size=tp_size,
        dcp_size=min(runtime.dcp_size, tp_size),
        raw_sparse_rows=runtime.raw_sparse_rows,
        mamba_conv_dtype=dtype(runtime.mamba_conv_dtype, model.mamba_conv_dtype),
        mamba_ssm_dtype=dtype(runtime.mamba_ssm_dtype, model.mamba_ssm_dtype),
    )


def _costs(configurator: MemoryPoolConfigurator) -> dict[str, int]:
    """What a token costs, and what a long request costs besides: a number of tokens alone says nothing of a hybrid.

    A token costs the slope of what long requests hold; rounded up, where a part of an entry is a part of a byte.
    """
    long = configurator.runtime.page_size << 31
    once, twice = configurator.request_bytes(long), configurator.request_bytes(2 * long)
    growing = {name for name in once if twice[name] != once[name]}
    held = configurator.request_bytes(context_length_of(configurator))
    return {
        "bytes_per_token": -(-sum(twice[name] - once[name] for name in growing) // long),
        "bytes_per_request": sum(bytes_ for name, bytes_ in held.items() if name not in growing),
    }


def _unused_because(configurator: MemoryPoolConfigurator, config: MemoryPoolConfig) -> str:
    """Why no pool takes what is left of the budget."""
    runtime, step = configurator.runtime, configurator.token_step
    next_tokens = config.max_total_num_tokens + step
    if runtime.max_total_tokens is not None and next_tokens > runtime.max_total_tokens:
        return f"max_total_tokens={runtime.max_total_tokens} is reached"
    what = f"the next {'page' if step == runtime.page_size else 'request'} ({step:,} tokens)"
    needed = configurator.next_step_bytes(config)
    missing = needed - config.available_bytes
    if missing <= 0:
        return "every request that is asked for has its slots"
    if runtime.pp_rank is not None:
        return f"{what} is {missing:,} bytes too much for the stage that takes most"
    return f"{what} needs {needed - config.total_bytes:,} bytes, {missing:,} more than are left"


def _notes(configurator: MemoryPoolConfigurator, config: MemoryPoolConfig) -> list[str]:
    """What an operator should know before starting the server."""
    model, runtime = configurator.model, configurator.runtime
    context_length = context_length_of(configurator)
    notes: list[str] = []
    if runtime.pp_size > 1:
        which = "the stage that takes most" if runtime.pp_rank is None else f"stage {runtime.pp_rank}"
        notes.append(f"{runtime.pp_size} stages hold the same tokens; the pools are those of {which}")
    full = config.full_max_total_num_tokens
    if full is not None and runtime.dcp_size > 1:
        full *= runtime.dcp_size
        notes.append(f"{runtime.dcp_size} ranks share the tokens of a request: together they hold {full:,} tokens")
    if full is not None and full < context_length:
        notes.append(
            f"one request of the whole context ({context_length:,} tokens) does not fit: "
            f"the longest that does has {full:,} tokens (prompt and output)"
        )
    asked = runtime.requests_per_worker
    if asked is not None and config.max_running_requests < asked:
        served = f"{config.max_running_requests:,}"
        notes.append(f"max_running_requests={asked} is lowered to {served}: {_limit(configurator, config)}")
    for name, fewer in (("request_table", " or a shorter context_length"), ("c128_state", "")):
        pool = config.pool(name)
        if pool is not None and asked is None and pool.bytes * 50 > config.available_bytes:
            notes.append(
                f"{name} takes {pool.bytes:,} bytes for {config.max_running_requests:,} requests: "
                f"fewer max_running_requests{fewer} leave more to tokens"
            )
    notes += _state_notes(configurator, config)
    copies = _copied_bytes(model, runtime)
    if copies:
        notes.append(
            f"of each token's bytes on all {runtime.tp_size} ranks together, {copies:,} are copies: "
            "there are fewer KV heads (or one latent) than ranks"
        )
    for name, buffers in configurator.buffer_bytes(config).items():
        largest = max((bytes_ for bytes_, _ in buffers), default=0)
        limit = next((limit for limit in _OFFSET_LIMITS if largest > limit), None)
        if limit is not None:
            notes.append(
                f"the largest buffer of pool {name} has {largest:,} bytes: "
                f"a kernel with 32-bit byte offsets breaks above {limit:,}"
            )
    return notes


def _limit(configurator: MemoryPoolConfigurator, config: MemoryPoolConfig) -> str:
    """Why no more requests are served than these, and what would serve all that are asked for."""
    runtime, states = configurator.runtime, config.pool("mamba")
    held = runtime.state_slots_per_request
    if states is None or states.slots // held > config.max_running_requests:
        return f"each needs 2 of {config.max_total_num_tokens:,} tokens"
    needed = held * (runtime.requests_per_worker or 0)
    return f"each holds {held} of {states.slots:,} state slots; all would need max_mamba_cache_size={needed}"


def _state_notes(configurator: MemoryPoolConfigurator, config: MemoryPoolConfig) -> list[str]:
    """What the state pool means for the requests that are served, where the operator left it to the ratio."""
    runtime, states, source = configurator.runtime, config.pool("mamba"), config.pool("cross")
    held = runtime.state_slots_per_request
    if source is not None and runtime.max_running_requests is None:
        positions = source.slots // max(config.max_running_requests, 1)
        return [
            f"{config.max_running_requests:,} requests are served at once, as many as can all have the whole context: "
            f"each also holds {positions:,} positions of an encoder's output; max_running_requests says otherwise"
        ]
    if states is None or config.pool("full") is None or runtime.max_running_requests is not None:
        return []
    if states.slots // held > config.max_running_requests:
        return []
    return [
        f"{config.max_running_requests:,} requests are served at once: each holds {held} of {states.slots:,} state "
        "slots, and a larger mamba_full_memory_ratio serves more, with fewer tokens"
    ]


def _copied_bytes(model: ModelSpec, runtime: RuntimeSpec) -> int:
    """Bytes of one token that the ranks of a worker hold more than once, over all ranks and layers."""
    tp_size = runtime.attention_tp_size
    if runtime.dcp_size > 1:
        # Ranks that divide the tokens do not copy them.
        return 0
    states = [state for layer in model.layers for state in layer.states if state.span.kind != "request"]
    on_ranks = sum(tp_size * _cell_bytes(state, model, runtime, tp_size) for state in states)
    return on_ranks - sum(_cell_bytes(state, model, runtime, 1) for state in states)

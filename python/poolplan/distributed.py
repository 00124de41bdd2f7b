"""One plan for every rank of a job, though each has other memory, and other layers on each pipeline stage.

A configurator plans all stages of its model at once, so ranks that start from one budget have one number of tokens:
what they must agree on is the budget. One process can plan a whole job offline: `plan_stages`.
"""

from __future__ import annotations

import hashlib
import json
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

from poolplan._core import __version__
from poolplan.configurators import create_memory_pool_configurator
from poolplan.errors import InsufficientMemoryError, InvalidOptionError, RankError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from poolplan._core import MemoryPoolConfig, MemoryPoolConfigurator
    from poolplan.configurators import RuntimeSpec
    from poolplan.models import ModelSpec

# A number of bytes, or what asks for it: so that a rank whose question fails can tell the others.
Budget: TypeAlias = SupportsIndex | Callable[[], SupportsIndex]


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """What all ranks of a group do.

    Attributes:
        config: The plan; of this rank's own pipeline stage, where `pp_rank` says which that is.
        available_bytes: The least budget of any rank.
        bound_by_rank: The first rank of the group that has it.
        host_bytes: The least host budget of any rank; None where none was passed.
        host_bound_by_rank: The first rank of the group that has that.
    """

    config: MemoryPoolConfig
    available_bytes: int
    bound_by_rank: int
    host_bytes: int | None = None
    host_bound_by_rank: int | None = None


def agree(
    configurator: MemoryPoolConfigurator,
    available_bytes: Budget,
    group: ProcessGroup | None = None,
    *,
    host_bytes: Budget | None = None,
    timeout: timedelta = timedelta(minutes=5),
) -> Agreement:
    """Return the one plan that every rank of `group` can carry out. Every rank of it calls this, as any collective.

    Without a process group a process is the only rank, and torch is not needed. A group that was given up may have a
    collective pending: end the job.

        >>> from poolplan import ModelSpec, RuntimeSpec, create_memory_pool_configurator
        >>> model = ModelSpec.from_pretrained("openai/gpt-oss-120b")
        >>> configurator = create_memory_pool_configurator(model, RuntimeSpec(tp_size=8, page_size=64))
        >>> agree(configurator, 60 << 30).config == configurator.calculate_pool_sizes(60 << 30)
        True

    Args:
        configurator: The model and how it is served, on every rank the same but for `pp_rank`.
        available_bytes: This rank's budget for the pools on its device, or a function that asks for it.
        group: The ranks of all stages that serve together; the default group where it is None. Of any backend.
        host_bytes: This rank's budget for its host pools, or a function that asks for it.
        timeout: How long each of the two collectives may take before the group is given up.

    Raises:
        InsufficientMemoryError: The least budget does not serve one request. On every rank.
        InvalidOptionError: This process is not in the group, or the timeout is not above zero.
        RankError: A rank failed (the reason is its own), serves something else, died, or did not answer. On every rank.
    """
    if timeout <= timedelta(0):
        raise InvalidOptionError("timeout", timeout, "pass a time above zero")
    gather = _gather_of(group, timeout)
    message, cause = _message(configurator, available_bytes, host_bytes)
    messages = [_Message(*json.loads(text)) for text in gather(json.dumps(message.as_list()))]
    for rank, other in enumerate(messages):
        if other.error is not None:
            raise RankError(rank, other.error) from cause
    _check_alike(messages)
    least, bound_by_rank = _least([other.available_bytes for other in messages])
    hosts = [other.host_bytes for other in messages if other.host_bytes is not None]
    least_host, host_bound_by_rank = _least(hosts) if hosts else (None, None)
    try:
        config = configurator.calculate_pool_sizes(least)
    except InsufficientMemoryError as error:
        if len(messages) == 1:
            raise
        raise InsufficientMemoryError(
            f"{error} (rank {bound_by_rank} has the least memory of {len(messages)} ranks)",
            error.available_bytes,
            error.required_bytes,
            error.alternatives.items(),
        ) from None
    return Agreement(
        config=config,
        available_bytes=least,
        bound_by_rank=bound_by_rank,
        host_bytes=least_host,
        host_bound_by_rank=host_bound_by_rank,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlans:
    """The plans of all pipeline stages of a job.

    Attributes:
        configs: One plan a stage, all of them with the same tokens.
        binding_stage: The stage whose pools take most of the budget; the first of equals.
    """

    configs: tuple[MemoryPoolConfig, ...]
    binding_stage: int


def plan_stages(model: ModelSpec, runtime: RuntimeSpec, available_bytes: SupportsIndex) -> StagePlans:
    """Return the plan of every pipeline stage of a job, each rank of which has `available_bytes`.

        >>> from poolplan import ModelSpec, RuntimeSpec
        >>> model = ModelSpec.from_pretrained("openai/gpt-oss-120b")
        >>> plans = plan_stages(model, RuntimeSpec(pp_size=5), 20 << 30)
        >>> [len(config.pool("full").layers) for config in plans.configs], plans.binding_stage
        ([3, 4, 3, 4, 4], 4)

    Raises:
        PoolPlanError: What `calculate_pool_sizes` raises.
    """
    ranks = [replace(runtime, pp_rank=rank) for rank in range(runtime.pp_size)]
    configurators = [create_memory_pool_configurator(model, rank) for rank in ranks]
    configs = tuple(configurator.calculate_pool_sizes(available_bytes) for configurator in configurators)
    stage_bytes = configurators[0].stage_bytes(configs[0])
    return StagePlans(configs=configs, binding_stage=stage_bytes.index(max(stage_bytes)))


@dataclass(frozen=True, slots=True)
class _Message:
    """What one rank tells the others."""

    available_bytes: int
    host_bytes: int | None
    options: dict[str, str]
    error: str | None

    def as_list(self) -> list[Any]:
        return [self.available_bytes, self.host_bytes, self.options, self.error]


def _message(
    configurator: MemoryPoolConfigurator, available: Budget, host: Budget | None
) -> tuple[_Message, Exception | None]:
    """What this rank says, and what went wrong on it."""
    try:
        message = _Message(_ask(available), None if host is None else _ask(host), _options(configurator), None)
    except Exception as error:  # whatever it is, the other ranks wait for an answer
        return _Message(0, None, {}, f"{type(error).__name__}: {error}"), error
    return message, None


def _ask(budget: Budget) -> int:
    return operator.index(budget() if callable(budget) else budget)


def _least(numbers: list[int]) -> tuple[int, int]:
    least = min(numbers)
    return least, numbers.index(least)


def _options(configurator: MemoryPoolConfigurator) -> dict[str, str]:
    """All that must be the same on every rank, as text that does not depend on the process."""
    runtime = configurator.runtime
    options = {field.name: str(getattr(runtime, field.name)) for field in fields(runtime) if field.name != "pp_rank"}
    model = replace(configurator.model, name="")  # where a rank has the file from does not matter
    digest = hashlib.sha256(repr(model).encode()).hexdigest()[:16]
    return {"poolplan": __version__, "model": f"{model.model_type} of {len(model.layers)} layers, {digest},", **options}


def _check_alike(messages: list[_Message]) -> None:
    """Ranks that serve other things would have other tokens."""
    first = messages[0]
    for rank, other in enumerate(messages):
        names = sorted({*first.options, *other.options})
        differ = [
            f"{name} is {first.options.get(name)} on rank 0 and {other.options.get(name)} on rank {rank}"
            for name in names
            if first.options.get(name) != other.options.get(name)
        ]
        if (first.host_bytes is None) != (other.host_bytes is None):
            passed = rank if first.host_bytes is None else 0
            differ.append(f"host_bytes is passed on rank {passed} and not on the other")
        if differ:
            raise RankError(None, f"ranks 0 and {rank} do not serve the same: {'; '.join(differ)}")


def _gather_of(group: ProcessGroup | None, timeout: timedelta) -> Callable[[str], list[str]]:
    """What returns the texts of all ranks, by rank."""
    # Whoever has a process group has imported this.
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and group is distributed.GroupMember.NON_GROUP_MEMBER:
        raise InvalidOptionError("group", "NON_GROUP_MEMBER", "call this on the ranks of the group only")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return lambda text: [text]
    return lambda text: _gather(text, group, timeout)


def _gather(text: str, group: ProcessGroup | None, timeout: timedelta) -> list[str]:
    import torch
    import torch.distributed as dist

    def wait(work: Any) -> None:
        if work.wait(timeout) is False:
            raise RuntimeError("no answer")

    own = text.encode()
    # "cpu:gloo,cuda:nccl": where the backend's tensors live; on the CPU, if it can use that.
    devices = [entry.partition(":")[0] for entry in dist.get_backend_config(group).split(",")]
    device = "cpu" if "cpu" in devices else devices[0]
    most = torch.tensor([len(own)], dtype=torch.int64, device=device)
    try:
        wait(dist.all_reduce(most, dist.ReduceOp.MAX, group, async_op=True))
        row = torch.tensor(list(own.ljust(int(most.item()))), dtype=torch.uint8, device=device)
        rows = [torch.empty_like(row) for _ in range(dist.get_world_size(group))]
        wait(dist.all_gather(rows, row, group, async_op=True))
    except RuntimeError as error:
        first_line = str(error).strip().partition("\n")[0]
        raise RankError(
            None,
            f"a rank did not answer (waited at most {timeout.total_seconds():g} seconds): it died, hangs, or does not "
            f"call agree; the collective says: {first_line}",
        ) from error
    texts: list[list[int]] = [row.cpu().tolist() for row in rows]  # pyright: ignore[reportUnknownMemberType]
    return [bytes(text).decode() for text in texts]

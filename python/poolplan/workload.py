"""How many requests of a kind fit at once, per pool, and which pool binds. The plan itself is the configurators'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from poolplan.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from poolplan._core import MemoryPoolConfig, MemoryPoolConfigurator

_MAX_TOKENS = 2**40 - 1


@dataclass(frozen=True, slots=True)
class WorkloadFit:
    """How many requests of a workload fit at once.

    Attributes:
        requests: Requests that fit when all of them are complete: none is ever retracted.
        bound_by: The pool that holds no more of them.
        prompts: Requests whose prompts alone fit, as when all of them start.
        per_pool: Complete requests that each pool holds.
    """

    requests: int
    bound_by: str | None
    prompts: int
    per_pool: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of `input_tokens` and `output_tokens` each.

        >>> from poolplan import ModelSpec, RuntimeSpec, create_memory_pool_configurator
        >>> model = ModelSpec.from_pretrained("openai/gpt-oss-120b")
        >>> configurator = create_memory_pool_configurator(model, RuntimeSpec(max_running_requests=256))
        >>> config = configurator.calculate_pool_sizes(20 << 30)
        >>> Workload(input_tokens=3000, output_tokens=1000).fit(configurator, config).bound_by
        'full'

    Raises:
        InvalidOptionError: A number that is not whole, a request without a prompt, or one of 2^40 tokens and more.
    """

    input_tokens: int
    output_tokens: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, low in (("input_tokens", 1), ("output_tokens", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _MAX_TOKENS:
                raise InvalidOptionError(name, repr(value), f"pass a whole number from {low} to {_MAX_TOKENS}")

    @classmethod
    def parse(cls, text: str) -> Workload:
        """Return the workload that `3000+1000` (input and output) or `3000` (input only) stands for."""
        parts = text.split("+")
        if len(parts) > 2 or not all(part.strip().isdecimal() for part in parts):
            raise InvalidOptionError("workload", text, "pass input and output tokens such as 3000+1000")
        return cls(*(int(part) for part in parts))

    def fit(self, configurator: MemoryPoolConfigurator, config: MemoryPoolConfig) -> WorkloadFit:
        """Return how many of these requests fit in the pools of `config` at once."""
        per_pool = configurator.concurrent_requests(config, self.input_tokens + self.output_tokens)
        requests = min(per_pool.values(), default=0)
        bound_by = next((name for name, held in per_pool.items() if held == requests), None)
        prompts = configurator.concurrent_requests(config, self.input_tokens)
        return WorkloadFit(requests, bound_by, min(prompts.values(), default=0), per_pool)

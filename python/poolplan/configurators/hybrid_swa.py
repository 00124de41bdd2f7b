"""A full pool and a sliding-window pool, or a window pool alone. Models without windows are in `default.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from poolplan._core import MemoryPoolConfigurator

if TYPE_CHECKING:
    from poolplan.configurators.runtime import RuntimeSpec
    from poolplan.models import ModelSpec


class HybridSWAPoolConfigurator(MemoryPoolConfigurator):
    """Applies when a layer has a window or a chunk, unless the runtime keeps no window pool.

    The window pool (`swa`) has `swa_full_tokens_ratio` slots for each slot of the full pool (`full`). A model with
    windows only has no full pool: the window pool is then the anchor, and the ratio is ignored. Chunks count as
    windows.
    """

    window_rule: ClassVar[Literal["ratio", "request_cap"]] = "ratio"

    @classmethod
    def applies(cls, model: ModelSpec, runtime: RuntimeSpec) -> bool:
        """Whether a layer has a window, and the runtime pools windows apart."""
        return not runtime.disable_hybrid_swa_memory and model.has_windows


class SWARequestCapPoolConfigurator(HybridSWAPoolConfigurator):
    """Applies to hybrids when the radix cache is off, the requests are limited and prompts are chunked (or elsewhere).

    The window pool is then as large as those requests need at once, and the full pool takes the rest.
    """

    window_rule: ClassVar[Literal["ratio", "request_cap"]] = "request_cap"

    @classmethod
    def applies(cls, model: ModelSpec, runtime: RuntimeSpec) -> bool:
        """Whether the requests bound what the windows of a hybrid can hold."""
        chunked = runtime.chunked_prefill_size is not None or runtime.disaggregation_mode == "decode"
        # The options first: the others look at every layer.
        return (
            runtime.disable_radix_cache
            and runtime.max_running_requests is not None
            and chunked
            and super().applies(model, runtime)
            and model.has_full_attention
        )

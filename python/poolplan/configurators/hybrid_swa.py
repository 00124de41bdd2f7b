"""A full pool and a sliding-window pool, or a window pool alone. Models without windows are in `default.py`."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from poolplan._core import MemoryPoolConfigurator

if TYPE_CHECKING:
    from poolplan.configurators.runtime import RuntimeSpec, WindowRule
    from poolplan.models import ModelSpec

# SGLang 0.5.23, `--swa-full-tokens-ratio`.
_DEFAULT_RATIO = Fraction(4, 5)


class HybridSWAPoolConfigurator(MemoryPoolConfigurator):
    """Applies when a layer has a window or a chunk, unless the runtime keeps no window pool.

    The window pool (`swa`) has `swa_full_tokens_ratio` slots for each slot of the full pool (`full`). A model with
    windows only has no full pool: the window pool is then the anchor, and the ratio is ignored. Chunks count as
    windows.
    """

    @classmethod
    def applies(cls, model: ModelSpec, runtime: RuntimeSpec) -> bool:
        """Whether a layer has a window, and the runtime pools windows apart."""
        return not runtime.disable_hybrid_swa_memory and model.has_windows

    @classmethod
    def window_rule(cls, runtime: RuntimeSpec) -> WindowRule:
        """How windows are pooled: in proportion to the full pool."""
        return "ratio", _DEFAULT_RATIO if runtime.swa_full_tokens_ratio is None else runtime.swa_full_tokens_ratio


class SWARequestCapPoolConfigurator(HybridSWAPoolConfigurator):
    """Applies to hybrids when the radix cache is off, the requests are limited and prompts are chunked (or elsewhere).

    The window pool is then as large as those requests need at once, and the full pool takes the rest.
    """

    @classmethod
    def applies(cls, model: ModelSpec, runtime: RuntimeSpec) -> bool:
        """Whether the requests bound what the windows of a hybrid can hold."""
        # The options first: the others look at every layer.
        return runtime.caps_windows_by_requests and super().applies(model, runtime) and model.has_full_attention

    @classmethod
    def window_rule(cls, runtime: RuntimeSpec) -> WindowRule:
        """How windows are pooled: as large as the requests need, and nothing for prefixes."""
        del runtime
        return "request_cap", 0

"""Attention beside recurrent state, or state alone. Models without state are in `default.py` and `hybrid_swa.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolplan._core import MemoryPoolConfigurator
from poolplan.configurators.default import DefaultPoolConfigurator
from poolplan.configurators.hybrid_swa import HybridSWAPoolConfigurator, SWARequestCapPoolConfigurator

if TYPE_CHECKING:
    from poolplan.configurators.runtime import RuntimeSpec, WindowRule
    from poolplan.models import ModelSpec


class MambaPoolConfigurator(MemoryPoolConfigurator):
    """Applies when a layer keeps recurrent state: Mamba, GDN, KDA, lightning attention, short convolutions.

    The state pool (`mamba`) has a slot for each state, however long its request is: as many as `max_mamba_cache_size`
    says, or one for each of `max_running_requests` without a radix cache, or else as many as a share of the budget
    holds, `mamba_full_memory_ratio` to 1 of the rest: those of whole requests, and of no more than are served. Tokens
    take everything else, what the state's rounding leaves included. A request holds `runtime.state_slots_per_request`
    slots, which limits `max_running_requests`. While drafts are verified each request also keeps the state after each
    drafted token (`mamba_draft`). Layers with a window are pooled as without state.

    More budget never gives fewer slots, and with the same slots never fewer tokens; the slot that it adds may cost
    some. A model of states only gives them the whole budget: its tokens are then those of as many requests of the whole
    context.
    """

    @classmethod
    def applies(cls, model: ModelSpec, runtime: RuntimeSpec) -> bool:
        """Whether a layer keeps recurrent state."""
        del runtime
        return model.has_recurrent_state

    @classmethod
    def window_rule(cls, runtime: RuntimeSpec) -> WindowRule:
        """How windows are pooled: as they are without state."""
        if runtime.disable_hybrid_swa_memory:
            return DefaultPoolConfigurator.window_rule(runtime)
        if runtime.caps_windows_by_requests:
            return SWARequestCapPoolConfigurator.window_rule(runtime)
        return HybridSWAPoolConfigurator.window_rule(runtime)

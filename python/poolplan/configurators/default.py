"""One pool of tokens. Models with windows are in `hybrid_swa.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolplan._core import MemoryPoolConfigurator

if TYPE_CHECKING:
    from poolplan.configurators.runtime import RuntimeSpec, WindowRule
    from poolplan.models import ModelSpec


class DefaultPoolConfigurator(MemoryPoolConfigurator):
    """Applies to every model: MHA, GQA, MQA, MLA and DSA; each layer keeps every token, in one pool named `full`.

    A layer with a window keeps every token too, as a runtime does that has no pool of windows.
    """

    @classmethod
    def applies(cls, model: ModelSpec, runtime: RuntimeSpec) -> bool:
        """Whether this class can plan `model` under `runtime`: always."""
        del model, runtime
        return True

    @classmethod
    def window_rule(cls, runtime: RuntimeSpec) -> WindowRule:
        """How windows are pooled: like full attention."""
        del runtime
        return "keep_all", None

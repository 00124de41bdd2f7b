"""Models that mix recurrent layers with attention: which layer is which, by the names that files give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolplan._core import Layer

if TYPE_CHECKING:
    from poolplan._core import RecurrentState
    from poolplan.models.config import ConfigReader
    from poolplan.models.state import State

ATTENTION = frozenset({"attention", "full_attention", "*"})
LINEAR = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent", "M"})
NOTHING = frozenset({"mlp", "moe", "-", "E"})
HYBRID = frozenset({"hybrid"})


def linear_by_name(config: ConfigReader, key: str, kinds: list[Any]) -> list[bool]:
    """Return whether each layer is recurrent, by the names that `key` gives them; MTP layers may follow."""
    layers = config.num_layers
    if len(kinds) < layers:
        raise config.error(key, f"{key} has {len(kinds)} entries for {layers} layers")
    names = [str(kind) for kind in kinds[:layers]]
    for name in names:
        if name not in ATTENTION | LINEAR:
            raise config.error(key, f"{key} has {name!r}, which is not planned yet")
    return [name in LINEAR for name in names]


def alternate(linear: list[bool], own: State | None, state: RecurrentState | None) -> list[Layer]:
    """Return layers that keep the state where they are linear, and what attention keeps elsewhere."""
    recurrent, attends = (Layer(states=[kept] if kept is not None else []) for kept in (state, own))
    return [recurrent if flag else attends for flag in linear]

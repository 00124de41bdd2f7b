"""MTP layers of a checkpoint, which draft tokens when speculation is on. Draft models are read as models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolplan._core import Layer, RecurrentState
from poolplan.models import compressed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolplan.models.config import ConfigReader

# The names of their number: DeepSeek, GLM, Kimi, Nemotron-H; Qwen 3.5; MiniMax, whose M3 has 7 modules of 1 layer.
_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "_num_mtp_layers")
_MOST = 64
# Their MTP layers have windows where the model has both.
_WINDOWED = ("mimo", "step3")


def read_mtp_layers(config: ConfigReader, layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return what each MTP layer keeps; none where the file has none.

    SGLang 0.5.23, `srt/models/*_nextn.py` and `*_mtp.py`: the kind of attention that the model has, complete with the
    indexer of sparse attention; full attention where the model mixes it with recurrent layers; windows in MiMo V2 and
    Step.
    """
    count = _count(config)
    if not count:
        return ()
    if config.get("compress_ratios") is not None:
        return tuple(compressed.mtp_layers(config, count))
    pattern = config.root.get("mtp_hybrid_override_pattern", config.text.get("mtp_hybrid_override_pattern"))
    if isinstance(pattern, str):
        # Nemotron-H: each module is this pattern, of which attention (*) keeps something.
        count *= pattern.count("*")
    kind = _kind(config, layers)
    return (kind,) * count if kind is not None else ()


def _count(config: ConfigReader) -> int:
    for part in (config.text, config.root):
        for key in _COUNTS:
            value = part.get(key)
            if value is not None:
                count = config.whole(key, value, low=0)
                if count > _MOST:
                    raise config.error(key, f"{key}={count} is more than {_MOST}")
                if count:
                    return count
    return 0


def _kind(config: ConfigReader, layers: Sequence[Layer]) -> Layer | None:
    """The layer that MTP layers are like: the last of those that keep most kinds of state for tokens."""
    windows = any(state.span.kind == "window" for layer in layers for state in layer.states)
    windowed = windows and config.model_type.startswith(_WINDOWED)
    best: Layer | None = None
    for layer in layers:
        states = [state for state in layer.states if not isinstance(state, RecurrentState)]
        if not states or (windowed and any(state.span.kind == "full" for state in states)):
            continue
        if best is None or len(states) >= len(best.states):
            best = Layer(states=states)
    return best

"""Hybrids whose layers differ in more than their window: in heads, in dimensions, or in whose cache they read.

Those that differ in the window alone are in `window.py`.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any, cast

from poolplan._core import Attention, Layer, Span
from poolplan.errors import UnknownModelWarning
from poolplan.models.heads import attention, head_dim, num_kv_heads
from poolplan.models.registry import register_model
from poolplan.models.window import spans_of_layer_types, window_span

if TYPE_CHECKING:
    from collections.abc import Collection

    from poolplan.models.config import ConfigReader


# transformers 5.24.0, `Gemma4TextConfig.global_head_dim`.
_GLOBAL_HEAD_DIM = 512


@register_model(
    "mimo_v2_flash",
    "MiMoV2FlashForCausalLM",
    reads=(
        "attention_chunk_size",  # set, but nothing is chunked
        "hybrid_layer_pattern",
        "sliding_window",
        "sliding_window_size",
        "swa_head_dim",
        "swa_num_key_value_heads",
        "swa_v_head_dim",
    ),
)
def mimo_v2_flash(config: ConfigReader) -> list[Layer]:
    """Return layers of MiMo V2: a 1 in `hybrid_layer_pattern` is a window layer, with `swa_` heads and dimensions."""
    windowed = config.layer_flags("hybrid_layer_pattern", config.get("hybrid_layer_pattern"), config.num_layers)
    full = Layer(states=[attention(config)])
    window = Attention(
        num_kv_heads=config.integer("swa_num_key_value_heads"),
        head_dim=config.integer("swa_head_dim"),
        v_head_dim=config.integer("swa_v_head_dim"),
        span=window_span(config),
    )
    return [Layer(states=[window]) if flag else full for flag in windowed]


@register_model(
    "step3p5",
    "step3p5_text",
    "step3p7",
    "step3p7_text",
    "Step3p7FlashForCausalLM",
    reads=("attention_other_setting", "sliding_window"),
)
def step3(config: ConfigReader) -> list[Layer]:
    """Return layers of Step 3.5 and 3.7: window layers have the heads of `attention_other_setting`."""
    spans = spans_of_layer_types(config)
    if spans is None:
        raise config.error("layer_types", "layer_types is missing, and says which layers have a window")
    full = attention(config)
    if all(span == Span.full() for span in spans):
        return [Layer(states=[full])] * len(spans)
    other = config.mapping("attention_other_setting")
    if not other:
        warnings.warn(
            f"{config.name}: attention_other_setting is missing; its window layers are taken to have "
            f"the {full.num_kv_heads} KV heads of the others",
            UnknownModelWarning,
            stacklevel=2,
        )

    def window(span: Span) -> Attention:
        return Attention(
            num_kv_heads=config.whole("num_attention_groups", other.get("num_attention_groups", full.num_kv_heads)),
            head_dim=config.whole("head_dim", other.get("head_dim", full.head_dim)),
            span=span,
        )

    return [Layer(states=[full if span == Span.full() else window(span)]) for span in spans]


@register_model(
    "gemma4",
    "gemma4_text",
    "gemma4_unified_text",
    reads=(
        "global_head_dim",
        "num_global_key_value_heads",
        "num_kv_shared_layers",
        "per_layer_config",
        "sliding_window",
    ),
)
def gemma4(config: ConfigReader) -> list[Layer]:
    """Return layers of Gemma 4: full ones are wider and may have fewer heads, and the last ones may share a cache.

    `attention_k_eq_v` ties the weights of K and V; K is then normed and rotated and V is not, so both are stored.
    """
    windowed = _windowed(config, 6)
    windowed[-1] = False  # the class forces it, also where `layer_types` says otherwise
    window = _gemma_window(config, windowed)
    # Files that transformers wrote name what is their own layer by layer, and then no longer for all full layers.
    own = layer_overrides(config, {"head_dim", "num_key_value_heads"}) if "per_layer_config" in config.text else None
    if own is None:
        wider: dict[str, int] = {"head_dim": config.optional_integer("global_head_dim") or _GLOBAL_HEAD_DIM}
        heads = config.optional_integer("num_global_key_value_heads") if config.flag("attention_k_eq_v") else None
        if heads is not None:
            wider["num_key_value_heads"] = heads
        own = [{} if flag else wider for flag in windowed]
    states = [
        Attention(
            num_kv_heads=keys["num_key_value_heads"] if "num_key_value_heads" in keys else num_kv_heads(config),
            head_dim=keys["head_dim"] if "head_dim" in keys else head_dim(config),
            span=window if flag else Span.full(),
        )
        for flag, keys in zip(windowed, own, strict=True)
    ]
    return _shared(config, windowed, states, config.optional_integer("num_kv_shared_layers", low=0) or 0)


@register_model("gemma3n", "gemma3n_text", reads=("num_kv_shared_layers", "sliding_window"))
def gemma3n(config: ConfigReader) -> list[Layer]:
    """Return layers of Gemma 3n: every fifth is full, and the last ones share the cache of layers before them."""
    windowed = _windowed(config, 5)
    window = _gemma_window(config, windowed)
    states = [attention(config, window if flag else Span.full()) for flag in windowed]
    return _shared(config, windowed, states, config.integer("num_kv_shared_layers", low=0))


def _windowed(config: ConfigReader, period: int) -> list[bool]:
    """Whether each layer has a window: by `layer_types`, else all but the last of each `period` layers."""
    layers = config.num_layers
    kinds = config.sequence("layer_types")
    if kinds is None:
        return [(index + 1) % period != 0 for index in range(layers)]
    if len(kinds) < layers:
        raise config.error("layer_types", f"layer_types has {len(kinds)} entries for {layers} layers")
    for kind in kinds[:layers]:
        if kind not in ("full_attention", "sliding_attention"):
            raise config.error("layer_types", f"layer_types has {kind!r}, which is not planned yet")
    return [kind == "sliding_attention" for kind in kinds[:layers]]


def _gemma_window(config: ConfigReader, windowed: list[bool]) -> Span:
    if any(windowed) and config.optional_integer("sliding_window") is None:
        raise config.error("sliding_window", "sliding_window is missing, and some layers have a window")
    return window_span(config)


def _shared(config: ConfigReader, windowed: list[bool], states: list[Attention], shared: int) -> list[Layer]:
    """The last `shared` layers keep nothing: each reads the last layer of its kind before them.

    The classes of transformers 5.24.0 refuse a kind that has none (`kv_sharing_modes`), and so does SGLang 0.5.23.
    """
    first = len(states) - shared
    if set(windowed[max(first, 0) :]) - set(windowed[: max(first, 0)]):
        raise config.error(
            "num_kv_shared_layers",
            f"num_kv_shared_layers={shared} of {len(states)} layers leaves a kind of layer without a cache to share",
        )
    return [Layer(states=[state]) if index < first else Layer() for index, state in enumerate(states)]


def layer_overrides(config: ConfigReader, known: Collection[str]) -> list[dict[str, int]]:
    """Return what `per_layer_config` says of each layer: numbers that hold there instead of those for all.

    transformers 5.24.0, `HeterogeneousConfigMixin`: its keys are layers by number, written with leading zeros; what a
    layer does not name is as in the rest of the file.
    """
    layers = config.num_layers
    overrides: list[dict[str, int]] = [{} for _ in range(layers)]
    for key, values in config.mapping("per_layer_config").items():
        text = str(key)
        if not re.fullmatch("[0-9]{1,9}", text) or int(text) >= layers:
            raise config.error("per_layer_config", f"per_layer_config has {key!r}, which is none of {layers} layers")
        if not isinstance(values, dict):
            raise config.error("per_layer_config", f"per_layer_config has no object for layer {key!r}")
        for name, value in cast("dict[str, Any]", values).items():
            if name not in known:
                raise config.error(
                    "per_layer_config", f"per_layer_config has {name!r} of one layer, which is not planned yet"
                )
            overrides[int(text)][name] = config.whole(f"per_layer_config.{name}", value)
    return overrides

"""Hybrids whose window layers have heads or dimensions of their own. Those with equal heads are in `window.py`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from poolplan._core import Attention, Layer, Span
from poolplan.errors import UnknownModelWarning
from poolplan.models.heads import attention
from poolplan.models.registry import register_model
from poolplan.models.window import spans_of_layer_types, window_span

if TYPE_CHECKING:
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
    reads=("global_head_dim", "num_global_key_value_heads", "per_layer_config", "sliding_window"),
)
def gemma4(config: ConfigReader) -> list[Layer]:
    """Return layers of Gemma 4 without shared caches: full layers are wider, and may have fewer heads.

    `attention_k_eq_v` ties the weights of K and V; K is then normed and rotated and V is not, so both are stored.
    """
    spans = spans_of_layer_types(config)
    if spans is None:
        layers, window = config.num_layers, window_span(config)
        spans = [window if (i + 1) % 6 else Span.full() for i in range(layers)]
    spans[-1] = Span.full()  # the class forces it, also where `layer_types` says otherwise
    overrides = config.mapping("per_layer_config")
    if any(overrides.values()):
        raise config.error("per_layer_config", "per_layer_config gives layers of their own, which is not planned yet")
    tied = config.flag("attention_k_eq_v")
    heads = config.optional_integer("num_global_key_value_heads") if tied else None
    full = Attention(
        num_kv_heads=heads or config.integer("num_key_value_heads"),
        head_dim=config.optional_integer("global_head_dim") or _GLOBAL_HEAD_DIM,
    )
    return [Layer(states=[full if span == Span.full() else attention(config, span)]) for span in spans]

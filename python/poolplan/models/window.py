"""Layers with sliding windows and chunks: which layers have one. Window layers with other heads are in `hybrid.py`.

`layer_types` says it where a file has it; older files of the same models follow the rule of their config class
(transformers 5.24.0). A window of `w` tokens lets a token see itself and `w - 1` before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolplan._core import Layer, Span
from poolplan.models.heads import attention
from poolplan.models.registry import register_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolplan.models.config import ConfigReader

    Rule = Callable[[ConfigReader, int], list[bool]]

_FULL = {"full_attention", "attention"}
_WINDOW_KEYS = ("sliding_window", "sliding_window_size", "window_size")
# Values of `use_bidirectional_attention` by which half of a window looks ahead. Gemma 2 has the key and does not halve.
_LOOKS_AHEAD: dict[str, tuple[object, ...]] = {
    "gemma3": (True,),
    "gemma3_text": (True,),
    "gemma4": ("all",),
    "gemma4_text": ("all",),
    "gemma4_unified_text": ("all",),
}


def window_span(config: ConfigReader) -> Span:
    """Return the span of a window layer: full attention where the window is null or not below the context length."""
    tokens = config.optional_integer(*_WINDOW_KEYS)
    if tokens is None:
        return Span.full()
    if config.get("use_bidirectional_attention") in _LOOKS_AHEAD.get(config.model_type, ()):
        tokens = tokens // 2 + 1
    return _bounded(config, Span.window(tokens))


def chunk_span(config: ConfigReader) -> Span:
    """Return the span of a layer with chunked attention."""
    return _bounded(config, Span.chunk(config.integer("attention_chunk_size")))


def _bounded(config: ConfigReader, span: Span) -> Span:
    return span if span.tokens is not None and span.tokens < config.context_length else Span.full()


def spans_of_layer_types(config: ConfigReader) -> list[Span] | None:
    """Return the spans that `layer_types` names, one a layer, or None where the file has none.

    The list may be longer than the model, as MTP layers are in it (Step 3.7).
    """
    kinds = config.sequence("layer_types")
    if kinds is None:
        return None
    layers = config.num_layers
    if len(kinds) < layers:
        raise config.error("layer_types", f"layer_types has {len(kinds)} entries for {layers} layers")
    return [_span_of_kind(config, kind) for kind in kinds[:layers]]


def _span_of_kind(config: ConfigReader, kind: object) -> Span:
    if isinstance(kind, str) and kind in _FULL:
        return Span.full()
    if kind == "sliding_attention":
        if config.optional_integer(*_WINDOW_KEYS) is None:
            raise config.error("sliding_window", "layer_types names sliding_attention, and sliding_window is missing")
        return window_span(config)
    if kind == "chunked_attention":
        return chunk_span(config)
    raise config.error("layer_types", f"layer_types has {kind!r}, which is not planned yet")


def layers_by_rule(config: ConfigReader, rule: Rule) -> list[Layer]:
    """Return layers with equal heads: those with a window are named by `layer_types`, else by `rule`."""
    spans = spans_of_layer_types(config)
    if spans is None:
        window = window_span(config)
        spans = [window if windowed else Span.full() for windowed in rule(config, config.num_layers)]
    return [Layer(states=[attention(config, span)]) for span in spans]


def layers_if_used(config: ConfigReader, rule: Rule) -> list[Layer]:
    """Return layers as `layers_by_rule` does where `use_sliding_window` is true, and full ones elsewhere."""
    if config.flag("use_sliding_window"):
        return layers_by_rule(config, rule)
    return [Layer(states=[attention(config)])] * len(layers_by_rule(config, _no_layer))


def _no_layer(config: ConfigReader, layers: int) -> list[bool]:
    del config
    return [False] * layers


def _every_layer(config: ConfigReader, layers: int) -> list[bool]:
    """Mistral 7B v0.1: every layer has the window that `sliding_window` gives, and none where it is null."""
    del config
    return [True] * layers


def _all_but_every(period: int) -> Rule:
    """The last of each `period` layers is full: layer 0 has a window."""
    return lambda _, layers: [(i + 1) % period != 0 for i in range(layers)]


def _all_but_every_given(default: int) -> Rule:
    """As `_all_but_every`, with the period in `sliding_window_pattern`: a number, or letters (LLLG: L is local)."""

    def rule(config: ConfigReader, layers: int) -> list[bool]:
        pattern: Any = config.get("sliding_window_pattern", "_sliding_window_pattern")
        if isinstance(pattern, str):
            if not pattern or set(pattern) - set("LG"):
                raise config.error(
                    "sliding_window_pattern", f"sliding_window_pattern={pattern!r} is not made of L and G"
                )
            return [pattern[i % len(pattern)] == "L" for i in range(layers)]
        period = default if pattern is None else config.whole("sliding_window_pattern", pattern)
        return _all_but_every(period)(config, layers)

    return rule


def _all_but_every_fourth_from_the_last(config: ConfigReader, layers: int) -> list[bool]:
    """The last layer is full, and every fourth before it; what layer 0 is depends on the number of layers."""
    del config
    return [(layers - 1 - i) % 4 != 0 for i in range(layers)]


def _full_first(config: ConfigReader, layers: int) -> list[bool]:
    """The first of each four layers is full."""
    del config
    return [i % 4 != 0 for i in range(layers)]


def _from_max_window_layers(config: ConfigReader, layers: int) -> list[bool]:
    """The layers from `max_window_layers` on (the class code; its docstring says the opposite)."""
    first = config.integer("max_window_layers", low=0)
    return [i >= first for i in range(layers)]


def _below_max_window_layers(config: ConfigReader, layers: int) -> list[bool]:
    """Every other layer below `max_window_layers`."""
    end = config.integer("max_window_layers", low=0)
    return [(i + 1) % 2 != 0 and i < end for i in range(layers)]


def _without_rope(config: ConfigReader, layers: int) -> list[bool]:
    """SmolLM3: the layers without rotary positions (0 in `no_rope_layers`)."""
    flags = config.sequence("no_rope_layers")
    period = config.integer("no_rope_layer_interval")
    return [not flag for flag in flags[:layers]] if flags else [(i + 1) % period == 0 for i in range(layers)]


def _by_layout(config: ConfigReader, layers: int) -> list[bool]:
    """SmallThinker: 1 in `sliding_window_layout`."""
    return config.layer_flags("sliding_window_layout", config.get("sliding_window_layout"), layers)


def _gpt_neo(config: ConfigReader, layers: int) -> list[bool]:
    """`attention_layers` names each layer, or `attention_types` in repeated groups: [[["global", "local"], 12]]."""
    kinds = config.sequence("attention_layers")
    if kinds is None:
        groups: list[Any] = config.sequence("attention_types") or [[["global", "local"], (layers + 1) // 2]]
        try:
            # No more of a group than the model has layers, so that a wrong number cannot ask for all memory.
            repeated = [[*group] * min(config.whole("attention_types", times), layers) for group, times in groups]
        except (TypeError, ValueError):
            raise config.error("attention_types", "attention_types is not a list of [kinds, times]") from None
        kinds = [kind for group in repeated for kind in group]
    if len(kinds) < layers or any(kind not in ("global", "local") for kind in kinds):
        raise config.error("attention_layers", f"attention_layers does not name {layers} layers global or local")
    return [kind == "local" for kind in kinds[:layers]]


def _only_layer_types(config: ConfigReader, layers: int) -> list[bool]:
    """For classes whose rule is not known here: the file must say it."""
    raise config.error("layer_types", f"layer_types is missing, and says which of {layers} layers have a window")


_RULES: dict[str, Rule] = {
    (
        "mistral Mistral3ForConditionalGeneration mixtral ministral ministral3 starcoder2 "
        "phi3 phi3_v phi3small phi4mm phi4_multimodal phimoe"
    ): _every_layer,
    "gemma2 vaultgemma gpt_oss": _all_but_every(2),
    "gemma3 gemma3_text": _all_but_every_given(6),
    "cohere2 cohere2_moe olmo3 exaone4 exaone4_5 exaone4_5_text exaone_moe": _all_but_every_given(4),
    "afmoe": _all_but_every(4),
    "muse_glimmer_text": _all_but_every_fourth_from_the_last,
    "granite_swa cwm": _full_first,
    "dots1": _from_max_window_layers,
    "smallthinker SmallThinkerForCausalLM": _by_layout,
    "gpt_neo": _gpt_neo,
    "laguna mellum muse_spark_text": _only_layer_types,
}

# Rules of classes that drop every window, those in `layer_types` too, unless `use_sliding_window` is true.
_RULES_IF_USED: dict[str, Rule] = {
    (
        "qwen2 qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_5_omni_text qwen2_audio "
        "qwen3 qwen3_vl qwen3_vl_text qwen3_vl_moe_text qwen3_asr_text qwen3_omni_moe_text mimo minicpmv"
    ): _from_max_window_layers,
    "qwen2_moe": _below_max_window_layers,
    "qwen3_moe": _every_layer,
    "smollm3": _without_rope,
}

_READS = (
    "sliding_window",
    "sliding_window_size",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "sliding_window_layout",
    "attention_layers",
    "attention_types",
    "no_rope_layers",
)


def _register(names: str, rule: Rule, layers_of: Callable[[ConfigReader, Rule], list[Layer]]) -> None:
    def read(config: ConfigReader) -> list[Layer]:
        return layers_of(config, rule)

    read.__doc__ = rule.__doc__ or layers_of.__doc__
    register_model(*names.split(), reads=_READS)(read)


for _names, _rule in _RULES.items():
    _register(_names, _rule, layers_by_rule)
for _names, _rule in _RULES_IF_USED.items():
    _register(_names, _rule, layers_if_used)


@register_model("llama4", "llama4_text", reads=("no_rope_layers", "attention_chunk_size"))
def llama4(config: ConfigReader) -> list[Layer]:
    """Return layers of Llama 4: chunked where rotary positions are used (1 in `no_rope_layers`), else full."""
    layers = config.num_layers
    spans = spans_of_layer_types(config)
    if spans is None:
        if config.sequence("no_rope_layers"):
            chunked = config.layer_flags("no_rope_layers", config.get("no_rope_layers"), layers)
        else:
            chunked = _all_but_every(config.integer("no_rope_layer_interval"))(config, layers)
        spans = [chunk_span(config) if flag else Span.full() for flag in chunked]
    return [Layer(states=[attention(config, span)]) for span in spans]

"""Sparse attention that keeps an index key beside every token: DSA, Dots 3, MiniMax M3. Plain MLA is in `latent.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from poolplan._core import IndexKey, LatentAttention, Layer
from poolplan.models.heads import attention
from poolplan.models.hybrid import layer_overrides
from poolplan.models.latent import latent_decoder
from poolplan.models.registry import register_model
from poolplan.models.window import window_span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolplan.models.config import ConfigReader


@register_model(
    "axk2",
    "deepseek_v32",
    "glm_moe_dsa",
    "hy_v4",
    reads=("index_head_dim", "index_n_heads", "index_topk", "indexer_types", "kv_lora_rank"),
)
def dsa_decoder(config: ConfigReader) -> Sequence[Layer]:
    """Return layers of DSA: a latent row each, and an index key where a layer finds its tokens itself.

    Without `index_topk` the model is plain MLA.
    """
    if config.get("index_topk") is None:
        return latent_decoder(config)
    for kind in config.sequence("layer_types") or []:
        if kind not in ("indexed_attention", "full_attention"):
            raise config.error("layer_types", f"layer_types has {kind!r}, which is not planned yet")
    latent = LatentAttention(
        kv_lora_rank=config.integer("kv_lora_rank"),
        qk_rope_head_dim=config.integer("qk_rope_head_dim", low=0),
        sparse=True,
    )
    key = IndexKey(head_dim=config.integer("index_head_dim"))
    own, shared = Layer(states=[latent, key]), Layer(states=[latent])
    return [own if owns_indexer(config, index) else shared for index in range(config.num_layers)]


def owns_indexer(config: ConfigReader, index: int) -> bool:
    """Return whether a layer finds its tokens itself, instead of taking those of a layer before it.

    SGLang 0.5.23, `dsa_layer_skips_topk`: the first of `indexer_types`, `index_topk_pattern` and `index_topk_freq` that
    says so. Of GLM-5.2's 78 layers 21 do.
    """
    for key, other in (("indexer_types", "shared"), ("index_topk_pattern", "S")):
        kinds: Any = config.get(key)
        if kinds is not None:
            if not isinstance(kinds, str | list) or len(cast("str", kinds)) < config.num_layers:
                raise config.error(key, f"{key} does not have an entry for each of {config.num_layers} layers")
            return cast("str", kinds)[index] != other
    frequency = config.optional_integer("index_topk_freq") or 1
    offset = config.optional_integer("index_skip_topk_offset", low=0)
    return max(index - (1 if offset is None else offset - 1), 0) % frequency == 0


# What may differ between the layers of Dots 3; the query heads and the widths that K and V expand to are not kept.
_DOTS3_OVERRIDES = {
    "head_dim",
    "kv_lora_rank",
    "num_attention_heads",
    "num_key_value_heads",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
}


@register_model(
    "dots3_note",
    "dots3_note_text",
    "Dots3NoteForCausalLM",
    reads=(
        "index_head_dim",
        "index_n_heads",
        "index_topk",
        "kv_lora_rank",
        "per_layer_config",
        "sliding_window",
        "sliding_window_size",
        "swa_head_dim",
        "swa_num_key_value_heads",
        "swa_v_head_dim",
    ),
)
def dots3(config: ConfigReader) -> list[Layer]:
    """Return layers of Dots 3: DSA, and between them plain MLA with a window and a latent of its own size.

    Released files name the latent of window layers in `swa_` keys, files that transformers wrote in `per_layer_config`.
    """
    rank, rope = config.integer("kv_lora_rank"), config.integer("qk_rope_head_dim", low=0)
    kinds = _dots3_kinds(config)
    own: list[dict[str, int]] = [{}] * len(kinds)
    if "per_layer_config" in config.text:
        own = layer_overrides(config, _DOTS3_OVERRIDES)
    elif "sliding_attention" in kinds:
        narrow = _dots3_window_latent(config)
        own = [narrow if kind == "sliding_attention" else {} for kind in kinds]
    if "sliding_attention" in kinds and config.optional_integer("sliding_window", "sliding_window_size") is None:
        raise config.error("sliding_window", "sliding_window is missing, and some layers have a window")
    key = [IndexKey(head_dim=config.integer("index_head_dim"))] if "indexed_attention" in kinds else []
    layers: list[Layer] = []
    for kind, keys in zip(kinds, own, strict=True):
        latent = LatentAttention(
            kv_lora_rank=keys.get("kv_lora_rank", rank),
            qk_rope_head_dim=keys.get("qk_rope_head_dim", rope),
            span=window_span(config) if kind == "sliding_attention" else None,
            sparse=kind == "indexed_attention",
        )
        layers.append(Layer(states=[latent, *key] if kind == "indexed_attention" else [latent]))
    return layers


def _dots3_kinds(config: ConfigReader) -> list[str]:
    """The kind of each layer.

    transformers 5.24.0, `Dots3NoteTextConfig`: without `layer_types`, the first two layers and then every fourth from
    layer 5 on have no window. Released files call those `full_attention`, and `use_dsa` says whether they are DSA.
    """
    layers = config.num_layers
    named: list[Any] | None = config.sequence("layer_types")
    released = "per_layer_config" not in config.text
    if named is None:
        windows = config.get("use_sliding_window") is None or config.flag("use_sliding_window")
        named = [
            "sliding_attention" if windows and i >= 2 and i % 4 != 1 else "indexed_attention" for i in range(layers)
        ]
    if len(named) < layers:
        raise config.error("layer_types", f"layer_types has {len(named)} entries for {layers} layers")
    for kind in named[:layers]:
        if kind not in ("full_attention", "indexed_attention", "sliding_attention"):
            raise config.error("layer_types", f"layer_types has {kind!r}, which is not planned yet")
    kinds = cast("list[str]", named[:layers])
    if config.get("use_dsa") is None and not released:
        return kinds
    full = "indexed_attention" if config.get("use_dsa") is None or config.flag("use_dsa") else "full_attention"
    return [kind if kind == "sliding_attention" else full for kind in kinds]


def _dots3_window_latent(config: ConfigReader) -> dict[str, int]:
    """The latent of window layers. It has no default: those of the classes of transformers and SGLang differ."""
    rank = config.integer("swa_kv_lora_rank")
    rope = config.optional_integer("swa_qk_rope_head_dim", low=0)
    if rope is None:
        rope = config.integer("swa_head_dim") - config.integer("swa_qk_nope_head_dim")
    if rope < 0:
        raise config.error("swa_head_dim", "swa_head_dim is less than swa_qk_nope_head_dim")
    return {"kv_lora_rank": rank, "qk_rope_head_dim": rope}


@register_model(
    "minimax_m3", "minimax_m3_vl", "MiniMaxM3SparseForConditionalGeneration", reads=["sparse_attention_config"]
)
def minimax_m3(config: ConfigReader) -> list[Layer]:
    """Return layers of MiniMax M3: all keep every token, and sparse ones a 16-bit index key of one head besides.

    An index value is kept too where `sparse_disable_index_value` is 0. SGLang 0.5.23, `pool_configurator`: 57 sparse
    layers take 14,592 bytes a token.
    """
    settings = config.mapping("sparse_attention_config")
    layers = config.num_layers
    plain = attention(config)
    if not settings.get("use_sparse_attention"):
        return [Layer(states=[plain])] * layers
    key = IndexKey(head_dim=config.whole("sparse_index_dim", settings.get("sparse_index_dim")), format="bfloat16")
    sparse = config.layer_flags("sparse_attention_freq", settings.get("sparse_attention_freq"), layers)
    key_only = config.layer_flags("sparse_disable_index_value", settings.get("sparse_disable_index_value"), layers)
    kept = {(False, False): [], (False, True): [], (True, False): [key, key], (True, True): [key]}
    return [Layer(states=[plain, *kept[flags]]) for flags in zip(sparse, key_only, strict=True)]

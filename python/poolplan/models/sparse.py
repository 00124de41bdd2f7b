"""Sparse attention that keeps an index key beside every token: DSA and MiniMax M3. Plain MLA is in `latent.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from poolplan._core import IndexKey, LatentAttention, Layer
from poolplan.models.heads import attention
from poolplan.models.latent import latent_decoder
from poolplan.models.registry import register_model

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
    return [own if _owns_indexer(config, index) else shared for index in range(config.num_layers)]


def _owns_indexer(config: ConfigReader, index: int) -> bool:
    """Whether a layer finds its tokens itself, instead of taking those of a layer before it.

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

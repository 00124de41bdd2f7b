"""Plain decoders: MHA, GQA and MQA with every token in every layer. Windows are in `window.py`, MLA in `latent.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from poolplan._core import Attention, Layer
from poolplan.models.heads import attention, head_dim
from poolplan.models.registry import register_model

if TYPE_CHECKING:
    from poolplan.models.config import ConfigReader

# Keys that hint at windows and are set in plain checkpoints, where the model's class does not read them.
_UNREAD = {"no_rope_layers": "rotary positions only"}

PLAIN = """
apertus aquila arcee aria_text baichuan biogpt bitnet bloom chatglm codegen cohere dbrx deepseek diffllama
ernie4_5 ernie4_5_moe ernie4_5_moe_vl ernie4_5_vl_moe_text exaone falcon falcon_perception flex_olmo gemma glm glm4
glm4_moe glm4v glm4v_moe glm4v_moe_text glm4v_text gpt2 gpt_bigcode gpt_neox gpt_neox_japanese gptj granite granitemoe
granitemoeshared helium hy_v3 internlm internlm2 internlm3 jais2 jetmoe
llama minicpm minimax_m2 mpt nanochat nemotron olmo olmo2 olmoe opt orion persimmon phi phi-msft qwen RefinedWeb
RefinedWebModel seed_oss solar_open stablelm stablelm_epoch xverse yi
FalconPerceptionForSegmentation RWForCausalLM
""".split()


@register_model(*PLAIN, reads=_UNREAD)
def plain_decoder(config: ConfigReader) -> list[Layer]:
    """Return layers that are all alike and keep every token."""
    from poolplan.models.window import spans_of_layer_types

    state = attention(config)
    spans = spans_of_layer_types(config)
    if spans is None:
        return [Layer(states=[state])] * config.num_layers
    return [Layer(states=[attention(config, span)]) for span in spans]


@register_model(
    "hunyuan",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "HunYuanMoEV1ForCausalLM",
    reads=(*_UNREAD, "use_cla"),
)
def hunyuan(config: ConfigReader) -> list[Layer]:
    """Return layers of Hunyuan: with `use_cla` only the first of each `cla_share_factor` keeps what all of them read.

    SGLang 0.5.23, `HunYuanDecoderLayer`: the others have no weights for K and V.
    """
    layers = plain_decoder(config)
    factor = config.optional_integer("cla_share_factor") or 1 if config.flag("use_cla") else 1
    return [layer if index % factor == 0 else Layer() for index, layer in enumerate(layers)]


@register_model("nemotron-nas", "DeciLMForCausalLM", reads=["block_configs"])
def nemotron_nas(config: ConfigReader) -> list[Layer]:
    """Return layers of a searched architecture: each has its own heads, and some have no attention."""
    blocks = config.sequence("block_configs") or []
    if len(blocks) != config.num_layers:
        raise config.error("block_configs", f"block_configs has {len(blocks)} entries for {config.num_layers} layers")
    return [Layer(states=_searched_states(config, block)) for block in blocks]


def _searched_states(config: ConfigReader, block: Any) -> list[Attention]:
    settings: Any = cast("dict[str, Any]", block).get("attention") if isinstance(block, dict) else None
    if not isinstance(settings, dict):
        raise config.error("block_configs", "an entry of block_configs has no attention object")
    settings = cast("dict[str, Any]", settings)
    if settings.get("no_op") or settings.get("replace_with_linear"):
        return []
    queries_per_head = config.whole("n_heads_in_group", settings.get("n_heads_in_group"))
    heads = config.integer("num_attention_heads")
    if heads % queries_per_head:
        raise config.error("block_configs", f"n_heads_in_group={queries_per_head} does not divide {heads} heads")
    return [Attention(num_kv_heads=heads // queries_per_head, head_dim=head_dim(config))]

"""Recurrent families beside those of `mamba.py` and `linear.py`: GLA, Qwen4-Exp, and those that are only refused.

Without a name here their files look like plain decoders: few of them have a key that says what their layers keep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolplan._core import Layer, RecurrentState, StateTensor
from poolplan.models import state_forms as forms
from poolplan.models.heads import attention
from poolplan.models.mixed import alternate, linear_by_name
from poolplan.models.registry import register_model

if TYPE_CHECKING:
    from poolplan.models.config import ConfigReader


@register_model("gla", "GLAForCausalLM")
def gla(config: ConfigReader) -> list[Layer]:
    """Return layers of gated linear attention: a matrix for each head, and no convolution unless it is asked for.

    flash-linear-attention, `GatedLinearAttention`: fewer KV heads are repeated before the state, so they do not count.
    """
    if config.get("attn") is not None:
        raise config.error("attn", "attn gives some layers attention of their own, which is not planned yet")
    if config.flag("use_short_conv"):
        raise config.error("use_short_conv", "use_short_conv keeps inputs of three convolutions, not planned yet")
    heads = config.integer("num_heads")
    key_dim, value_dim = (_head_dim(config, heads, key) for key in ("expand_k", "expand_v"))
    state = RecurrentState(tensors=[StateTensor(num_heads=heads, head_elements=key_dim * value_dim)])
    return [Layer(states=[state])] * config.num_layers


def _head_dim(config: ConfigReader, heads: int, key: str) -> int:
    """The elements of a head when all heads together are the width times what `key` says, cut to a whole number."""
    factor = config.get(key)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 64:
        raise config.error(key, f"{key}={factor!r} is not a share of the width")
    dim, rest = divmod(int(config.integer("hidden_size") * factor), heads)
    if rest or not dim:
        raise config.error(key, f"{key}={factor!r} of the width is not {heads} heads")
    return dim


# transformers 5.24.0, `Qwen4ExpTextConfig`: all of these or none.
_QSA_KEYS = ("indexer_n_heads", "indexer_kv_heads", "indexer_head_dim", "indexer_budget", "indexer_compress_ratio")
# SGLang 0.5.23, `Qwen4ExpTextConfig.layers_block_type`.
_QSA_LAYERS = ("indexed_attention", "qwen_sparse_attention")


@register_model(
    "qwen4_exp",
    "qwen4_exp_text",
    reads=("full_attention_interval", "linear_num_key_heads", "linear_num_value_heads"),
)
def qwen4_exp(config: ConfigReader) -> list[Layer]:
    """Return layers of Qwen4-Exp: GDN, and attention every fourth layer. The keys of its indexer are not planned yet.

    Neither are layers that embed n-grams (`ple_layer_ids`): they keep inputs of a second convolution, and tokens.
    """
    if config.sequence("ple_layer_ids"):
        raise config.error("ple_layer_ids", "ple_layer_ids adds a second convolution, which is not planned yet")
    for key in _QSA_KEYS:
        if config.get(key) is not None:
            raise config.error(key, f"{key} adds compressed index keys, which are not planned yet")
    kinds = config.sequence("layer_types")
    interval = config.optional_integer("full_attention_interval") or 4
    if kinds is None:
        linear = [(index + 1) % interval != 0 for index in range(config.num_layers)]
    else:
        kinds = ["full_attention" if kind in _QSA_LAYERS else kind for kind in kinds]
        linear = linear_by_name(config, "layer_types", kinds)
    state = forms.gated_delta_net(
        (config.integer("linear_num_key_heads"), config.integer("linear_key_head_dim")),
        (config.integer("linear_num_value_heads"), config.integer("linear_value_head_dim")),
        config.integer("linear_conv_kernel_dim"),
    )
    return alternate(linear, attention(config), state)


# Zaya: SGLang 0.5.23 and transformers 5.24.0 count its layers differently. The others are in neither of them, nor in vLLM
# 0.33.0: there is no runtime to hold the shapes of their states against.
_REFUSED = """
delta_net gated_deltanet gated_deltaproduct gsa hgrn hgrn2 kda lightnet linear_attn mesa_net retnet
rwkv6 rwkv7 yuan YuanForCausalLM zaya ZayaForCausalLM
""".split()


@register_model(*_REFUSED)
def refused(config: ConfigReader) -> list[Layer]:
    """Refuse a model whose layers keep a state that is not known exactly."""
    raise config.error(
        "model_type", f"{config.model_type or 'the model'} keeps a state for each request, which is not planned yet"
    )

"""Linear attention and its kin, beside attention or alone: GDN, KDA, lightning, short convolutions, RWKV, xLSTM, GLA.

The tensors of a state are in `state_forms.py`; Mamba is in `mamba.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from poolplan._core import Attention, IndexKey, LatentAttention, Layer, Span
from poolplan.models import state_forms as forms
from poolplan.models.heads import attention, attention_heads, head_dim, num_kv_heads, width
from poolplan.models.mixed import alternate, linear_by_name
from poolplan.models.registry import register_model
from poolplan.models.sparse import owns_indexer

if TYPE_CHECKING:
    from poolplan._core import RecurrentState
    from poolplan.models.config import ConfigReader

_GDN_KEYS = ("full_attention_interval", "linear_num_key_heads", "linear_num_value_heads", "sliding_window")


@register_model(
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_text",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "Qwen3_5MoeForCausalLM",
    reads=_GDN_KEYS,
)
def gated_delta_net(config: ConfigReader) -> list[Layer]:
    """Return layers of Qwen3-Next and Qwen3.5: GDN, and full attention every fourth layer."""
    if config.get("use_sliding_window") and config.optional_integer("sliding_window") is not None:
        raise config.error("sliding_window", "sliding_window is used, and which layers it is of is not known")
    kinds = config.sequence("layer_types")
    interval = config.optional_integer("full_attention_interval") or 4
    linear = (
        linear_by_name(config, "layer_types", kinds)
        if kinds
        else [(index + 1) % interval != 0 for index in range(config.num_layers)]
    )
    state = forms.gated_delta_net(
        (config.integer("linear_num_key_heads"), config.integer("linear_key_head_dim")),
        (config.integer("linear_num_value_heads"), config.integer("linear_value_head_dim")),
        config.integer("linear_conv_kernel_dim"),
    )
    return alternate(linear, attention(config), state)


@register_model("olmo_hybrid", reads=("full_attention_interval", "linear_num_key_heads", "linear_num_value_heads"))
def olmo_hybrid(config: ConfigReader) -> list[Layer]:
    """Return layers of OLMo Hybrid: GDN, and full attention every fourth layer, or last where there are fewer.

    transformers 5.24.0, `OlmoHybridConfig`: heads that a file does not name are those of attention, with three quarters
    of the width in all keys and twice that in all values; it has no interval.
    """
    layers, kinds = config.num_layers, config.sequence("layer_types")
    if kinds:
        linear = linear_by_name(config, "layer_types", kinds)
    else:
        linear = [index % 4 != 3 for index in range(layers)]
        linear[-1] = linear[-1] and layers > 3
    heads = attention_heads(config)
    key_heads = _own(config, "linear_num_key_heads") or heads
    key_dim = _own(config, "linear_key_head_dim") or 3 * width(config) // (4 * key_heads)
    values = (_own(config, "linear_num_value_heads") or heads, _own(config, "linear_value_head_dim") or 2 * key_dim)
    state = forms.gated_delta_net((key_heads, key_dim), values, config.integer("linear_conv_kernel_dim"))
    own = Attention(num_kv_heads=_own(config, "num_key_value_heads") or heads, head_dim=head_dim(config))
    return alternate(linear, own, state)


@register_model(
    "kimi_linear", "kimi_k3", "kimi_k3_text", reads=("kv_lora_rank", "linear_attn_config", "linear_num_heads")
)
def kimi_linear(config: ConfigReader) -> list[Layer]:
    """Return layers of Kimi Linear and K3: KDA, and MLA in the layers of `full_attn_layers`, which count from 1."""
    settings = config.mapping("linear_attn_config")
    kinds = config.sequence("layer_types")
    if settings:
        linear = _linear_by_lists(config, settings, first=1)
    elif kinds:
        linear = linear_by_name(config, "layer_types", kinds)
    else:
        raise config.error("linear_attn_config", "linear_attn_config is missing, and says which layers are linear")
    return alternate(linear, _latent(config), _kda(config, settings))


def _linear_by_lists(config: ConfigReader, settings: dict[str, Any], first: int) -> list[bool]:
    """`kda_layers` and `full_attn_layers` name every layer once."""
    named: dict[int, bool] = {}
    for key, linear in (("kda_layers", True), ("full_attn_layers", False)):
        numbers = settings.get(key)
        if not isinstance(numbers, list):
            raise config.error("linear_attn_config", f"linear_attn_config.{key} is not a list")
        for number in cast("list[Any]", numbers):
            named[config.whole(f"linear_attn_config.{key}", number, low=0) - first] = linear
    if sorted(named) != list(range(config.num_layers)):
        raise config.error(
            "linear_attn_config", f"linear_attn_config does not name {config.num_layers} layers once each"
        )
    return [named[index] for index in range(config.num_layers)]


def _kda(config: ConfigReader, settings: dict[str, Any]) -> RecurrentState:
    if settings:
        heads, dim, kernel = (
            config.whole(f"linear_attn_config.{key}", settings.get(key))
            for key in ("num_heads", "head_dim", "short_conv_kernel_size")
        )
        return forms.delta_attention(heads, dim, kernel)
    return forms.delta_attention(
        config.integer("linear_num_heads"), config.integer("linear_head_dim"), config.integer("linear_conv_kernel_dim")
    )


def _latent(config: ConfigReader, *, sparse: bool = False, nope: bool = False) -> LatentAttention:
    return LatentAttention(
        kv_lora_rank=config.integer("kv_lora_rank"),
        qk_rope_head_dim=0 if nope else config.integer("qk_rope_head_dim", low=0),
        sparse=sparse,
    )


@register_model(
    "glm5_next",
    "glm5_next_text",
    reads=(
        "index_head_dim",
        "index_n_heads",
        "index_topk",
        "indexer_types",
        "kv_lora_rank",
        "linear_attn_config",
        "linear_num_heads",
    ),
)
def glm5_next(config: ConfigReader) -> list[Layer]:
    """Return layers of GLM-5.3: KDA, and sparse MLA whose index keys are one for every `index_kpool` tokens.

    SGLang 0.5.23, `get_dsa_index_cache`: pages of the key cache hold a key of 132 bytes for each `index_kpool` tokens.
    """
    if config.get("index_kpool_compress"):
        raise config.error("index_kpool_compress", "index_kpool_compress keeps tails for each request, not planned yet")
    settings = config.mapping("linear_attn_config")
    kinds = config.sequence("layer_types")
    if kinds:
        kinds = ["attention" if kind == "indexed_attention" else kind for kind in kinds]
        linear = linear_by_name(config, "layer_types", kinds)
    else:
        linear = _linear_by_lists(config, settings, first=0)
    state = _kda(config, settings)
    if config.get("index_topk") is None:
        return alternate(linear, _latent(config), state)
    pool = config.optional_integer("index_kpool") or 1
    key = IndexKey(head_dim=config.integer("index_head_dim"), span=Span.compressed(pool) if pool > 1 else Span.full())
    latent = _latent(config, sparse=True)
    own, shared = Layer(states=[latent, key]), Layer(states=[latent])
    return [
        Layer(states=[state]) if flag else own if owns_indexer(config, index) else shared
        for index, flag in enumerate(linear)
    ]


@register_model(
    "bailing_hybrid",
    "bailing_moe_linear",
    "bailing_moe_linear_v2",
    "BailingMoeLinearV2ForCausalLM",
    "BailingMoeLinearForCausalLM",
    reads=("kv_lora_rank", "layer_group_size", "linear_num_heads"),
)
def bailing_linear(config: ConfigReader) -> list[Layer]:
    """Return layers of Ring and Ling linear: lightning attention or KDA, and softmax attention last in each group.

    Where groups do not divide the layers, those after the last group have softmax attention too. `layer_group_size` may
    also be a list with a 1 for each linear layer. KDA is meant where `short_conv_kernel_size` is set (SGLang 0.5.23).
    """
    layers, group = config.num_layers, config.get("layer_group_size")
    kinds = config.sequence("layer_types")
    if kinds:
        linear = linear_by_name(config, "layer_types", kinds)
    elif isinstance(group, list):
        linear = config.layer_flags("layer_group_size", cast("object", group), layers)
    else:
        period = config.integer("layer_group_size")
        linear = [(index + 1) % period != 0 and index < layers // period * period for index in range(layers)]
    kernel = config.optional_integer("short_conv_kernel_size")
    # Files that transformers wrote have the rotary dimension in `head_dim`, and the state's own under these names.
    heads = config.optional_integer("linear_num_heads") or attention_heads(config)
    dim = config.optional_integer("linear_head_dim", "head_dim") or width(config) // heads
    state = forms.linear_attention(heads, dim, dim) if kernel is None else forms.delta_attention(heads, dim, kernel)
    latent = config.get("kv_lora_rank") is not None
    own = _latent(config, nope=config.flag("use_mla_nope")) if latent else attention(config)
    return alternate(linear, own, state)


@register_model(
    "minimax",
    "minimax_m1",
    "minimax_text_01",
    "MiniMaxM1ForCausalLM",
    "MiniMaxText01ForCausalLM",
    reads=("attn_type_list", "linear_attn_alpha_factor", "linear_attn_beta_factor", "sliding_window"),
)
def minimax(config: ConfigReader) -> list[Layer]:
    """Return layers of MiniMax Text-01 and M1: softmax, or lightning attention with a state for every query head."""
    kinds = config.sequence("layer_types")
    if config.get("attn_type_list") is not None:
        flags = config.layer_flags("attn_type_list", config.get("attn_type_list"), config.num_layers)
        linear = [not softmax for softmax in flags]
    elif kinds:
        linear = linear_by_name(config, "layer_types", kinds)
    else:
        raise config.error("attn_type_list", "attn_type_list and layer_types are missing: they say what each layer is")
    heads = attention_heads(config)
    return alternate(linear, attention(config), forms.linear_attention(heads, head_dim(config), head_dim(config)))


@register_model("lfm2", "lfm2_moe", "lfm2_vl", reads=("conv_L_cache",))
def lfm2(config: ConfigReader) -> list[Layer]:
    """Return layers of LFM2: a short convolution each, or attention in those that `layer_types` says so of."""
    kinds = config.sequence("layer_types")
    indices = config.sequence("full_attn_idxs")
    if kinds:
        linear = linear_by_name(config, "layer_types", kinds)
    elif indices is not None:
        full = {config.whole("full_attn_idxs", index, low=0) for index in indices}
        linear = [index not in full for index in range(config.num_layers)]
    elif config.model_type == "lfm2_moe":
        raise config.error("layer_types", "layer_types and full_attn_idxs are missing: they say what each layer is")
    else:
        linear = [False] * config.num_layers
    state = forms.short_convolution(config.integer("hidden_size"), config.integer("conv_L_cache"))
    return alternate(linear, attention(config), state)


def _own(config: ConfigReader, key: str) -> int | None:
    """The number that the file itself has: what its class fills in follows from other keys."""
    value = config.text.get(key)
    return None if value is None else config.whole(key, value)


@register_model("rwkv", "rwkv5", reads=("rescale_every",))
def rwkv(config: ConfigReader) -> list[Layer]:
    """Return layers of RWKV 4 and 5: state only."""
    if config.model_type == "rwkv":
        state = forms.rwkv4(width(config), _own(config, "attention_hidden_size") or width(config))
    else:
        state = forms.rwkv5(config, width(config))
    return [Layer(states=[state])] * config.num_layers


@register_model("xlstm")
def xlstm(config: ConfigReader) -> list[Layer]:
    """Return layers of xLSTM: state only (transformers 5.24.0, `xLSTMCache`)."""
    heads = config.integer("num_heads")
    inner = config.integer("embedding_dim", "hidden_size")
    dims = [forms.head_share(config, inner, heads, key) for key in ("qk_dim_factor", "v_dim_factor")]
    state = forms.mlstm(heads, *dims)
    return [Layer(states=[state])] * config.layer_count("num_blocks", "num_hidden_layers")


@register_model("recurrent_gemma", reads=("attention_window_size", "block_types", "layers_block_type", "lru_width"))
def recurrent_gemma(config: ConfigReader) -> list[Layer]:
    """Return layers of RecurrentGemma: an RG-LRU each, and attention with a window in every third.

    transformers 5.24.0, `RecurrentGemmaRecurrentBlock`: the last inputs of a convolution, and a row in 32 bits.
    """
    kinds: list[Any] | None = config.sequence("layers_block_type")
    if not kinds:
        pattern = config.sequence("block_types") or []
        if not pattern:
            raise config.error("block_types", "block_types is missing, and says what each layer is")
        kinds = [pattern[index % len(pattern)] for index in range(config.num_layers)]
    state = forms.rg_lru(config.optional_integer("lru_width") or width(config), config.integer("conv1d_width"))
    heads = attention_heads(config)
    if width(config) % heads:
        raise config.error("num_attention_heads", f"{heads} heads do not divide a width of {width(config)}")
    window = Span.window(config.integer("attention_window_size"))
    # The class divides, whatever `head_dim` says.
    own = Attention(num_kv_heads=num_kv_heads(config), head_dim=width(config) // heads, span=window)
    kinds = ["attention" if kind == "sliding_attention" else kind for kind in kinds]
    return alternate(linear_by_name(config, "block_types", kinds), own, state)


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
    state = forms.linear_attention(heads, key_dim, value_dim)
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

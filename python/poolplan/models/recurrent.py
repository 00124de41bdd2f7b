"""Recurrent state, alone or beside attention: which layers keep one, and of which form.

The forms are in `state_forms.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from poolplan._core import Attention, IndexKey, LatentAttention, Layer, Span
from poolplan.models import state_forms as forms
from poolplan.models.heads import attention, attention_heads, head_dim, num_kv_heads, width
from poolplan.models.registry import register_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolplan._core import RecurrentState
    from poolplan.models.config import ConfigReader
    from poolplan.models.state import State

_ATTENTION = frozenset({"attention", "full_attention", "*"})
_LINEAR = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent", "M"})
_NOTHING = frozenset({"mlp", "moe", "-", "E"})
_HYBRID = frozenset({"hybrid"})


@register_model("mamba", "falcon_mamba", reads=("conv_kernel", "state_size", "time_step_rank"))
def mamba(config: ConfigReader) -> list[Layer]:
    """Return layers of Mamba: state only. `expand` is stale where `intermediate_size` is given (Falcon Mamba)."""
    inner = config.optional_integer("intermediate_size") or config.integer("expand") * config.integer("hidden_size")
    state = forms.mamba1(inner, config.integer("state_size"), config.integer("conv_kernel"))
    return [Layer(states=[state])] * config.num_layers


@register_model("mamba2", reads=("conv_kernel", "state_size", "time_step_rank"))
def mamba2(config: ConfigReader) -> list[Layer]:
    """Return layers of Mamba 2: state only."""
    inner = config.integer("expand") * config.integer("hidden_size")
    state = forms.mamba2(
        config,
        inner,
        (config.integer("num_heads"), config.integer("head_dim"), config.integer("state_size")),
        config.integer("n_groups"),
        config.integer("conv_kernel"),
    )
    return [Layer(states=[state])] * config.num_layers


# state-spaces/mamba 2.2: the defaults of `Mamba`, and of `Mamba2`.
_MAMBA_SSM = {"d_state": 16, "d_conv": 4, "expand": 2}
_MAMBA2_SSM = {"d_state": 128, "d_conv": 4, "expand": 2, "headdim": 64, "ngroups": 1}


@register_model("mamba_ssm", reads=("ssm_cfg",))
def mamba_ssm(config: ConfigReader) -> list[Layer]:
    """Return layers of the files that the mamba package itself writes, with `ssm_cfg` for what is not as usual."""
    if config.sequence("attn_layer_idx"):
        raise config.error("attn_layer_idx", "attn_layer_idx adds attention layers, which are not planned yet")
    given = dict(config.mapping("ssm_cfg"))
    second = given.pop("layer", "Mamba1") == "Mamba2"
    defaults = _MAMBA2_SSM if second else _MAMBA_SSM
    number = {key: config.whole(f"ssm_cfg.{key}", given.get(key, default)) for key, default in defaults.items()}
    inner = number["expand"] * config.integer("d_model")
    if not second:
        state = forms.mamba1(inner, number["d_state"], number["d_conv"])
    else:
        shape = (inner // number["headdim"], number["headdim"], number["d_state"])
        state = forms.mamba2(config, inner, shape, number["ngroups"], number["d_conv"])
    return [Layer(states=[state])] * config.num_layers


_MAMBA_KEYS = ("mamba_d_conv", "mamba_d_state", "mamba_expand", "mamba_n_heads")


@register_model("jamba", reads=("attn_layer_period", "mamba_d_conv", "mamba_d_state", "mamba_expand"))
def jamba(config: ConfigReader) -> list[Layer]:
    """Return layers of Jamba: attention every `attn_layer_period` layers, from `attn_layer_offset` on."""
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", low=0)
    kinds = config.sequence("layers_block_type")
    linear = (
        _linear_by_name(config, "layers_block_type", kinds)
        if kinds
        else [index % period != offset for index in range(config.num_layers)]
    )
    return _alternate(config, linear, attention(config), _mamba1_of_keys(config))


def _mamba1_of_keys(config: ConfigReader) -> RecurrentState:
    inner = config.integer("mamba_expand") * config.integer("hidden_size")
    return forms.mamba1(inner, config.integer("mamba_d_state"), config.integer("mamba_d_conv"))


@register_model("bamba", reads=("attn_layer_indices", "layers_block_type", *_MAMBA_KEYS))
def bamba(config: ConfigReader) -> list[Layer]:
    """Return layers of Bamba: attention in `attn_layer_indices`, in none where it is null."""
    kinds = config.sequence("layers_block_type")
    if kinds:
        linear = _linear_by_name(config, "layers_block_type", kinds)
    else:
        indices = {
            config.whole("attn_layer_indices", index, low=0) for index in config.sequence("attn_layer_indices") or []
        }
        linear = [index not in indices for index in range(config.num_layers)]
    return _alternate(config, linear, attention(config), _mamba2_of_keys(config))


def _mamba2_of_keys(config: ConfigReader, inner: int | None = None) -> RecurrentState:
    """Mamba 2 under the key names of Bamba, Falcon-H1 and Granite 4."""
    inner = inner or config.integer("mamba_expand") * config.integer("hidden_size")
    heads = config.integer("mamba_n_heads")
    dim = config.get("mamba_d_head")
    dim = inner // heads if dim == "auto" else config.whole("mamba_d_head", dim)
    shape = (heads, dim, config.integer("mamba_d_state"))
    return forms.mamba2(config, inner, shape, config.integer("mamba_n_groups"), config.integer("mamba_d_conv"))


@register_model("falcon_h1", reads=("attn_layer_indices", *_MAMBA_KEYS))
def falcon_h1(config: ConfigReader) -> list[Layer]:
    """Return layers of Falcon-H1: each has attention and a state. `mamba_d_ssm` wins over `mamba_expand`."""
    state = _mamba2_of_keys(config, config.optional_integer("mamba_d_ssm"))
    return [Layer(states=[attention(config), state])] * config.num_layers


@register_model("granitemoehybrid", reads=("layers_block_type", *_MAMBA_KEYS))
def granite_hybrid(config: ConfigReader) -> list[Layer]:
    """Return layers of Granite 4: `layer_types` says which have attention; none has where it is null."""
    key = "layer_types" if config.get("layer_types") is not None else "layers_block_type"
    kinds = config.sequence(key)
    linear = _linear_by_name(config, key, kinds) if kinds else [True] * config.num_layers
    own = attention(config) if not all(linear) else None
    state = _mamba2_of_keys(config) if any(linear) else None
    return _alternate(config, linear, own, state)


@register_model(
    "nemotron_h",
    reads=(
        "conv_kernel",
        "hybrid_override_pattern",
        "layers_block_type",
        "mamba_num_heads",
        "mamba_expand",
        "ssm_state_size",
        "sliding_window",
    ),
)
def nemotron_h(config: ConfigReader) -> list[Layer]:
    """Return layers of Nemotron-H: a letter each. M has a state, * attention; MLP (-) and MoE (E) keep nothing."""
    pattern: Any = config.text.get("layers_block_type") or config.get("hybrid_override_pattern")
    if not isinstance(pattern, str | list) or not pattern:
        raise config.error("hybrid_override_pattern", "hybrid_override_pattern is missing, and says what each layer is")
    if config.optional_integer("sliding_window") is not None:
        raise config.error("sliding_window", "sliding_window is set, and which layers it is of is not known")
    heads, dim = config.integer("mamba_num_heads"), config.integer("mamba_head_dim")
    shape = (heads, dim, config.integer("ssm_state_size"))
    state = forms.mamba2(config, heads * dim, shape, config.integer("n_groups"), config.integer("conv_kernel"))
    kept: dict[str, list[State]] = {
        **{kind: [attention(config)] for kind in _ATTENTION},
        **{kind: [state] for kind in _LINEAR},
        **{kind: [] for kind in _NOTHING},
    }
    layers: list[Layer] = []
    for kind in cast("Sequence[Any]", pattern):
        if kind not in kept:
            raise config.error("hybrid_override_pattern", f"hybrid_override_pattern has {kind!r}, which is not known")
        layers.append(Layer(states=kept[kind]))
    return layers


@register_model(
    "zamba", reads=("attn_layer_period", "layers_block_type", "mamba_d_conv", "mamba_d_state", "mamba_expand")
)
def zamba(config: ConfigReader) -> list[Layer]:
    """Return layers of Zamba: all have a state, and `hybrid` ones attention besides, with a cache of their own."""
    return _shared_attention(config, _mamba1_of_keys(config))


@register_model(
    "zamba2",
    reads=("layers_block_type", "sliding_window", "mamba_d_conv", "mamba_d_state", "mamba_expand", "state_size"),
)
def zamba2(config: ConfigReader) -> list[Layer]:
    """Return layers of Zamba 2: as Zamba, with Mamba 2."""
    inner = config.integer("mamba_expand") * config.integer("hidden_size")
    dim = config.text.get("mamba_headdim")
    heads = config.text.get("n_mamba_heads")
    if dim is None and heads is None:
        raise config.error("n_mamba_heads", "n_mamba_heads and mamba_headdim are missing")
    heads = inner // config.whole("mamba_headdim", dim) if heads is None else config.whole("n_mamba_heads", heads)
    state_size = config.text.get("mamba_d_state", config.get("state_size"))
    shape = (heads, inner // max(heads, 1), config.whole("mamba_d_state", state_size))
    groups = config.optional_integer("mamba_ngroups") or 1
    state = forms.mamba2(config, inner, shape, groups, config.integer("mamba_d_conv"))
    return _shared_attention(config, state)


def _shared_attention(config: ConfigReader, state: RecurrentState) -> list[Layer]:
    """The heads of the shared attention see two rows at once: they are twice as wide as a division says."""
    kinds = config.sequence("layers_block_type")
    if not kinds or len(kinds) < config.num_layers:
        raise config.error("layers_block_type", f"layers_block_type does not have {config.num_layers} entries")
    wide = config.optional_integer("attention_head_dim")
    heads = attention_heads(config)
    if wide is None and 2 * width(config) % heads:
        raise config.error("attention_head_dim", f"{heads} heads do not divide twice a width of {width(config)}")
    own = Attention(num_kv_heads=num_kv_heads(config), head_dim=wide or 2 * width(config) // heads)
    layers: list[Layer] = []
    for kind in kinds[: config.num_layers]:
        if kind not in _HYBRID | _LINEAR:
            raise config.error("layers_block_type", f"layers_block_type has {kind!r}, which is not known")
        layers.append(Layer(states=[own, state] if kind in _HYBRID else [state]))
    return layers


@register_model(
    "plamo2", reads=("attention_window_size", "mamba_d_conv", "mamba_d_state", "mamba_num_heads", "mamba_step")
)
def plamo2(config: ConfigReader) -> list[Layer]:
    """Return layers of PLaMo 2: attention in the middle of each `mamba_step`, with a window unless it is listed.

    The repository's own `modeling_plamo.py`: of no more layers than half a step only the last has attention.
    """
    layers, step = config.num_layers, config.integer("mamba_step")
    dim = config.optional_integer("hidden_size_per_head") or 128
    full = {config.whole("full_attention_idx", index, low=0) for index in config.sequence("full_attention_idx") or []}
    window = Span.window(config.integer("attention_window_size"))
    state = forms.plamo2(
        (config.integer("mamba_num_heads"), dim, config.integer("mamba_d_state")), config.integer("mamba_d_conv")
    )
    has_states = config.get("mamba_enabled") is not False

    def layer(index: int) -> Layer:
        linear = index != layers - 1 if layers <= step // 2 else index % step != step // 2
        if linear and has_states:
            return Layer(states=[state])
        span = Span.full() if index in full else window
        return Layer(states=[Attention(num_kv_heads=num_kv_heads(config), head_dim=dim, span=span)])

    return [layer(index) for index in range(layers)]


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
    own = attention(config, Span.window(config.integer("attention_window_size")))
    kinds = ["attention" if kind == "sliding_attention" else kind for kind in kinds]
    return _alternate(config, _linear_by_name(config, "block_types", kinds), own, state)


_GDN_KEYS = ("full_attention_interval", "linear_num_key_heads", "linear_num_value_heads", "sliding_window")


@register_model(
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_text",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "Qwen3_5MoeForCausalLM",
    "olmo_hybrid",
    reads=_GDN_KEYS,
)
def gated_delta_net(config: ConfigReader) -> list[Layer]:
    """Return layers of Qwen3-Next, Qwen3.5 and OLMo Hybrid: GDN, and full attention every fourth layer."""
    if config.get("use_sliding_window") and config.optional_integer("sliding_window") is not None:
        raise config.error("sliding_window", "sliding_window is used, and which layers it is of is not known")
    kinds = config.sequence("layer_types")
    interval = config.optional_integer("full_attention_interval") or 4
    linear = (
        _linear_by_name(config, "layer_types", kinds)
        if kinds
        else [(index + 1) % interval != 0 for index in range(config.num_layers)]
    )
    state = forms.gated_delta_net(
        (config.integer("linear_num_key_heads"), config.integer("linear_key_head_dim")),
        (config.integer("linear_num_value_heads"), config.integer("linear_value_head_dim")),
        config.integer("linear_conv_kernel_dim"),
    )
    return _alternate(config, linear, attention(config), state)


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
        linear = _linear_by_name(config, "layer_types", kinds)
    else:
        raise config.error("linear_attn_config", "linear_attn_config is missing, and says which layers are linear")
    return _alternate(config, linear, _latent(config), _kda(config, settings))


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
        linear = _linear_by_name(config, "layer_types", kinds)
    else:
        linear = _linear_by_lists(config, settings, first=0)
    pool = config.optional_integer("index_kpool") or 1
    key = IndexKey(head_dim=config.integer("index_head_dim"), span=Span.compressed(pool) if pool > 1 else Span.full())
    owners = config.sequence("indexer_types")
    if owners is not None and len(owners) < config.num_layers:
        raise config.error("indexer_types", f"indexer_types does not have {config.num_layers} entries")
    latent, state = _latent(config, sparse=True), _kda(config, settings)
    own, shared = Layer(states=[latent, key]), Layer(states=[latent])
    return [
        Layer(states=[state]) if flag else shared if owners and owners[index] == "shared" else own
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
        linear = _linear_by_name(config, "layer_types", kinds)
    elif isinstance(group, list):
        linear = config.layer_flags("layer_group_size", cast("object", group), layers)
    else:
        period = config.integer("layer_group_size")
        linear = [(index + 1) % period != 0 and index < layers // period * period for index in range(layers)]
    kernel = config.optional_integer("short_conv_kernel_size")
    heads = attention_heads(config)
    dim = config.optional_integer("head_dim") or width(config) // heads
    state = forms.lightning(heads, dim) if kernel is None else forms.delta_attention(heads, dim, kernel)
    latent = config.get("kv_lora_rank") is not None
    own = _latent(config, nope=config.flag("use_mla_nope")) if latent else attention(config)
    return _alternate(config, linear, own, state)


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
        linear = _linear_by_name(config, "layer_types", kinds)
    else:
        raise config.error("attn_type_list", "attn_type_list and layer_types are missing: they say what each layer is")
    heads = attention_heads(config)
    return _alternate(config, linear, attention(config), forms.lightning(heads, head_dim(config)))


@register_model("lfm2", "lfm2_moe", "lfm2_vl", reads=("conv_L_cache",))
def lfm2(config: ConfigReader) -> list[Layer]:
    """Return layers of LFM2: a short convolution each, or attention in those that `layer_types` says so of."""
    kinds = config.sequence("layer_types")
    indices = config.sequence("full_attn_idxs")
    if kinds:
        linear = _linear_by_name(config, "layer_types", kinds)
    elif indices is not None:
        full = {config.whole("full_attn_idxs", index, low=0) for index in indices}
        linear = [index not in full for index in range(config.num_layers)]
    elif config.model_type == "lfm2_moe":
        raise config.error("layer_types", "layer_types and full_attn_idxs are missing: they say what each layer is")
    else:
        linear = [False] * config.num_layers
    state = forms.short_convolution(config.integer("hidden_size"), config.integer("conv_L_cache"))
    return _alternate(config, linear, attention(config), state)


@register_model("rwkv", "rwkv5", reads=("rescale_every",))
def rwkv(config: ConfigReader) -> list[Layer]:
    """Return layers of RWKV 4 and 5: state only."""
    if config.model_type == "rwkv":
        state = forms.rwkv4(width(config), config.optional_integer("attention_hidden_size") or width(config))
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


def _linear_by_name(config: ConfigReader, key: str, kinds: list[Any]) -> list[bool]:
    """Whether each layer is recurrent, by the names that `key` gives them; MTP layers may follow."""
    layers = config.num_layers
    if len(kinds) < layers:
        raise config.error(key, f"{key} has {len(kinds)} entries for {layers} layers")
    for kind in kinds[:layers]:
        if kind not in _ATTENTION | _LINEAR:
            raise config.error(key, f"{key} has {kind!r}, which is not planned yet")
    return [kind in _LINEAR for kind in kinds[:layers]]


def _alternate(
    config: ConfigReader, linear: list[bool], own: State | None, state: RecurrentState | None
) -> list[Layer]:
    """Layers that keep the state where they are linear, and what attention keeps elsewhere."""
    del config
    recurrent, attends = (Layer(states=[kept] if kept is not None else []) for kept in (state, own))
    return [recurrent if flag else attends for flag in linear]

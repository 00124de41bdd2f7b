"""Mamba and Mamba 2, alone or beside attention: which layers keep a state. Linear attention is in `linear.py`.

The tensors of a state are in `state_forms.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from poolplan._core import Attention, Layer, Span
from poolplan.models import state_forms as forms
from poolplan.models.heads import attention, attention_heads, num_kv_heads, width
from poolplan.models.mixed import ATTENTION, HYBRID, LINEAR, NOTHING, alternate, linear_by_name
from poolplan.models.registry import register_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolplan._core import RecurrentState
    from poolplan.models.config import ConfigReader
    from poolplan.models.state import State


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
    layer = given.pop("layer", "Mamba1")
    if layer not in ("Mamba1", "Mamba2"):
        raise config.error("ssm_cfg", f"ssm_cfg.layer={layer!r} is not planned yet")
    if given.get("d_ssm") is not None:
        raise config.error("ssm_cfg", "ssm_cfg.d_ssm leaves channels without a state, which is not planned yet")
    second = layer == "Mamba2"
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
        linear_by_name(config, "layers_block_type", kinds)
        if kinds
        else [index % period != offset for index in range(config.num_layers)]
    )
    return alternate(linear, attention(config), _mamba1_of_keys(config))


def _mamba1_of_keys(config: ConfigReader) -> RecurrentState:
    inner = config.integer("mamba_expand") * config.integer("hidden_size")
    return forms.mamba1(inner, config.integer("mamba_d_state"), config.integer("mamba_d_conv"))


@register_model("bamba", reads=("attn_layer_indices", "layers_block_type", *_MAMBA_KEYS))
def bamba(config: ConfigReader) -> list[Layer]:
    """Return layers of Bamba: attention in `attn_layer_indices`, in none where it is null."""
    kinds = config.sequence("layers_block_type")
    if kinds:
        linear = linear_by_name(config, "layers_block_type", kinds)
    else:
        indices = {
            config.whole("attn_layer_indices", index, low=0) for index in config.sequence("attn_layer_indices") or []
        }
        linear = [index not in indices for index in range(config.num_layers)]
    return alternate(linear, attention(config), _mamba2_of_keys(config))


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
    linear = linear_by_name(config, key, kinds) if kinds else [True] * config.num_layers
    own = attention(config) if not all(linear) else None
    state = _mamba2_of_keys(config) if any(linear) else None
    return alternate(linear, own, state)


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
    state = forms.mamba2(
        config, heads * dim, shape, config.integer("mamba_n_groups", "n_groups"), config.integer("conv_kernel")
    )
    kept: dict[str, list[State]] = {
        **{kind: [attention(config)] for kind in ATTENTION},
        **{kind: [state] for kind in LINEAR},
        **{kind: [] for kind in NOTHING},
    }
    layers: list[Layer] = []
    for kind in map(str, cast("Sequence[Any]", pattern)):
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
    wide = config.text.get("attention_head_dim")
    wide = None if wide is None else config.whole("attention_head_dim", wide)
    heads = attention_heads(config)
    if wide is None and 2 * width(config) % heads:
        raise config.error("attention_head_dim", f"{heads} heads do not divide twice a width of {width(config)}")
    own = Attention(num_kv_heads=num_kv_heads(config), head_dim=wide or 2 * width(config) // heads)
    layers: list[Layer] = []
    for kind in map(str, kinds[: config.num_layers]):
        if kind not in HYBRID | LINEAR:
            raise config.error("layers_block_type", f"layers_block_type has {kind!r}, which is not known")
        layers.append(Layer(states=[own, state] if kind in HYBRID else [state]))
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

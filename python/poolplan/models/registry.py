"""The families by name, and the guard: a key that hints at state which a family does not know is an error."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from poolplan.errors import InvalidOptionError, UnknownModelWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from poolplan._core import Layer
    from poolplan.errors import UnsupportedModelError
    from poolplan.models.config import ConfigReader

    LayersOf = Callable[[ConfigReader], Sequence[Layer]]

# Keys that say that a layer keeps something beside or instead of the keys and values of every token, and what it is.
HINTS = {
    **dict.fromkeys(
        (
            "attn_layer_indices",
            "attn_layer_period",
            "block_types",
            "cca_time0",
            "conv_L_cache",
            "conv_kernel",
            "efficient_attention_config",
            "full_attention_interval",
            "hybrid_override_pattern",
            "kda_layers",
            "layer_group_size",
            "layers_block_type",
            "lightning_nh",
            "linear_attn_config",
            "linear_num_heads",
            "linear_num_key_heads",
            "linear_num_value_heads",
            "lru_width",
            "mamba_d_conv",
            "mamba_d_state",
            "mamba_expand",
            "mamba_n_heads",
            "mamba_num_heads",
            "mamba_step",
            "mixer_types",
            "rescale_every",
            "ssm_cfg",
            "ssm_state_size",
            "state_size",
            "time_step_rank",
        ),
        "recurrent state",
    ),
    **dict.fromkeys(
        ("index_head_dim", "index_n_heads", "index_topk", "indexer_types", "sparse_attention_config"), "index keys"
    ),
    "compress_ratios": "compressed entries",
    **dict.fromkeys(("num_kv_shared_layers", "use_cla"), "layers that share the cache of others"),
    **dict.fromkeys(
        (
            "add_cross_attention",
            "cross_attention_layers",
            "cross_layer_interval",
            "decoder_layers",
            "decoder_num_hidden_layers",
            "encoder_layers",
            "encoder_num_hidden_layers",
            "is_encoder_decoder",
            "num_decoder_layers",
        ),
        "cross attention",
    ),
    **dict.fromkeys(("H_cycles", "L_cycles", "loop_num", "num_loops"), "layers that run more than once"),
    "global_config": "a second stack of layers",
    "block_configs": "layers that differ",
    "kv_lora_rank": "latent attention",
    **dict.fromkeys(
        (
            "_sliding_window_pattern",
            "attention_chunk_size",
            "attention_layers",
            "attention_other_setting",
            "attention_types",
            "attention_window_size",
            "global_head_dim",
            "hybrid_layer_pattern",
            "local_layer_ids",
            "no_rope_layers",
            "num_global_key_value_heads",
            "per_layer_config",
            "sliding_window",
            "sliding_window_layout",
            "sliding_window_pattern",
            "sliding_window_size",
            "swa_head_dim",
            "swa_num_key_value_heads",
            "swa_v_head_dim",
        ),
        "windows or chunks",
    ),
}
# What a key of a file that nobody knows may begin with.
_HINTING_PREFIXES = (
    "mamba",
    "ssm_",
    "lightning",
    "linear_",
    "rwkv",
    "lru_",
    "kda_",
    "gdn_",
    "index_",
    "swa_",
    "compress",
    "recurrent",
)
_FULL_ATTENTION = frozenset({"full_attention", "attention"})


class Family(NamedTuple):
    """One way to read layers, the names it goes by, and the hinting keys that it reads."""

    names: frozenset[str]
    reads: frozenset[str]
    layers_of: LayersOf


_FAMILIES: dict[str, Family] = {}


def register_model(*names: str, reads: Iterable[str] = ()) -> Callable[[LayersOf], LayersOf]:
    """Register a function that reads the layers of a model, for `architectures` or `model_type` names.

        >>> from poolplan import Attention, Layer, register_model
        >>> from poolplan.models import ConfigReader
        >>> @register_model("my_model", "MyModelForCausalLM", reads=["my_heads"])
        ... def my_model(config: ConfigReader) -> list[Layer]:
        ...     state = Attention(num_kv_heads=config.integer("my_heads"), head_dim=config.integer("head_dim"))
        ...     return [Layer(states=[state])] * config.num_layers

    A later registration of a name replaces an earlier one.

    Args:
        names: Names in `architectures`, which are looked up first, and of `model_type`.
        reads: The keys hinting at windows, latents or other state that the function reads. Any other such key that is
            set makes the model an error instead of a plan that is silently wrong.
    """

    def register(layers_of: LayersOf) -> LayersOf:
        family = Family(frozenset(names), frozenset(reads), layers_of)
        _FAMILIES.update(dict.fromkeys(names, family))
        return layers_of

    return register


def registered_models() -> tuple[str, ...]:
    """Return the names under which a model is known, sorted."""
    return tuple(sorted(_FAMILIES))


def registered_family(name: str) -> Family:
    """Return what is registered under `name`."""
    return _FAMILIES[name]


def read_layers(config: ConfigReader) -> tuple[Layer, ...]:
    """Return what each layer of the model keeps.

    Raises:
        UnsupportedModelError: The model keeps, or may keep, something that is not known here.
    """
    names = (*config.architectures, config.model_type, str(config.root.get("model_type")))
    family = next((_FAMILIES[name] for name in names if name in _FAMILIES), None)
    if family is not None:
        _refuse_hints(config, family.reads)
        _warn_of_architecture(config, family)
        return _layers_of(config, family.layers_of)
    _refuse_unknown(config)
    warnings.warn(
        f"{config.name}: the model_type {config.model_type!r} is not known; its keys describe a plain decoder, "
        "and it is planned as one",
        UnknownModelWarning,
        stacklevel=4,
    )
    from poolplan.models.decoder import plain_decoder

    return _layers_of(config, plain_decoder)


def _layers_of(config: ConfigReader, layers_of: LayersOf) -> tuple[Layer, ...]:
    """The layers; a number that the file may hold and no state can is the file's fault, not an option's."""
    try:
        return tuple(layers_of(config))
    except InvalidOptionError as error:
        raise config.error(error.option, str(error)) from error


def _refuse_hints(config: ConfigReader, reads: frozenset[str]) -> None:
    for key, state in HINTS.items():
        if key not in reads and (_is_set(key, config.text.get(key)) or _is_set(key, config.root.get(key))):
            raise _refusal(config, key, state)
    if "attn_type_list" not in reads and any(kind != 1 for kind in config.sequence("attn_type_list") or []):
        raise _refusal(config, "attn_type_list", "recurrent state")


def _refuse_unknown(config: ConfigReader) -> None:
    """What is not known must look like a plain decoder in every respect."""
    _refuse_hints(config, frozenset())
    for key, value in config.text.items():
        if str(key).startswith(_HINTING_PREFIXES) and _is_set(key, value):
            raise _refusal(config, key, "state that is not known")
    for kind in map(str, config.sequence("layer_types") or []):
        if kind not in _FULL_ATTENTION:
            raise _refusal(config, "layer_types", f"layers of type {kind!r}")


def _warn_of_architecture(config: ConfigReader, family: Family) -> None:
    """Say so when the class that a file names is not one that its `model_type` stands for: one of the two lies."""
    known = {_plain_name(name) for name in (*family.names, config.model_type, str(config.root.get("model_type")))}
    strange = [name for name in config.architectures if name not in family.names and _plain_name(name) not in known]
    if strange:
        warnings.warn(
            f"{config.name}: the architecture {strange[0]} is not known; it is planned as its model_type "
            f"{config.model_type!r} says",
            UnknownModelWarning,
            stacklevel=5,
        )


def _plain_name(name: str) -> str:
    """`deepseekv3` for `DeepseekV3ForCausalLM` and `deepseek_v3`."""
    for suffix in ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "Model"):
        name = name.removesuffix(suffix)
    return "".join(character for character in name.lower() if character.isalnum())


def _is_set(key: str, value: Any) -> bool:
    if key in {"loop_num", "num_loops"}:
        return value not in (None, 0, 1)
    if key == "per_layer_config" and isinstance(value, dict):
        return any(cast("dict[str, Any]", value).values())
    return value is not None and value is not False and value not in (0, "", [], {})


def _refusal(config: ConfigReader, key: str, state: str) -> UnsupportedModelError:
    return config.error(
        key, f"{key} says that {config.model_type or 'the model'} keeps {state}, which is not planned yet"
    )

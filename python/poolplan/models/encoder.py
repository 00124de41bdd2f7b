"""Decoders that attend to an encoder: each layer keeps keys and values of the source beside those of its own tokens.

Those of the source are computed once, for as many positions as the encoder returns; here that is the most that it can
return for one request. The encoder's own layers keep nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from poolplan._core import Attention, Layer, Span
from poolplan.models.heads import attention
from poolplan.models.registry import register_model

if TYPE_CHECKING:
    from poolplan.models.config import ConfigReader

# T5 has relative positions and no limit. 512 is what T5's own files name, and what llama.cpp takes where one does not
# (`T5Model`); mT5 was trained on inputs of 1,024 (Xue et al., 2021). Nothing was found for umT5.
_T5_POSITIONS = {"t5": 512, "mt5": 1024}
# transformers 5.24.0, `MllamaTextConfig` and `MllamaVisionConfig`.
_MLLAMA_CROSS_LAYERS = [3, 8, 13, 18, 23, 28, 33, 38]
_MLLAMA_VISION = {"image_size": 448, "patch_size": 14, "max_num_tiles": 4}


@register_model(
    "bart",
    "bigbird_pegasus",
    "blenderbot",
    "blenderbot-small",
    "fsmt",
    "m2m_100",
    "marian",
    "MarianMTModel",
    "mbart",
    "nllb-moe",
    "pegasus",
    "pegasus_x",
    "plbart",
    reads=("decoder_layers", "encoder_layers", "is_encoder_decoder"),
)
def bart(config: ConfigReader) -> list[Layer]:
    """Return layers of BART and its kin: encoder and decoder have the same positions."""
    return _bart_layers(config, "max_position_embeddings")


@register_model("whisper", reads=("decoder_layers", "encoder_layers", "is_encoder_decoder"))
def whisper(config: ConfigReader) -> list[Layer]:
    """Return layers of Whisper: the encoder always returns `max_source_positions`, 1,500 for 30 seconds."""
    return _bart_layers(config, "max_source_positions")


def _bart_layers(config: ConfigReader, positions: str) -> list[Layer]:
    """The heads are MHA; `num_hidden_layers` and `num_attention_heads` of these files are the encoder's."""
    heads, width = config.integer("decoder_attention_heads"), config.integer("d_model", "hidden_size")
    if width % heads:
        raise config.error(
            "decoder_attention_heads", f"decoder_attention_heads={heads} does not divide a width of {width}"
        )
    return _layers(config, config.layer_count("decoder_layers"), heads, width // heads, config.integer(positions))


@register_model(
    "mt5",
    "t5",
    "T5WithLMHeadModel",
    "umt5",
    reads=("is_encoder_decoder", "num_decoder_layers"),
)
def t5(config: ConfigReader) -> list[Layer]:
    """Return layers of T5: as many as the encoder has where the file does not say, with heads of `d_kv` each."""
    layers = config.layer_count("num_decoder_layers", "num_layers", "num_hidden_layers")
    heads, dim = config.integer("num_heads", "num_attention_heads"), config.integer("d_kv", "head_dim")
    positions = config.optional_integer("n_positions") or _T5_POSITIONS.get(config.model_type)
    if positions is None:
        raise config.error("n_positions", "n_positions is missing, and says how many positions the encoder has")
    return _layers(config, layers, heads, dim, positions)


def _layers(config: ConfigReader, layers: int, heads: int, dim: int, positions: int) -> list[Layer]:
    """Layers of self attention and cross attention with the same heads."""
    if config.get("is_encoder_decoder") is not None and not config.flag("is_encoder_decoder"):
        raise config.error("is_encoder_decoder", "is_encoder_decoder is false: the file is of one half of the model")
    own = Attention(num_kv_heads=heads, head_dim=dim)
    cross = Attention(num_kv_heads=heads, head_dim=dim, span=Span.encoder(positions))
    return [Layer(states=[own, cross])] * layers


@register_model("mllama", "mllama_text_model", reads=["cross_attention_layers"])
def mllama(config: ConfigReader) -> list[Layer]:
    """Return layers of Llama 3.2 Vision: those of `cross_attention_layers` keep nothing of the text.

    They are among `num_hidden_layers`. A request is taken to have one image, of as many tiles as there can be.
    """
    own = Layer(states=[attention(config)])
    cross = Layer(states=[attention(config, Span.encoder(_image_positions(config)))])
    chosen = _cross_layers(config)
    return [cross if index in chosen else own for index in range(config.num_layers)]


def _cross_layers(config: ConfigReader) -> set[int]:
    indices = config.sequence("cross_attention_layers")
    chosen = {
        config.whole("cross_attention_layers", index, low=0)
        for index in (_MLLAMA_CROSS_LAYERS if indices is None else indices)
    }
    last = max(chosen, default=0)
    if last >= config.num_layers:
        raise config.error(
            "cross_attention_layers",
            f"cross_attention_layers has layer {last}, and the model has {config.num_layers} layers",
        )
    return chosen


def _image_positions(config: ConfigReader) -> int:
    """Positions of one image: each tile has one for each patch, and one for its class.

    transformers 5.24.0 and SGLang 0.5.23, `MllamaVisionModel.num_patches`: 6,404 for four tiles of 560 pixels. The
    class fills in tiles of 448 where the whole part is missing; Llama 3.2 has 560, so that is not done here.
    """
    vision = config.root.get("vision_config")
    if not isinstance(vision, dict):
        raise config.error("vision_config", "vision_config is missing, and says how many positions an image has")
    given = cast("dict[str, Any]", vision)
    size, patch, tiles = (
        config.whole(f"vision_config.{key}", given.get(key, default)) for key, default in _MLLAMA_VISION.items()
    )
    return ((size // patch) ** 2 + 1) * tiles

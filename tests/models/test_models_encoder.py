"""Decoders that attend to an encoder. Bytes were worked out by hand from the configs, never by poolplan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from poolplan import Attention, Layer, ModelSpec, Span, UnsupportedModelError
from poolplan.models.config import ConfigReader
from poolplan.models.registry import read_layers, registered_models

CONFIGS = Path(__file__).parents[1] / "facts" / "configs"

# The defaults of the config classes of transformers 5.24.0.
WHISPER: dict[str, Any] = {
    "model_type": "whisper",
    "architectures": ["WhisperForConditionalGeneration"],
    "is_encoder_decoder": True,
    "d_model": 384,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "num_hidden_layers": 4,
    "decoder_layers": 4,
    "decoder_attention_heads": 6,
    "max_source_positions": 1500,
    "max_target_positions": 448,
}
BART: dict[str, Any] = {
    "model_type": "bart",
    "is_encoder_decoder": True,
    "d_model": 1024,
    "encoder_layers": 12,
    "encoder_attention_heads": 16,
    "num_hidden_layers": 12,
    "decoder_layers": 12,
    "decoder_attention_heads": 16,
    "max_position_embeddings": 1024,
}
T5: dict[str, Any] = {
    "model_type": "t5",
    "is_encoder_decoder": True,
    "d_model": 512,
    "d_kv": 64,
    "num_layers": 6,
    "num_heads": 8,
    "n_positions": 512,
}
MLLAMA_TEXT: dict[str, Any] = {
    "model_type": "mllama_text_model",
    "hidden_size": 4096,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
# The vision part of Llama 3.2 11B Vision.
VISION = {"image_size": 560, "patch_size": 14, "max_num_tiles": 4}
MLLAMA: dict[str, Any] = {"model_type": "mllama", "text_config": MLLAMA_TEXT, "vision_config": VISION}


def layers_of(config: dict[str, Any]) -> tuple[Layer, ...]:
    return read_layers(ConfigReader(config, "model"))


def bytes_of(layers: tuple[Layer, ...]) -> dict[str, int]:
    """Bytes of a token, or of a position of the encoder, in 16 bits."""
    total = {"full": 0, "encoder": 0}
    for layer in layers:
        for state in layer.states:
            assert isinstance(state, Attention)
            total[state.span.kind] += 2 * state.num_kv_heads * (state.head_dim + state.v_head_dim)
    return total


def positions_of(layers: tuple[Layer, ...]) -> set[int | None]:
    return {state.span.tokens for layer in layers for state in layer.states if state.span.kind == "encoder"}


@pytest.mark.parametrize(
    ("config", "own", "cross", "positions"),
    [
        (WHISPER, 6144, 6144, 1500),
        (BART, 49152, 49152, 1024),
        (T5, 12288, 12288, 512),
        (MLLAMA, 131072, 32768, 6404),
    ],
    ids=lambda value: cast("dict[str, Any]", value)["model_type"] if isinstance(value, dict) else None,
)
def test_the_bytes_of_a_token_and_of_a_position(config: dict[str, Any], own: int, cross: int, positions: int) -> None:
    """Worked out by hand from the config: bart-large-cnn and Llama 3.2 11B Vision are checkpoints, the rest classes.

    whisper-tiny's 12 layers in SGLang's pool, 18,432 bytes, are three times those of a decoder's self attention.
    """
    layers = layers_of(config)
    assert bytes_of(layers) == {"full": own, "encoder": cross}
    assert positions_of(layers) == {positions}


def test_the_files_of_checkpoints() -> None:
    """Worked out by hand from the config. The files are reduced to what decoders need, so the rest is given here."""
    bart = json.loads((CONFIGS / "facebook--bart-large-cnn.json").read_text()) | {"decoder_attention_heads": 16}
    assert bytes_of(layers_of(bart)) == {"full": 49152, "encoder": 49152}
    llama = json.loads((CONFIGS / "meta-llama--Llama-3.2-11B-Vision-Instruct.json").read_text())
    llama |= {"vision_config": VISION}
    assert bytes_of(layers_of(llama)) == {"full": 131072, "encoder": 32768}
    assert positions_of(layers_of(llama)) == {6404}
    assert ModelSpec.from_config(llama).context_length == 131072


@pytest.mark.parametrize(
    "model_type", ["bart", "mbart", "marian", "pegasus", "m2m_100", "blenderbot-small", "nllb-moe"]
)
def test_bart_and_its_kin_read_the_decoder_and_not_the_encoder(model_type: str) -> None:
    config = BART | {
        "model_type": model_type,
        "decoder_layers": 3,
        "decoder_attention_heads": 8,
        "encoder_attention_heads": 16,
    }
    own = Attention(num_kv_heads=8, head_dim=128)
    cross = Attention(num_kv_heads=8, head_dim=128, span=Span.encoder(1024))
    assert layers_of(config) == (Layer(states=[own, cross]),) * 3


def test_whisper_has_as_many_layers_as_its_decoder() -> None:
    """distil-whisper has 32 encoder layers and two decoder layers; `num_hidden_layers` is 32."""
    config = WHISPER | {"encoder_layers": 32, "num_hidden_layers": 32, "decoder_layers": 2}
    assert len(layers_of(config)) == 2


def test_t5_has_heads_of_d_kv_and_as_many_layers_as_its_encoder() -> None:
    """T5 11B: 128 heads of 128, where 1,024 / 128 is 8."""
    large = T5 | {"d_model": 1024, "d_kv": 128, "num_heads": 128, "num_layers": 24}
    own, cross = layers_of(large)[0].states
    assert own == Attention(num_kv_heads=128, head_dim=128)
    assert cross == Attention(num_kv_heads=128, head_dim=128, span=Span.encoder(512))
    assert len(layers_of(large)) == len(layers_of(large | {"num_decoder_layers": None})) == 24
    assert len(layers_of(large | {"num_decoder_layers": 3})) == 3


@pytest.mark.parametrize(("model_type", "positions"), [("t5", 512), ("mt5", 1024)])
def test_t5_has_positions_where_its_file_has_none(model_type: str, positions: int) -> None:
    config = {key: value for key, value in T5.items() if key != "n_positions"} | {"model_type": model_type}
    assert positions_of(layers_of(config)) == {positions}
    assert positions_of(layers_of(config | {"n_positions": 2048})) == {2048}


@pytest.mark.parametrize(
    ("keys", "cross"),
    [
        ({}, [3, 8, 13, 18, 23, 28, 33, 38]),
        ({"cross_attention_layers": [0, 39]}, [0, 39]),
        ({"cross_attention_layers": []}, []),
        ({"cross_attention_layers": None}, [3, 8, 13, 18, 23, 28, 33, 38]),
        ({"num_hidden_layers": 4, "cross_attention_layers": [1, 3]}, [1, 3]),
    ],
    ids=repr,
)
def test_a_cross_layer_of_llama_keeps_nothing_of_the_text(keys: dict[str, Any], cross: list[int]) -> None:
    """`MllamaTextConfig`; the layers are among `num_hidden_layers`."""
    layers = layers_of(MLLAMA | {"text_config": MLLAMA_TEXT | keys})
    assert [index for index, layer in enumerate(layers) if layer.states[0].span.kind == "encoder"] == cross
    assert all(len(layer.states) == 1 for layer in layers)


@pytest.mark.parametrize(
    ("vision", "positions"),
    [({"image_size": 560}, 6404), ({"image_size": 448}, 4100), ({"image_size": 560, "max_num_tiles": 1}, 1601)],
)
def test_an_image_has_a_position_for_each_patch_and_one_for_each_tile(vision: dict[str, int], positions: int) -> None:
    """Patches of 14 pixels and four tiles are what `MllamaVisionConfig` has where the file does not say."""
    assert positions_of(layers_of(MLLAMA | {"vision_config": vision})) == {positions}


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != key}


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (WHISPER | {"max_source_positions": None}, "max_source_positions"),
        (WHISPER | {"decoder_layers": None}, "decoder_layers"),
        (WHISPER | {"decoder_layers": 100_001}, "decoder_layers"),
        (WHISPER | {"decoder_layers": [4]}, "decoder_layers"),
        (WHISPER | {"decoder_attention_heads": 5}, "decoder_attention_heads"),
        (WHISPER | {"max_source_positions": 0}, "max_source_positions"),
        (WHISPER | {"d_model": "384"}, "d_model"),
        (BART | {"is_encoder_decoder": False}, "is_encoder_decoder"),
        (BART | {"is_encoder_decoder": 1}, "is_encoder_decoder"),
        (BART | {"add_cross_attention": True}, "add_cross_attention"),
        (BART | {"model_type": "led"}, "decoder_layers"),
        (T5 | {"d_kv": None}, "d_kv"),
        (T5 | {"num_heads": True}, "num_heads"),
        (without(T5, "n_positions") | {"model_type": "umt5"}, "n_positions"),
        (without(MLLAMA, "vision_config"), "vision_config"),
        (MLLAMA_TEXT, "vision_config"),
        (MLLAMA | {"vision_config": {"image_size": [560, 560]}}, "vision_config.image_size"),
        (MLLAMA | {"vision_config": {"image_size": 560, "patch_size": 0}}, "vision_config.patch_size"),
        (MLLAMA | {"vision_config": {"image_size": 560, "max_num_tiles": None}}, "vision_config.max_num_tiles"),
        (MLLAMA | {"text_config": MLLAMA_TEXT | {"cross_attention_layers": [40]}}, "cross_attention_layers"),
        (MLLAMA | {"text_config": MLLAMA_TEXT | {"cross_attention_layers": [-1]}}, "cross_attention_layers"),
        (MLLAMA | {"text_config": MLLAMA_TEXT | {"cross_attention_layers": [[3]]}}, "cross_attention_layers"),
        (MLLAMA | {"text_config": MLLAMA_TEXT | {"cross_attention_layers": 3}}, "cross_attention_layers"),
        (MLLAMA | {"text_config": MLLAMA_TEXT | {"num_hidden_layers": 8}}, "cross_attention_layers"),
    ],
    ids=lambda value: str(cast("object", value))[-70:],
)
def test_what_cannot_be_read_is_refused_with_its_key(config: dict[str, Any], key: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        layers_of(config)
    assert caught.value.key == key
    assert key in str(caught.value)


@pytest.mark.parametrize(
    "config", [WHISPER, BART, T5, MLLAMA], ids=lambda config: cast("dict[str, Any]", config)["model_type"]
)
@pytest.mark.parametrize("value", [2**31 - 1, 2**24 + 1, -1, 1e400, "x", [], {}], ids=repr)
def test_no_value_of_a_key_makes_a_python_error(config: dict[str, Any], value: Any) -> None:
    for part in (None, "text_config", "vision_config"):
        for key in config if part is None else config.get(part, {}):
            wrong = config | ({key: value} if part is None else {part: config[part] | {key: value}})
            try:
                layers_of(wrong)
            except UnsupportedModelError as error:
                assert error.key


@pytest.mark.parametrize(
    ("config", "tokens"),
    [(WHISPER, 448), (BART, 1024), (T5, 512), (without(T5, "n_positions"), 512), (MLLAMA, 131072)],
    ids=lambda value: cast("dict[str, Any]", value)["model_type"] if isinstance(value, dict) else None,
)
def test_the_context_length_is_the_decoders(config: dict[str, Any], tokens: int) -> None:
    """Whisper's `max_source_positions` are the encoder's, and longer."""
    assert ModelSpec.from_config(config).context_length == tokens


def test_what_says_nothing_of_its_encoder_stays_refused() -> None:
    """Moonshine's encoder takes audio of any length, and no key of its class bounds it."""
    assert "moonshine" not in registered_models()
    with pytest.raises(UnsupportedModelError) as caught:
        layers_of(json.loads((CONFIGS / "transformers-default--moonshine.json").read_text()))
    assert caught.value.key == "decoder_num_hidden_layers"

"""Layers that read the cache of others, and layers with numbers of their own in `per_layer_config`."""

from __future__ import annotations

from typing import Any, cast

import pytest

from poolplan import Attention, IndexKey, LatentAttention, Layer, ModelSpec, Span, UnsupportedModelError
from samples import LLAMA

GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text",
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 2304,
    "head_dim": 256,
    "sliding_window": 512,
    "max_position_embeddings": 8192,
}
GEMMA3N: dict[str, Any] = GEMMA4 | {
    "model_type": "gemma3n_text",
    "num_hidden_layers": 35,
    "num_key_value_heads": 2,
    "num_kv_shared_layers": 15,
}
# transformers 5.24.0, `Dots3NoteTextConfig`, as it writes its own defaults.
DOTS3: dict[str, Any] = {
    "model_type": "dots3_note_text",
    "num_hidden_layers": 8,
    "num_attention_heads": 128,
    "hidden_size": 5120,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "index_topk": 2048,
    "index_head_dim": 128,
    "sliding_window": 512,
    "max_position_embeddings": 8192,
}
SWA = {"swa_kv_lora_rank": 1024, "swa_qk_rope_head_dim": 64}


def layout(config: dict[str, Any]) -> str:
    """F for a full layer, W for one with a window, - for one that keeps nothing."""
    layers = ModelSpec.from_config(config).layers
    return "".join(layer.states[0].span.kind[0].upper() if layer.states else "-" for layer in layers)


def kinds(text: str) -> list[str]:
    return [{"F": "full_attention", "W": "sliding_attention"}[letter] for letter in text]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GEMMA3N, "WWWWF" * 4 + "-" * 15),
        (GEMMA3N | {"num_hidden_layers": 30, "num_kv_shared_layers": 10}, "WWWWF" * 4 + "-" * 10),
        (GEMMA3N | {"num_kv_shared_layers": 0}, "WWWWF" * 7),
        (GEMMA3N | {"num_kv_shared_layers": 1}, "WWWWF" * 6 + "WWWW-"),
        (GEMMA4, "WWWWWFWWWWWF"),
        (GEMMA4 | {"num_kv_shared_layers": 6}, "WWWWWF------"),
        (GEMMA4 | {"num_kv_shared_layers": 20, "num_hidden_layers": 35}, "WWWWWFWWWWWFWWW" + "-" * 20),
        (GEMMA4 | {"layer_types": kinds("FWFWFWFWFWFW"), "num_kv_shared_layers": 10}, "FW----------"),
        (GEMMA4 | {"layer_types": kinds("F" * 12), "num_kv_shared_layers": 11}, "F-----------"),
    ],
)
def test_layers_that_share_a_cache_keep_nothing(config: dict[str, Any], expected: str) -> None:
    """`kv_sharing_modes` of the classes of transformers 5.24.0: the last layers store nothing."""
    assert layout(config) == expected


def test_gemma_4_e2b_keeps_three_full_and_twelve_window_layers() -> None:
    """Worked out by hand: 35 layers, every fifth full, 20 shared; one KV head of 256, of 512 in full layers."""
    config = GEMMA4 | {
        "num_hidden_layers": 35,
        "num_key_value_heads": 1,
        "layer_types": kinds("WWWWF" * 7),
        "num_kv_shared_layers": 20,
        "global_head_dim": 512,
    }
    layers = ModelSpec.from_config(config).layers
    assert layout(config) == "WWWWF" * 3 + "-" * 20
    assert layers[4].states == (Attention(num_kv_heads=1, head_dim=512),)
    assert layers[0].states == (Attention(num_kv_heads=1, head_dim=256, span=Span.window(512)),)


@pytest.mark.parametrize(
    "config",
    [
        GEMMA4 | {"num_kv_shared_layers": 7},
        GEMMA4 | {"num_kv_shared_layers": 12},
        GEMMA4 | {"num_kv_shared_layers": 13},
        GEMMA4 | {"num_kv_shared_layers": -1},
        GEMMA4 | {"num_kv_shared_layers": True},
        GEMMA4 | {"layer_types": kinds("W" * 12), "num_kv_shared_layers": 1},
        GEMMA3N | {"num_kv_shared_layers": 31},
        GEMMA3N | {"num_kv_shared_layers": 35},
        GEMMA3N | {"num_kv_shared_layers": None},
    ],
    ids=lambda config: str(cast("object", config))[-60:],
)
def test_a_kind_of_layer_without_a_cache_to_share_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelSpec.from_config(config)
    assert caught.value.key == "num_kv_shared_layers"


def test_a_window_that_holds_the_context_is_full_with_the_heads_of_window_layers() -> None:
    """Only full layers of Gemma 4 are wider."""
    layers = ModelSpec.from_config(GEMMA4 | {"sliding_window": 8192}).layers
    assert layers[0].states == (Attention(num_kv_heads=4, head_dim=256),)
    assert layers[5].states == (Attention(num_kv_heads=4, head_dim=512),)


WIDE, NARROW = Attention(num_kv_heads=4, head_dim=512), Attention(num_kv_heads=4, head_dim=256)


@pytest.mark.parametrize(
    ("keys", "full"),
    [
        ({}, WIDE),
        ({"per_layer_config": {"05": {"head_dim": 512}, "11": {"head_dim": 512}}}, WIDE),
        ({"per_layer_config": {5: {"head_dim": 512}}}, WIDE),
        ({"per_layer_config": {}}, NARROW),
        ({"per_layer_config": {}, "global_head_dim": 512}, NARROW),
        ({"per_layer_config": {"5": {"num_key_value_heads": 1}}}, Attention(num_kv_heads=1, head_dim=256)),
        ({"attention_k_eq_v": True, "num_global_key_value_heads": 2}, Attention(num_kv_heads=2, head_dim=512)),
        ({"num_global_key_value_heads": 2}, WIDE),
    ],
    ids=repr,
)
def test_what_layers_of_gemma_4_have_of_their_own(keys: dict[str, Any], full: Attention) -> None:
    """`Gemma4TextConfig`: where `per_layer_config` is there, the keys for all full layers are not looked at."""
    layers = ModelSpec.from_config(GEMMA4 | keys).layers
    assert layers[5].states == (full,)
    assert layers[4].states == (Attention(num_kv_heads=4, head_dim=256, span=Span.window(512)),)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({"12": {"head_dim": 512}}, "per_layer_config"),
        ({"-1": {"head_dim": 512}}, "per_layer_config"),
        ({"five": {"head_dim": 512}}, "per_layer_config"),
        ({"²": {"head_dim": 512}}, "per_layer_config"),
        ({"9" * 5000: {"head_dim": 512}}, "per_layer_config"),
        ({"5": [512]}, "per_layer_config"),
        ({"5": {"skip": ["self_attn"]}}, "per_layer_config"),
        ({"5": {"head_dim": "512"}}, "per_layer_config.head_dim"),
        ({"5": {"head_dim": None}}, "per_layer_config.head_dim"),
        ([{"head_dim": 512}], "per_layer_config"),
    ],
    ids=lambda value: repr(cast("object", value))[:40],
)
def test_numbers_of_one_layer_that_cannot_be_read_are_refused(value: Any, key: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelSpec.from_config(GEMMA4 | {"per_layer_config": value})
    assert caught.value.key == key


FULL = Layer(
    states=[LatentAttention(kv_lora_rank=512, qk_rope_head_dim=64, sparse=True), IndexKey(head_dim=128)],
)
DENSE = Layer(states=[LatentAttention(kv_lora_rank=512, qk_rope_head_dim=64)])
WINDOW = Layer(states=[LatentAttention(kv_lora_rank=1024, qk_rope_head_dim=64, span=Span.window(512))])


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        (SWA, "FFWWWFWW"),
        (SWA | {"use_dsa": False}, "DDWWWDWW"),
        (SWA | {"use_sliding_window": False}, "FFFFFFFF"),
        (SWA | {"layer_types": kinds("FWFWFWFW")}, "FWFWFWFW"),
        (SWA | {"layer_types": kinds("FWFWFWFW"), "use_dsa": False}, "DWDWDWDW"),
        ({"swa_kv_lora_rank": 1024, "swa_head_dim": 256, "swa_qk_nope_head_dim": 192}, "FFWWWFWW"),
        (
            {
                "layer_types": ["indexed_attention", "sliding_attention", "full_attention"],
                "num_hidden_layers": 3,
                "per_layer_config": {"1": {"kv_lora_rank": 1024, "num_attention_heads": 64}},
            },
            "FWD",
        ),
    ],
    ids=lambda value: str(cast("object", value))[-70:],
)
def test_the_layers_of_dots_3(keys: dict[str, Any], layers: str) -> None:
    """`Dots3NoteTextConfig`; SGLang 0.5.23 sizes window layers by their own latent too (`swa_kv_lora_rank`)."""
    expected = {"F": FULL, "D": DENSE, "W": WINDOW}
    assert ModelSpec.from_config(DOTS3 | keys).layers == tuple(expected[letter] for letter in layers)


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({}, "swa_kv_lora_rank"),
        ({"swa_kv_lora_rank": 1024}, "swa_head_dim"),
        ({"swa_kv_lora_rank": 1024, "swa_head_dim": 64, "swa_qk_nope_head_dim": 128}, "swa_head_dim"),
        (SWA | {"sliding_window": None}, "sliding_window"),
        (SWA | {"index_head_dim": None}, "index_head_dim"),
        (SWA | {"index_head_dim": 100}, "head_dim"),
        (SWA | {"layer_types": ["linear_attention"] * 8}, "layer_types"),
        (SWA | {"layer_types": kinds("FW")}, "layer_types"),
        ({"per_layer_config": {"2": {"sliding_window": 64}}}, "per_layer_config"),
    ],
    ids=repr,
)
def test_what_dots_3_leaves_open_is_refused(keys: dict[str, Any], key: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelSpec.from_config(DOTS3 | keys)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, "FFFF"),
        ({"use_cla": False, "cla_share_factor": 2}, "FFFF"),
        ({"use_cla": True, "cla_share_factor": 2}, "F-F-"),
        ({"use_cla": True, "cla_share_factor": 3}, "F--F"),
        ({"use_cla": True}, "FFFF"),
    ],
    ids=repr,
)
def test_hunyuan_keeps_the_first_layer_of_each_group(keys: dict[str, Any], expected: str) -> None:
    """SGLang 0.5.23, `HunYuanDecoderLayer`: a layer whose number the factor does not divide has no K and V."""
    assert layout(LLAMA | {"model_type": "hunyuan"} | keys) == expected

"""What the config classes of transformers 5.24.0 make of odd files. The usual rules are in `test_models_rules.py`.

Each case was found by giving random files to a class and to us, and is named after what the class does.
"""

from __future__ import annotations

from typing import Any

import pytest

from poolplan import Attention, ModelSpec, Span, UnsupportedModelError


def decoder(model_type: str, layers: int = 8, **keys: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "hidden_size": 2048,
        "max_position_embeddings": 8192,
    } | keys


def spans(config: dict[str, Any]) -> str:
    """The spans of the layers: F for full, W for a window."""
    return "".join(layer.states[0].span.kind[0].upper() for layer in ModelSpec.from_config(config).layers)


def windows(config: dict[str, Any]) -> set[int]:
    states = [layer.states[0] for layer in ModelSpec.from_config(config).layers]
    return {state.span.tokens for state in states if state.span.tokens is not None}


@pytest.mark.parametrize(
    ("layers", "expected"), [(8, "WWWFWWWF"), (5, "FWWWF"), (6, "WFWWWF"), (7, "WWFWWWF"), (1, "F")]
)
def test_muse_glimmer_counts_its_full_layers_from_the_last(layers: int, expected: str) -> None:
    """`MuseGlimmerTextConfig`: full where (L - 1 - i) % 4 == 0, which is (i + 1) % 4 == 0 only for L = 4n."""
    assert spans(decoder("muse_glimmer_text", layers, sliding_window=64)) == expected


SOME_WINDOWS = ["sliding_attention", "full_attention"] * 4


@pytest.mark.parametrize("model_type", ["qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_moe", "qwen3", "smollm3"])
def test_windows_in_layer_types_are_dropped_too_unless_they_are_used(model_type: str) -> None:
    """The Qwen classes set `sliding_window` to null (`qwen2_moe`: to 0), SmolLM3's layers do not pass it on."""
    config = decoder(model_type, layer_types=SOME_WINDOWS, sliding_window=64)
    assert spans(config) == spans(config | {"use_sliding_window": False}) == "FFFFFFFF"
    assert spans(config | {"use_sliding_window": True}) == "WFWFWFWF"


def test_unused_windows_do_not_hide_other_layers() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelSpec.from_config(decoder("qwen3", layer_types=["linear_attention"] * 8))
    assert caught.value.key == "layer_types"


@pytest.mark.parametrize(
    ("model_type", "value", "tokens"),
    [
        ("gemma2", True, 64),
        ("gemma3_text", True, 33),
        ("gemma3_text", False, 64),
        ("gemma4_text", "all", 33),
        ("gemma4_text", "vision", 64),
        ("gemma4_unified_text", "vision", 64),
    ],
)
def test_half_of_a_window_looks_ahead_where_the_class_says_so(model_type: str, value: object, tokens: int) -> None:
    """`Gemma3TextConfig` and `Gemma4TextConfig` halve the window; `Gemma2Config` has the key and does not."""
    assert windows(decoder(model_type, sliding_window=64, use_bidirectional_attention=value)) == {tokens}


def test_the_last_layer_of_gemma_4_is_full_whatever_its_type() -> None:
    """`Gemma4TextConfig.__post_init__` forces it, with a warning, also where `layer_types` is given."""
    config = decoder("gemma4_text", 2, sliding_window=64, layer_types=["sliding_attention"] * 2, head_dim=256)
    window, full = (layer.states[0] for layer in ModelSpec.from_config(config).layers)
    assert window == Attention(num_kv_heads=4, head_dim=256, span=Span.window(64))
    assert full == Attention(num_kv_heads=4, head_dim=512)


@pytest.mark.parametrize(("model_type", "default"), [("exaone", 8), ("internlm3", 2)])
def test_missing_kv_heads_are_the_class_default_and_null_ones_are_all_heads(model_type: str, default: int) -> None:
    config = decoder(model_type, 1, head_dim=128)
    assert ModelSpec.from_config(config | {"num_key_value_heads": None}).layers[0].states == (
        Attention(num_kv_heads=16, head_dim=128),
    )
    del config["num_key_value_heads"]
    assert ModelSpec.from_config(config).layers[0].states == (Attention(num_kv_heads=default, head_dim=128),)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        pytest.param(
            decoder("gpt2", add_cross_attention=True), "add_cross_attention", id="gpt2 as a decoder of images"
        ),
        pytest.param(decoder("idefics", cross_layer_interval=1), "cross_layer_interval", id="idefics"),
        pytest.param(decoder("hrm_text", H_cycles=2, L_cycles=3), "H_cycles", id="hrm_text runs 16 layers 8 times"),
        pytest.param(
            {
                "model_type": "blt",
                "decoder_config": decoder("blt_local_decoder"),
                "global_config": decoder("blt_global"),
            },
            "global_config",
            id="blt has a stack beside its decoder",
        ),
    ],
)
def test_what_a_plain_looking_file_keeps_besides_is_refused(config: dict[str, Any], key: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelSpec.from_config(config)
    assert caught.value.key == key


@pytest.mark.parametrize("value", [7, ["llama"], {"llama": 1}, True], ids=repr)
def test_a_model_type_that_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelSpec.from_config(decoder("llama") | {"model_type": value})
    assert caught.value.key == "model_type"


def test_a_repeat_count_cannot_ask_for_all_memory() -> None:
    """A billion repeats took 16 GB before the first was looked at."""
    config = decoder("gpt_neo", window_size=64, attention_types=[[["global", "local"], 10**9]])
    assert spans(config) == "FWFWFWFW"


@pytest.mark.parametrize("factor", [5e-324, 1e-9, 2.0**30])
def test_a_factor_that_leaves_no_context_length_is_refused(factor: float) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelSpec.from_config(decoder("llama", rope_scaling={"type": "linear", "factor": factor}))
    assert caught.value.key == "rope_scaling"


@pytest.mark.parametrize("key", ["num_key_value_heads", "head_dim", "v_head_dim"])
def test_a_number_that_no_state_can_hold_is_the_files_fault(key: str) -> None:
    """Between 2^24, which a state holds at most, and 2^31."""
    with pytest.raises(UnsupportedModelError, match="16777217"):
        ModelSpec.from_config(decoder("llama", **{key: 2**24 + 1}))

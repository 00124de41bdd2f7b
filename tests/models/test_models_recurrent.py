"""Recurrent families that few keys give away: GLA and Qwen4-Exp, and those whose state is not known exactly."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import pytest

from poolplan import (
    Attention,
    IndexKey,
    InvalidOptionError,
    ModelSpec,
    RecurrentState,
    UnsupportedModelError,
    cell_bytes,
)

FACTS = Path(__file__).parents[1] / "facts"
ROWS = {
    row["config"]: row for row in csv.DictReader((FACTS / "state_bytes.csv").read_text(encoding="utf-8").splitlines())
}

# flash-linear-attention, the defaults of `GLAConfig`.
GLA: dict[str, Any] = {
    "model_type": "gla",
    "hidden_size": 2048,
    "expand_k": 0.5,
    "expand_v": 1,
    "num_hidden_layers": 24,
    "num_heads": 4,
    "num_kv_heads": None,
    "use_short_conv": False,
    "attn": None,
    "max_position_embeddings": 2048,
}
# transformers 5.24.0, the defaults of `Qwen4ExpTextConfig`.
QWEN4: dict[str, Any] = {
    "model_type": "qwen4_exp_text",
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "ple_layer_ids": None,
    "indexer_n_heads": None,
}
PLAIN: dict[str, Any] = {
    "hidden_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
}


def states_of(config: dict[str, Any]) -> dict[int, RecurrentState]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ModelSpec.from_config(config)
    layers = enumerate(model.layers)
    return {index: state for index, layer in layers for state in layer.states if isinstance(state, RecurrentState)}


def state_bytes(config: dict[str, Any], tp_size: int = 1) -> int:
    return sum(cell_bytes(state, kv_cache_dtype="bfloat16", tp_size=tp_size) for state in states_of(config).values())


def attending(config: dict[str, Any]) -> list[int]:
    layers = ModelSpec.from_config(config).layers
    return [index for index, layer in enumerate(layers) if any(isinstance(state, Attention) for state in layer.states)]


def test_gla_keeps_a_matrix_for_each_head_and_no_token() -> None:
    """Keys of 1024 and values of 2048 in 4 heads: 256 x 512 in 32 bits each, in all of 24 layers."""
    assert attending(GLA) == []
    assert state_bytes(GLA) == 24 * 4 * 256 * 512 * 4
    assert state_bytes(GLA, tp_size=4) == 24 * 256 * 512 * 4
    with pytest.raises(InvalidOptionError, match="tp_size"):
        state_bytes(GLA, tp_size=8)


def test_kv_heads_of_gla_do_not_shrink_its_state() -> None:
    assert state_bytes(GLA | {"num_kv_heads": 1}) == state_bytes(GLA)


@pytest.mark.parametrize("tp_size", [1, 2, 4, 8, 16])
def test_the_states_of_qwen4_exp_are_those_of_qwen3_5(tp_size: int) -> None:
    """Its class has the heads of Qwen3.5-35B-A3B, and as many linear layers: SGLang's own classes shape both alike."""
    row = ROWS["Qwen--Qwen3.5-35B-A3B"]
    assert len(states_of(QWEN4)) == int(row["layers"])
    assert state_bytes(QWEN4, tp_size) == int(row[f"tp{tp_size}"])


@pytest.mark.parametrize(
    ("keys", "full"),
    [
        pytest.param({}, [3, 7], id="the last of each four"),
        pytest.param({"full_attention_interval": 3}, [2, 5], id="of each three"),
        pytest.param({"layer_types": ["linear_attention", "full_attention"] * 4}, [1, 3, 5, 7], id="by name"),
        pytest.param({"layer_types": ["indexed_attention"] + ["linear_attention"] * 7}, [0], id="transformers' name"),
        pytest.param({"layer_types": ["linear_attention"] * 7 + ["qwen_sparse_attention"]}, [7], id="SGLang's name"),
        pytest.param({"layer_types": ["linear_attention"] * 8 + ["full_attention"]}, [], id="an MTP layer follows"),
    ],
)
def test_the_layers_of_qwen4_exp_that_have_attention(keys: dict[str, Any], full: list[int]) -> None:
    config = QWEN4 | {"num_hidden_layers": 8} | keys
    assert attending(config) == full
    assert sorted(states_of(config)) == [index for index in range(8) if index not in full]


def test_the_text_part_of_qwen4_exp_is_nested() -> None:
    nested = {
        "model_type": "qwen4_exp",
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
        "text_config": QWEN4,
    }
    assert state_bytes(nested) == state_bytes(QWEN4)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        pytest.param(GLA | {"use_short_conv": True}, "use_short_conv", id="gla with convolutions"),
        pytest.param(GLA | {"attn": {"layers": [1], "num_heads": 4}}, "attn", id="gla with attention"),
        pytest.param(GLA | {"expand_k": 0.3}, "expand_k", id="a width that is not whole heads"),
        pytest.param(GLA | {"expand_k": 1e-9}, "expand_k", id="a head without elements"),
        pytest.param(GLA | {"expand_v": None}, "expand_v", id="no share"),
        pytest.param(GLA | {"expand_v": True}, "expand_v", id="a share that is a bool"),
        pytest.param(GLA | {"expand_v": float("nan")}, "expand_v", id="a share that is no number"),
        pytest.param(GLA | {"num_heads": 0}, "num_heads", id="no heads"),
        pytest.param(QWEN4 | {"ple_layer_ids": [1, 3]}, "ple_layer_ids", id="n-gram layers"),
        pytest.param(QWEN4 | {"ple_layer_ids": 3}, "ple_layer_ids", id="n-gram layers that are no list"),
        pytest.param(QWEN4 | {"indexer_n_heads": 16}, "indexer_n_heads", id="index keys"),
        pytest.param(QWEN4 | {"indexer_compress_ratio": 4}, "indexer_compress_ratio", id="a part of the index keys"),
        pytest.param(QWEN4 | {"layer_types": ["linear_attention"] * 7}, "layer_types", id="a list that is too short"),
        pytest.param(QWEN4 | {"layer_types": ["strange"] * 40}, "layer_types", id="a layer that is not known"),
        pytest.param(QWEN4 | {"layer_types": [[1]] * 40}, "layer_types", id="layers that are lists"),
        pytest.param(QWEN4 | {"linear_key_head_dim": 1.5}, "linear_key_head_dim", id="half an element"),
        pytest.param(QWEN4 | {"sliding_window": 4096}, "sliding_window", id="a window"),
    ],
)
def test_what_is_not_planned_is_refused_with_its_key(config: dict[str, Any], key: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelSpec.from_config(config)
    assert caught.value.key == key


@pytest.mark.parametrize("model_type", ["gated_deltanet", "hgrn2", "retnet", "rwkv6", "rwkv7", "yuan", "zaya"])
def test_a_state_that_is_not_known_exactly_is_not_taken_for_attention(model_type: str) -> None:
    """None of these keys says that there is a state: a plain decoder has the same."""
    with pytest.raises(UnsupportedModelError, match="keeps a state for each request") as caught:
        ModelSpec.from_config(PLAIN | {"model_type": model_type})
    assert caught.value.key == "model_type"


OLMO: dict[str, Any] = {
    "model_type": "olmo_hybrid",
    "num_hidden_layers": 8,
    "hidden_size": 2048,
    "num_attention_heads": 16,
}
# transformers 5.24.0 writes `BailingHybridConfig()` so: `head_dim` is then the rotary dimension.
BAILING: dict[str, Any] = {
    "model_type": "bailing_hybrid",
    "num_hidden_layers": 6,
    "layer_types": ["linear_attention"] * 5 + ["full_attention"],
    "head_dim": 64,
    "linear_head_dim": 128,
    "linear_num_heads": 32,
    "short_conv_kernel_size": 4,
}
GLM: dict[str, Any] = {
    "model_type": "glm5_next_text",
    "layer_types": ["indexed_attention" if index % 4 == 3 else "linear_attention" for index in range(45)],
}


@pytest.mark.parametrize(
    ("config", "layer"),
    [
        # `OlmoHybridConfig`: 16 key heads of 96 and value heads of 192.
        pytest.param(OLMO, 6144 * 3 * 2 + 3072 * 96 * 4, id="olmo hybrid divides its own width"),
        pytest.param(BAILING, 3 * 4096 * 3 * 2 + 32 * 128 * 128 * 4, id="bailing hybrid as transformers writes it"),
        pytest.param({"model_type": "rwkv", "hidden_size": 2048}, 2 * 2048 * 2 + 3 * 2048 * 4, id="rwkv of one width"),
        pytest.param(
            {"model_type": "nemotron_h", "hybrid_override_pattern": "M*", "mamba_n_groups": 4},
            (8192 + 2 * 4 * 128) * 3 * 2 + 8192 * 128 * 4,
            id="nemotron's other name for groups",
        ),
    ],
)
def test_what_a_class_works_out_from_other_keys_is_not_its_default(config: dict[str, Any], layer: int) -> None:
    """transformers 5.24.0: these numbers follow from the file's own keys."""
    assert {cell_bytes(state, kv_cache_dtype="bfloat16", tp_size=1) for state in states_of(config).values()} == {layer}


@pytest.mark.parametrize(
    ("config", "head_dim"),
    [
        pytest.param(
            {"model_type": "recurrent_gemma", "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 1},
            128,
            id="recurrent gemma",
        ),
        pytest.param(
            {
                "model_type": "zamba",
                "num_hidden_layers": 3,
                "hidden_size": 2048,
                "layers_block_type": ["mamba", "mamba", "hybrid"],
            },
            256,
            id="zamba: twice the width, in 16 heads",
        ),
    ],
)
def test_a_head_that_a_class_divides_is_not_its_default(config: dict[str, Any], head_dim: int) -> None:
    layers = ModelSpec.from_config(config).layers
    heads = {state.head_dim for layer in layers for state in layer.states if isinstance(state, Attention)}
    assert heads == {head_dim}


@pytest.mark.parametrize(("layers", "full"), [(2, [1]), (3, [2]), (5, [3])])
def test_olmo_hybrid_has_at_least_one_layer_of_attention(layers: int, full: list[int]) -> None:
    assert attending(OLMO | {"num_hidden_layers": layers, "full_attention_interval": 2}) == full


@pytest.mark.parametrize(
    ("keys", "owners"),
    [
        # What `Glm5NextTextConfig` of transformers 5.24.0 answers, and SGLang 0.5.23's `dsa_layer_skips_topk`.
        pytest.param({"index_topk_freq": 3}, [7, 19, 31, 43], id="every third"),
        pytest.param(
            {"index_topk_freq": 8, "index_skip_topk_offset": 4}, [3, 11, 19, 27, 35, 43], id="every eighth from 3 on"
        ),
        pytest.param({"index_topk_pattern": "F" * 8 + "S" * 37}, [3, 7], id="by letters"),
        pytest.param({"index_topk": None}, [], id="without an indexer"),
    ],
)
def test_the_layers_of_glm_5_3_that_own_an_indexer(keys: dict[str, Any], owners: list[int]) -> None:
    layers = ModelSpec.from_config(GLM | keys).layers
    own = [index for index, layer in enumerate(layers) if any(isinstance(state, IndexKey) for state in layer.states)]
    assert own == owners


@pytest.mark.parametrize("settings", [{"layer": "Mamba3"}, {"layer": None}, {"layer": "Mamba2", "d_ssm": 1024}])
def test_a_layer_of_the_mamba_package_that_is_not_known_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelSpec.from_config({"d_model": 2560, "n_layer": 4, "ssm_cfg": settings})
    assert caught.value.key == "ssm_cfg"

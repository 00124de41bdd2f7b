"""Bytes of recurrent state for each request and rank, as SGLang 0.5.23's own config classes shape it; and the families' traps."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from poolplan import (
    Attention,
    InvalidOptionError,
    LatentAttention,
    ModelSpec,
    RecurrentState,
    UnsupportedModelError,
    cell_bytes,
)

FACTS = Path(__file__).parents[1] / "facts"
ROWS = list(csv.DictReader((FACTS / "state_bytes.csv").read_text(encoding="utf-8").splitlines()))


def config_of(name: str) -> dict[str, Any]:
    return json.loads((FACTS / "configs" / f"{name}.json").read_text())


def state_bytes(model: ModelSpec, tp_size: int = 1) -> int:
    """Bytes of one request in all layers on one rank: inputs in BF16, states in FP32."""
    return sum(cell_bytes(state, kv_cache_dtype="bfloat16", tp_size=tp_size) for _, state in states_of(model))


def states_of(model: ModelSpec) -> list[tuple[int, RecurrentState]]:
    layers = enumerate(model.layers)
    return [(index, state) for index, layer in layers for state in layer.states if isinstance(state, RecurrentState)]


def linear_layers(config: dict[str, Any]) -> list[int]:
    return [index for index, _ in states_of(ModelSpec.from_config(config))]


def test_the_facts_are_there() -> None:
    assert len(ROWS) == 19


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["config"])
def test_a_state_takes_the_bytes_that_sglang_shapes(row: dict[str, str]) -> None:
    model = ModelSpec.from_config(config_of(row["config"]), name=row["config"])
    assert len(states_of(model)) == int(row["layers"])
    for tp_size in (1, 2, 4, 8, 16):
        if row[f"tp{tp_size}"]:
            assert state_bytes(model, tp_size) == int(row[f"tp{tp_size}"])
        else:
            # Falcon-H1-0.5B has 24 heads of state: 16 ranks cannot share them.
            with pytest.raises(InvalidOptionError, match="tp_size"):
                state_bytes(model, tp_size)


MAMBA = {"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64}
JAMBA = {"model_type": "jamba", "num_hidden_layers": 32}
QWEN = {"model_type": "qwen3_next", "num_hidden_layers": 8}
KIMI = {"model_type": "kimi_linear", "num_hidden_layers": 4}
KDA = {"head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4}
RING = {
    "model_type": "bailing_moe_linear",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 4096,
}
MINIMAX = {
    "model_type": "minimax_m1",
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 1_048_576,
}


def test_a_stale_expand_is_not_read() -> None:
    """falcon-mamba-7b says `expand: 16`, and 8,192 channels: 64 layers take 36,700,160 bytes (conv 8192x3, state 8192x16)."""
    config = MAMBA | {"model_type": "falcon_mamba", "hidden_size": 4096, "expand": 16, "intermediate_size": 8192}
    assert state_bytes(ModelSpec.from_config(config)) == 64 * (8192 * 3 * 2 + 8192 * 16 * 4)


def test_the_files_of_the_mamba_package_are_read() -> None:
    """mamba-2.8b: 64 layers of 5,120 channels, 22.9 MB with inputs in BF16 and states in BF16 as well."""
    model = ModelSpec.from_config({"d_model": 2560, "n_layer": 64, "ssm_cfg": {}})
    (state,) = {state for _, state in states_of(model)}
    halved = cell_bytes(state, kv_cache_dtype="bfloat16", tp_size=1, mamba_ssm_dtype="bfloat16")
    assert 64 * halved == 64 * 2 * 5120 * (3 + 16) == 12_451_840
    assert state_bytes(model) == 64 * (5120 * 3 * 2 + 5120 * 16 * 4) == 22_937_600
    second = ModelSpec.from_config({"d_model": 2560, "n_layer": 64, "ssm_cfg": {"layer": "Mamba2"}})
    assert state_bytes(second) == 64 * ((5120 + 2 * 128) * 3 * 2 + 80 * 64 * 128 * 4)
    with pytest.raises(UnsupportedModelError, match="attn_layer_idx"):
        ModelSpec.from_config({"d_model": 2560, "n_layer": 64, "ssm_cfg": {}, "attn_layer_idx": [9, 18]})


@pytest.mark.parametrize(
    ("config", "full"),
    [
        pytest.param(JAMBA, [4, 12, 20, 28], id="jamba: 4 of 32, 16,384 bytes"),
        pytest.param(QWEN, [3, 7], id="qwen3-next: the last of each four"),
        pytest.param(QWEN | {"full_attention_interval": 2}, [1, 3, 5, 7], id="qwen3-next: of each two"),
        pytest.param({"model_type": "olmo_hybrid", "num_hidden_layers": 5}, [3], id="olmo hybrid"),
        # 20 layers in groups of 6: the two after the last group have softmax attention too.
        pytest.param(RING | {"num_hidden_layers": 20, "layer_group_size": 6}, [5, 11, 17, 18, 19], id="ring: the tail"),
        pytest.param(RING | {"num_hidden_layers": 4, "layer_group_size": [1, 0, 1, 1]}, [1], id="ring: a 1 is linear"),
        pytest.param(MINIMAX | {"num_hidden_layers": 4, "attn_type_list": [0, 1, 0, 0]}, [1], id="m1: a 1 is softmax"),
        pytest.param(
            KIMI | {"linear_attn_config": KDA | {"kda_layers": [1, 2, 3], "full_attn_layers": [4]}},
            [3],
            id="kimi linear counts from 1",
        ),
        pytest.param({"model_type": "bamba", "attn_layer_indices": [9, 18, 27]}, [9, 18, 27], id="bamba"),
        pytest.param({"model_type": "bamba"}, [], id="bamba without attention"),
        pytest.param({"model_type": "granitemoehybrid"}, [], id="granite 4 without layer_types"),
        pytest.param(
            {"model_type": "lfm2", "num_hidden_layers": 4, "full_attn_idxs": [2], "hidden_size": 2048},
            [2],
            id="lfm2, older files",
        ),
        pytest.param({"model_type": "lfm2", "num_hidden_layers": 3}, [0, 1, 2], id="lfm2 without either list"),
    ],
)
def test_the_layers_that_have_attention(config: dict[str, Any], full: list[int]) -> None:
    model = ModelSpec.from_config(config)
    kinds = (Attention, LatentAttention)
    attending = [index for index, layer in enumerate(model.layers) if any(isinstance(s, kinds) for s in layer.states)]
    assert attending == full
    assert [index for index, _ in states_of(model)] == [i for i in range(len(model.layers)) if i not in full]


def test_every_layer_of_falcon_h1_has_both() -> None:
    model = ModelSpec.from_config(config_of("tiiuae--Falcon-H1-0.5B-Instruct"))
    assert all({type(state) for state in layer.states} == {Attention, RecurrentState} for layer in model.layers)


def test_the_state_of_minimax_m1_is_the_largest() -> None:
    """70 layers of 64 heads of 128 x 128 in 32 bits: 293.6 MB a request, whatever the KV heads."""
    model = ModelSpec.from_config(MINIMAX | {"num_hidden_layers": 80, "attn_type_list": ([0] * 7 + [1]) * 10})
    assert state_bytes(model) == 70 * 64 * 128 * 128 * 4 == 293_601_280


def test_a_file_may_say_the_dtype_of_its_states() -> None:
    """SGLang 0.5.23, `mamba_utils`: `mamba_ssm_dtype` of the text part, and not Nemotron's `mamba_ssm_cache_dtype`."""
    named = config_of("Qwen--Qwen3.5-27B")
    assert ModelSpec.from_config(named).mamba_ssm_dtype == "float32"
    named["text_config"]["mamba_ssm_dtype"] = "bfloat16"
    assert ModelSpec.from_config(named).mamba_ssm_dtype == "bfloat16"
    nemotron = config_of("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4") | {"mamba_ssm_cache_dtype": "float16"}
    assert ModelSpec.from_config(nemotron).mamba_ssm_dtype == "float32"


def test_groups_follow_ranks_where_they_are_fewer() -> None:
    """granite-4.0-h-tiny: 3,328 rows of inputs on one rank, 640 on each of 8 (SGLang 0.5.23, `Mamba2StateShape`)."""
    granite = {
        "model_type": "granitemoehybrid",
        "hidden_size": 1536,
        "num_hidden_layers": 1,
        "mamba_n_heads": 48,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
    }
    ((_, state),) = states_of(ModelSpec.from_config(granite))
    inputs = RecurrentState(tensors=[tensor for tensor in state.tensors if tensor.role == "conv"])
    on = {tp: cell_bytes(inputs, kv_cache_dtype="bfloat16", tp_size=tp) for tp in (1, 8)}
    assert on == {1: 3328 * 3 * 2, 8: 640 * 3 * 2}


@pytest.mark.parametrize(
    ("config", "key"),
    [
        pytest.param({"model_type": "mamba2", "num_heads": 100}, "mamba_n_heads", id="heads that are not the channels"),
        pytest.param(QWEN | {"layer_types": ["linear_attention"] * 7}, "layer_types", id="a list that is too short"),
        pytest.param(QWEN | {"layer_types": ["strange"] * 8}, "layer_types", id="a layer that is not known"),
        pytest.param(KIMI, "linear_attn_config", id="kimi without its lists"),
        pytest.param(
            KIMI | {"linear_attn_config": KDA | {"kda_layers": [0, 1, 2], "full_attn_layers": [3]}},
            "linear_attn_config",
            id="kimi counting from 0",
        ),
        pytest.param({"model_type": "lfm2_moe"}, "layer_types", id="lfm2_moe without either list"),
        pytest.param({"model_type": "minimax"}, "attn_type_list", id="minimax without either list"),
        pytest.param(
            {"model_type": "rwkv5", "hidden_size": 100, "num_hidden_layers": 1}, "hidden_size", id="rwkv heads"
        ),
        pytest.param({"model_type": "nemotron_h", "hybrid_override_pattern": "MXM"}, "hybrid_override_pattern", id="X"),
        pytest.param({"model_type": "nemotron_h", "layers_block_type": [[1]]}, "hybrid_override_pattern", id="lists"),
        pytest.param({"model_type": "xlstm", "qk_dim_factor": 0.3}, "qk_dim_factor", id="xlstm rounds"),
        pytest.param({"model_type": "recurrent_gemma", "block_types": []}, "block_types", id="no blocks"),
        pytest.param({"model_type": "zamba2", "layers_block_type": ["mamba"]}, "n_mamba_heads", id="zamba2 heads"),
        pytest.param(
            {"model_type": "glm5_next_text", "index_kpool_compress": True}, "index_kpool_compress", id="tails"
        ),
    ],
)
def test_what_a_file_leaves_open_is_refused_with_its_key(config: dict[str, Any], key: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelSpec.from_config(config)
    assert caught.value.key == key

"""Files that are wrong, or keep what is not known: refused with the key that says so. Rules are in `test_models_rules.py`."""

from __future__ import annotations

from typing import Any, cast

import pytest

from poolplan import ModelSpec, UnknownModelWarning, UnsupportedModelError
from samples import DSA, LLAMA


@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "num_key_value_heads", "head_dim", "hidden_size", "max_position_embeddings"]
)
@pytest.mark.parametrize("value", [True, "8", 8.0, -1, 2**31, 1e400, [8], {"a": 1}, float("nan")], ids=repr)
def test_a_number_that_is_no_number_is_refused_with_its_key(key: str, value: Any) -> None:
    if key == "hidden_size":
        config = LLAMA | {key: value, "head_dim": None}
    else:
        config = LLAMA | {key: value}
    with pytest.raises(UnsupportedModelError) as caught:
        ModelSpec.from_config(config)
    assert caught.value.key == key


UNREADABLE: list[tuple[dict[str, Any], str]] = [
    (LLAMA | {"num_hidden_layers": 100_001}, "num_hidden_layers"),
    (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers"),
    (LLAMA | {"hidden_size": 4097}, "head_dim"),
    (LLAMA | {"sliding_window": 128}, "sliding_window"),
    (LLAMA | {"layer_types": "full_attention"}, "layer_types"),
    (LLAMA | {"layer_types": ["full_attention"] * 3}, "layer_types"),
    (LLAMA | {"layer_types": ["linear_attention"] * 4}, "layer_types"),
    (LLAMA | {"layer_types": ["sliding_attention"] * 4}, "sliding_window"),
    (LLAMA | {"rope_scaling": {"type": "linear", "factor": "4"}}, "rope_scaling"),
    (LLAMA | {"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling"),
    (LLAMA | {"torch_dtype": 16}, "torch_dtype"),
    (LLAMA | {"kv_lora_rank": 512}, "kv_lora_rank"),
    (LLAMA | {"index_topk": 2048}, "index_topk"),
    (DSA | {"indexer_types": ["full"]}, "indexer_types"),
    (DSA | {"index_topk_pattern": 7}, "index_topk_pattern"),
    (DSA | {"index_head_dim": None}, "index_head_dim"),
    (DSA | {"layer_types": ["sliding_attention"] * 8}, "layer_types"),
    (
        LLAMA | {"model_type": "minimax_m3", "sparse_attention_config": {"use_sparse_attention": True}},
        "sparse_index_dim",
    ),
    (
        LLAMA
        | {
            "model_type": "minimax_m3",
            "sparse_attention_config": {
                "use_sparse_attention": True,
                "sparse_index_dim": 128,
                "sparse_attention_freq": [[1]] * 4,
            },
        },
        "sparse_attention_freq",
    ),
    (LLAMA | {"is_encoder_decoder": True}, "is_encoder_decoder"),
    (LLAMA | {"use_cla": True}, "use_cla"),
    (LLAMA | {"num_loops": 2}, "num_loops"),
    (LLAMA | {"model_type": "minimax_m2", "attn_type_list": [1, 0, 1, 1]}, "attn_type_list"),
    (LLAMA | {"model_type": "dbrx"}, "attn_config"),
    (LLAMA | {"model_type": "falcon", "multi_query": "yes"}, "multi_query"),
    (LLAMA | {"model_type": "llama4_text", "no_rope_layers": [1, 2, 0, 1]}, "no_rope_layers"),
    (LLAMA | {"model_type": "gpt_neo", "attention_types": [["global", "local"]]}, "attention_types"),
    (LLAMA | {"model_type": "gpt_neo", "attention_layers": ["global"] * 3}, "attention_layers"),
    (
        LLAMA | {"model_type": "exaone4", "sliding_window": 64, "sliding_window_pattern": "LLX"},
        "sliding_window_pattern",
    ),
    (LLAMA | {"model_type": "laguna", "sliding_window": 64}, "layer_types"),
    (LLAMA | {"model_type": "mimo_v2_flash"}, "hybrid_layer_pattern"),
    (LLAMA | {"model_type": "nemotron-nas", "block_configs": [{}] * 4}, "block_configs"),
    (LLAMA | {"model_type": "nemotron-nas"}, "block_configs"),
    ({"model_type": "internlm2"}, "hidden_size"),
    (
        {"model_type": "chatglm", "num_layers": 2, "num_attention_heads": 2, "hidden_size": 8},
        "max_position_embeddings",
    ),
]


@pytest.mark.parametrize(("config", "key"), UNREADABLE, ids=lambda value: str(cast("object", value))[-70:])
def test_what_cannot_be_read_is_refused_with_its_key(config: dict[str, Any], key: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelSpec.from_config(config)
    assert caught.value.key == key
    assert key in str(caught.value)


UNKNOWN = LLAMA | {"model_type": "brand_new"}


def test_an_unknown_plain_decoder_is_planned_with_a_warning_that_names_it() -> None:
    with pytest.warns(UnknownModelWarning, match="brand_new"):
        model = ModelSpec.from_config(UNKNOWN)
    assert model.layers == ModelSpec.from_config(LLAMA).layers


@pytest.mark.parametrize(
    "keys",
    [
        {"mamba_d_state": 16},
        {"mixer_types": ["lightning"] * 4},
        {"lightning_head_dim": 128},
        {"efficient_attention_config": {"jet": {}}},
        {"ssm_anything": 1},
        {"linear_key_head_dim": 128},
        {"index_topk": 2048},
        {"kv_lora_rank": 512},
        {"sliding_window": 128},
        {"compress_ratios": [4]},
        {"cross_attention_layers": [3]},
        {"num_kv_shared_layers": 2},
        {"swa_head_dim": 64},
        {"encoder_layers": 6},
        {"layer_types": ["sliding_attention"] * 4},
        {"attn_type_list": [1, 0]},
    ],
    ids=repr,
)
def test_an_unknown_model_that_hints_at_other_state_is_refused_with_the_key(keys: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelSpec.from_config(UNKNOWN | keys)
    assert caught.value.key == next(iter(keys))


@pytest.mark.parametrize("value", [None, False, 0, [], {}, ""], ids=repr)
def test_a_hint_that_is_not_set_is_none(value: Any) -> None:
    keys = dict.fromkeys(("mamba_d_state", "index_topk", "kv_lora_rank", "is_encoder_decoder", "sliding_window"), value)
    with pytest.warns(UnknownModelWarning):
        ModelSpec.from_config(UNKNOWN | keys)


@pytest.mark.parametrize("config", [[], "llama", None, 7], ids=repr)
def test_what_is_no_object_is_refused(config: Any) -> None:
    with pytest.raises(UnsupportedModelError, match="not a JSON object"):
        ModelSpec.from_config(config)

"""The rules and traps of each family, one file at a time; and files that are wrong. Real files are in `test_models_facts.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from poolplan import (
    Attention,
    IndexKey,
    LatentAttention,
    ModelSpec,
    Span,
    State,
    UnknownModelWarning,
)
from poolplan.models import ConfigReader, register_model, registered_models
from samples import DSA, LLAMA


def state(config: dict[str, Any]) -> State:
    """The one state of a model whose layers are alike."""
    (only,) = {layer.states for layer in ModelSpec.from_config(config).layers}
    return only[0]


def heads(num_kv_heads: int, head_dim: int) -> Attention:
    return Attention(num_kv_heads=num_kv_heads, head_dim=head_dim)


FALCON = {"model_type": "falcon", "num_hidden_layers": 2, "max_position_embeddings": 2048}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(LLAMA, heads(8, 128), id="llama"),
        pytest.param(LLAMA | {"num_key_value_heads": None}, heads(32, 128), id="null KV heads are all heads"),
        pytest.param(LLAMA | {"head_dim": 64}, heads(8, 64), id="an explicit head_dim wins"),
        pytest.param(LLAMA | {"head_dim": None}, heads(8, 128), id="a null head_dim is divided"),
        pytest.param(LLAMA | {"v_head_dim": 0}, heads(8, 128), id="a value dim of 0 is the key's"),
        pytest.param(
            FALCON | {"num_attention_heads": 71, "hidden_size": 4544, "multi_query": True},
            heads(1, 64),
            id="falcon-7b is MQA",
        ),
        pytest.param(
            FALCON
            | {"num_attention_heads": 128, "hidden_size": 8192, "num_kv_heads": 8, "new_decoder_architecture": True},
            heads(8, 64),
            id="falcon-40b is GQA, though multi_query is true by default",
        ),
        pytest.param(
            FALCON | {"num_attention_heads": 32, "hidden_size": 2048, "multi_query": False, "num_kv_heads": 71},
            heads(32, 64),
            id="falcon-rw-1b is MHA, whatever num_kv_heads says",
        ),
        pytest.param(
            {
                "model_type": "RefinedWeb",
                "n_layer": 2,
                "n_head": 128,
                "n_head_kv": 8,
                "hidden_size": 8192,
                "n_positions": 2048,
            },
            heads(8, 64),
            id="the old falcon-40b",
        ),
        pytest.param(
            {"model_type": "gpt_bigcode", "n_layer": 2, "n_head": 48, "n_embd": 6144, "n_positions": 8192},
            heads(1, 128),
            id="starcoder is MQA by default",
        ),
        pytest.param(
            {
                "model_type": "chatglm",
                "num_layers": 2,
                "num_attention_heads": 32,
                "hidden_size": 4096,
                "kv_channels": 128,
                "multi_query_attention": False,
                "multi_query_group_num": 2,
                "seq_length": 2048,
            },
            heads(32, 128),
            id="chatglm's groups count only with multi_query_attention",
        ),
        pytest.param(
            {"model_type": "mpt", "n_layers": 2, "n_heads": 32, "d_model": 4096, "max_seq_len": 2048},
            heads(32, 128),
            id="mpt is MHA",
        ),
        pytest.param(
            {
                "model_type": "dbrx",
                "n_layers": 2,
                "n_heads": 48,
                "d_model": 6144,
                "max_seq_len": 2048,
                "attn_config": {"kv_n_heads": 8},
            },
            heads(8, 128),
            id="dbrx keeps its KV heads in attn_config",
        ),
        pytest.param(
            {
                "model_type": "deepseek_v3",
                "num_hidden_layers": 2,
                "num_key_value_heads": 128,
                "head_dim": 64,
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
            },
            LatentAttention(kv_lora_rank=512, qk_rope_head_dim=64),
            id="MLA is not its expanded heads",
        ),
    ],
)
def test_the_state_of_a_layer(config: dict[str, Any], expected: Attention | LatentAttention) -> None:
    assert state(config) == expected


def test_keys_left_out_are_the_defaults_of_the_nested_class() -> None:
    """gemma-3-4b leaves heads out: its text class has 8 heads, 4 KV heads of 256 (transformers 5.24.0)."""
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 1}}
    assert state(config) == Attention(num_kv_heads=4, head_dim=256, span=Span.window(4096))


def test_a_vision_tower_is_not_the_decoder() -> None:
    vision = {"num_hidden_layers": 27, "num_attention_heads": 16, "hidden_size": 1152}
    nested = {"model_type": "internvl_chat", "vision_config": vision, "llm_config": LLAMA}
    assert ModelSpec.from_config(nested).layers == ModelSpec.from_config(LLAMA).layers
    assert ModelSpec.from_config(LLAMA | {"vision_config": vision}).layers == ModelSpec.from_config(LLAMA).layers


def test_longcat_holds_two_attention_blocks_a_layer() -> None:
    config = {"model_type": "longcat_flash", "num_layers": 28}
    model = ModelSpec.from_config(config)
    assert sum(576 * 2 * len(layer.states) for layer in model.layers) == 64_512


def test_a_searched_model_has_layers_without_attention() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 8}},
        {"attention": {"no_op": True, "n_heads_in_group": None}},
        {"attention": {"replace_with_linear": True}},
        {"attention": {"n_heads_in_group": 16}},
    ]
    config = LLAMA | {"model_type": "nemotron-nas", "block_configs": blocks, "num_key_value_heads": None}
    kept = [layer.states for layer in ModelSpec.from_config(config).layers]
    assert kept == [(heads(4, 128),), (), (), (heads(2, 128),)]


@pytest.mark.parametrize(
    ("keys", "owners"),
    [
        ({}, "11111111"),
        ({"indexer_types": ["full", "shared"] * 4}, "10101010"),
        ({"index_topk_pattern": "FSSFSSSF"}, "10010001"),
        ({"index_topk_freq": 4}, "11000100"),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, "11100010"),
    ],
    ids=repr,
)
def test_layers_that_take_anothers_top_k_keep_no_index_key(keys: dict[str, Any], owners: str) -> None:
    """A layer skips its own search if `max(i - 1, 0) % freq`, or with an offset `max(i - offset + 1, 0) % freq`, is not 0."""
    kept = [[type(state) for state in layer.states] for layer in ModelSpec.from_config(DSA | keys).layers]
    assert "".join(str(int(IndexKey in states)) for states in kept) == owners
    assert all(states[0] is LatentAttention for states in kept)


def test_without_a_top_k_the_latent_is_a_plain_one() -> None:
    assert state(DSA | {"index_topk": None}) == LatentAttention(kv_lora_rank=512, qk_rope_head_dim=64)


def test_minimax_m3_keeps_a_key_or_key_and_value_in_sparse_layers() -> None:
    settings = {
        "use_sparse_attention": True,
        "sparse_index_dim": 128,
        "sparse_attention_freq": [0, 1, 1, 0],
        "sparse_disable_index_value": [0, 1, 0, 1],
    }
    config = LLAMA | {"model_type": "minimax_m3", "sparse_attention_config": settings}
    layers = ModelSpec.from_config(config).layers
    key = IndexKey(head_dim=128, format="bfloat16")
    assert [layer.states[1:] for layer in layers] == [(), (key,), (key, key), ()]


def spans(config: dict[str, Any]) -> str:
    """The spans of the layers: F for full, W for a window, C for a chunk."""
    letters = {"full": "F", "window": "W", "chunk": "C"}
    return "".join(letters[layer.states[0].span.kind] for layer in ModelSpec.from_config(config).layers)


def hybrid(model_type: str, **keys: Any) -> dict[str, Any]:
    return LLAMA | {"model_type": model_type, "num_hidden_layers": 8, "sliding_window": 128} | keys


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (hybrid("gemma2"), "WFWFWFWF"),
        (hybrid("gpt_oss"), "WFWFWFWF"),
        (hybrid("gemma3_text"), "WWWWWFWW"),
        (hybrid("gemma3_text", sliding_window_pattern=3), "WWFWWFWW"),
        (hybrid("cohere2"), "WWWFWWWF"),
        (hybrid("olmo3"), "WWWFWWWF"),
        (hybrid("exaone4", sliding_window_pattern="LLG"), "WWFWWFWW"),
        (hybrid("exaone4", sliding_window=None), "FFFFFFFF"),
        (hybrid("granite_swa"), "FWWWFWWW"),
        (hybrid("mistral"), "WWWWWWWW"),
        (hybrid("mistral", sliding_window=None), "FFFFFFFF"),
        (hybrid("mistral", sliding_window=8192), "FFFFFFFF"),
        (hybrid("starcoder2"), "WWWWWWWW"),
        (hybrid("phi3", sliding_window=262144), "FFFFFFFF"),
        (hybrid("qwen2", max_window_layers=3), "FFFFFFFF"),
        (hybrid("qwen2", max_window_layers=3, use_sliding_window=True), "FFFWWWWW"),
        (hybrid("qwen2_moe", max_window_layers=5, use_sliding_window=True), "WFWFWFFF"),
        (hybrid("qwen3_moe", use_sliding_window=True), "WWWWWWWW"),
        (hybrid("dots1", max_window_layers=6), "FFFFFFWW"),
        (hybrid("smollm3", use_sliding_window=True), "FFFWFFFW"),
        (hybrid("smallthinker", sliding_window_layout=[0, 1] * 4), "FWFWFWFW"),
        (hybrid("gpt_neo", attention_types=[[["global", "local"], 4]], window_size=256), "FWFWFWFW"),
        (hybrid("gpt_neo", attention_layers=["local"] * 8), "WWWWWWWW"),
        (
            hybrid("llama4_text", no_rope_layers=[1, 1, 1, 0] * 2, attention_chunk_size=512, sliding_window=None),
            "CCCFCCCF",
        ),
        (hybrid("llama4_text", no_rope_layers=[], attention_chunk_size=512, sliding_window=None), "CCCFCCCF"),
        (hybrid("llama4_text", attention_chunk_size=8192, sliding_window=None), "FFFFFFFF"),
        (hybrid("gemma4_text"), "WWWWWFWF"),
        (hybrid("llama", sliding_window=None, layer_types=["full_attention"] * 11), "FFFFFFFF"),
        (hybrid("gemma2", layer_types=["full_attention", "sliding_attention"] * 4), "FWFWFWFW"),
    ],
    ids=lambda value: str(cast("object", value))[-70:],
)
def test_which_layers_have_a_window(config: dict[str, Any], expected: str) -> None:
    """The rules of the config classes of transformers 5.24.0 for files without `layer_types`."""
    assert spans(config) == expected


def test_mimo_has_window_layers_of_their_own() -> None:
    config = hybrid(
        "mimo_v2_flash",
        num_hidden_layers=2,
        hybrid_layer_pattern=[0, 1],
        num_key_value_heads=4,
        head_dim=192,
        v_head_dim=128,
        swa_num_key_value_heads=8,
        swa_head_dim=192,
        swa_v_head_dim=128,
        attention_chunk_size=128,
    )
    full, window = (layer.states[0] for layer in ModelSpec.from_config(config).layers)
    assert full == Attention(num_kv_heads=4, head_dim=192, v_head_dim=128)
    assert window == Attention(num_kv_heads=8, head_dim=192, v_head_dim=128, span=Span.window(128))


def test_gemma_4_has_wider_full_layers_and_does_not_halve_the_cache() -> None:
    config = hybrid(
        "gemma4_text", head_dim=256, attention_k_eq_v=True, num_global_key_value_heads=2, global_head_dim=512
    )
    layers = ModelSpec.from_config(config).layers
    assert layers[5].states == (Attention(num_kv_heads=2, head_dim=512),)
    assert layers[0].states == (Attention(num_kv_heads=8, head_dim=256, span=Span.window(128)),)


def test_step_has_window_heads_in_a_nested_block() -> None:
    kinds = ["full_attention", "sliding_attention"] * 4
    config = hybrid("step3p5", layer_types=kinds, attention_other_setting={"num_attention_groups": 4, "head_dim": 64})
    assert ModelSpec.from_config(config).layers[1].states[0] == Attention(
        num_kv_heads=4, head_dim=64, span=Span.window(128)
    )
    with pytest.warns(UnknownModelWarning, match="attention_other_setting"):
        ModelSpec.from_config(hybrid("step3p5", layer_types=kinds))


@pytest.mark.parametrize(
    ("keys", "tokens"),
    [
        ({}, 8192),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 32768),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, 16384),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 8192),
        ({"rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}}, 8192),
        ({"rope_scaling": {"type": "linear", "factor": 1.5}}, 12288),
        ({"model_max_length": 4096}, 4096),
        ({"seq_length": 2048, "model_max_length": 4096}, 2048),
    ],
    ids=repr,
)
def test_the_context_length_is_sglangs(keys: dict[str, Any], tokens: int) -> None:
    """SGLang 0.5.23, `get_context_length`; held against its own answers for whole files in `test_sglang_plans.py`."""
    assert ModelSpec.from_config(LLAMA | keys).context_length == tokens


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({}, "bfloat16"),
        ({"torch_dtype": "float32"}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, "fp8_e4m3"),
        ({"quantization_config": {"kv_cache_scheme": None}}, "bfloat16"),
        ({"quantization_config": {"kv_cache_quant_algo": "FP8"}}, "fp8_e4m3"),
        ({"quantization_config": {"kv_cache_quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "int"}}}, "int8"),
    ],
    ids=repr,
)
def test_what_auto_means_for_the_cache(keys: dict[str, Any], dtype: str) -> None:
    assert ModelSpec.from_config(LLAMA | keys).kv_cache_dtype == dtype


def test_a_user_registers_an_architecture_from_outside(tmp_path: Path) -> None:
    """In a process of its own, as registrations last."""
    script = tmp_path / "mine.py"
    script.write_text(
        "from poolplan import Attention, Layer, ModelSpec, register_model\n"
        "from poolplan.models import ConfigReader\n"
        "@register_model('my_model', 'MyModelForCausalLM', reads=['sliding_window'])\n"
        "def my_model(config: ConfigReader) -> list[Layer]:\n"
        "    return [Layer(states=[Attention(num_kv_heads=config.integer('my_heads'), head_dim=8)])] * config.num_layers\n"
        "for names in ({'model_type': 'my_model'}, {'model_type': 'llama', 'architectures': ['MyModelForCausalLM']}):\n"
        "    keys = {'num_hidden_layers': 3, 'my_heads': 2, 'max_position_embeddings': 64, 'sliding_window': 8}\n"
        "    model = ModelSpec.from_config(names | keys)\n"
        "    assert model.layers == (Layer(states=[Attention(num_kv_heads=2, head_dim=8)]),) * 3, model\n"
    )
    subprocess.run([sys.executable, "-W", "error", str(script)], check=True)


def test_registering_replaces_and_is_listed() -> None:
    before = registered_models()
    assert {"llama", "deepseek_v3", "gpt_oss", "mimo_v2_flash", "MiniCPM3ForCausalLM"} <= set(before)
    assert callable(register_model)
    assert ConfigReader(LLAMA, "llama").num_layers == 4

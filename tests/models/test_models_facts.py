"""Real files against bytes that were worked out by hand: `tests/facts/models.csv`."""

from __future__ import annotations

import csv
import json
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from poolplan import (
    Attention,
    CompressedLatent,
    CompressorState,
    IndexKey,
    LatentAttention,
    ModelSpec,
    RecurrentState,
    RuntimeSpec,
    State,
    UnknownModelWarning,
    UnsupportedModelError,
    cell_bytes,
    create_memory_pool_configurator,
)

FACTS = Path(__file__).parents[1] / "facts"
ROWS = list(csv.DictReader((FACTS / "models.csv").read_text(encoding="utf-8").splitlines()))
PLANNED = [row for row in ROWS if not row["refused_key"]]
REFUSED = [row for row in ROWS if row["refused_key"]]

KINDS = ("full", "window", "chunk", "index", "state", "cross")
# The rows of a request's rings without speculation (SGLang 0.5.23, `get_compress_state_ring_size`).
RING_ROWS = {4: 8, 128: 128}
# A window that is not shorter than the context is full attention: this class has a window of 4,096 and 2,048 positions.
FULL_BY_CONTEXT = {"transformers-default--exaone_moe"}
# What a file says wrongly or not at all, and we say so.
WARNED = {
    "SpecForge-draft--deepseek-v3-671b-eagle3": "LlamaForCausalLMEagle3",
    "SpecForge-draft--phi4-eagle3": "LlamaForCausalLMEagle3",
    "SpecForge-draft--qwen3-8b-dflash": "DFlashDraftModel",
    "SpecForge-draft--qwen3-8b-domino": "DominoDraftModel",
    "SpecForge-draft--qwen3-8b-peagle": "PEagleDraftModel",
    "deepseek-ai--DeepSeek-V4.1-Flash-serving-shim": "DeepseekV41ForCausalLM",
    "stepfun-ai--Step-3.7-Flash": "attention_other_setting",
}


def config_of(name: str) -> dict[str, Any]:
    return json.loads((FACTS / "configs" / f"{name}.json").read_text())


def read(name: str) -> ModelSpec:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownModelWarning)
        return ModelSpec.from_config(config_of(name), name=name)


def bytes_of(model: ModelSpec) -> dict[str, Fraction]:
    """Bytes in BF16 by span, from the layers' own numbers: what the facts were worked out from.

    Of a token, but for `state` (a request) and `cross` (a position of the source). A compressed entry counts for the
    tokens that share it.
    """
    total: dict[str, Fraction] = dict.fromkeys(KINDS, Fraction(0))
    for layer in model.layers:
        for state in layer.states:
            kind, size = size_of(state)
            total[kind] += Fraction(size, (state.span.tokens or 1) if state.span.kind == "compressed" else 1)
            rows = RING_ROWS[state.compress_ratio] if isinstance(state, CompressorState) else 1
            assert rows * cell_bytes(state, kv_cache_dtype="bfloat16", tp_size=1) == size
    # Entries of the last, incomplete byte of a token are counted by none of the facts.
    return total if total["index"].denominator > 1 else {kind: Fraction(int(size)) for kind, size in total.items()}


def size_of(state: State) -> tuple[str, int]:
    kind = {"compressed": "full", "encoder": "cross", "request": "state"}.get(state.span.kind, state.span.kind)
    match state:
        case Attention():
            return kind, 2 * state.num_kv_heads * (state.head_dim + state.v_head_dim)
        case LatentAttention():
            return kind, 2 * (state.kv_lora_rank + state.qk_rope_head_dim)
        case IndexKey(format="bfloat16"):
            return "index", 2 * state.head_dim
        case IndexKey():
            return "index", state.head_dim + state.head_dim // 128 * 4
        case CompressedLatent():
            return kind, 2 * (state.qk_nope_head_dim + state.qk_rope_head_dim)
        case CompressorState():
            return kind, RING_ROWS[state.compress_ratio] * 4 * state.row_elements
        case RecurrentState():
            return kind, sum(
                tensor.num_heads * tensor.head_elements * (2 if tensor.role == "conv" else 4)
                for tensor in state.tensors
            )


@pytest.mark.parametrize("row", PLANNED, ids=lambda row: row["config"])
def test_a_file_keeps_the_bytes_that_were_worked_out_by_hand(row: dict[str, str]) -> None:
    expected = {kind: Fraction(row[f"{kind}_bytes"]) for kind in KINDS}
    if row["config"] in FULL_BY_CONTEXT:
        expected |= {"full": expected["full"] + expected["window"], "window": 0}
    assert bytes_of(read(row["config"])) == expected


@pytest.mark.parametrize("row", PLANNED, ids=lambda row: row["config"])
def test_a_file_has_the_mtp_layers_that_were_counted_by_hand(row: dict[str, str]) -> None:
    assert len(read(row["config"]).mtp_layers) == int(row["mtp_layers"])


@pytest.mark.parametrize("row", PLANNED, ids=lambda row: row["config"])
def test_a_file_is_planned_whole(row: dict[str, str]) -> None:
    """Its pools hold every layer that keeps anything, with all that it keeps, and fit."""
    model = read(row["config"])
    config = create_memory_pool_configurator(model, RuntimeSpec(page_size=256)).calculate_pool_sizes(1 << 40)
    assert config.total_bytes <= 1 << 40
    assert config.max_total_num_tokens > 0
    assert config.max_running_requests > 0
    pooled = {layer for pool in config.pools for layer in pool.layers}
    assert pooled == {index for index, layer in enumerate(model.layers) if layer.states}


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row["config"])
def test_a_file_that_keeps_other_state_is_refused_with_the_key_that_says_so(row: dict[str, str]) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelSpec.from_config(config_of(row["config"]), name=row["config"])
    assert caught.value.key == row["refused_key"]
    assert row["refused_key"] in caught.value.message


@pytest.mark.parametrize("row", PLANNED, ids=lambda row: row["config"])
def test_only_what_a_file_leaves_open_is_warned_of(row: dict[str, str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ModelSpec.from_config(config_of(row["config"]), name=row["config"])
    assert bool(caught) == (row["config"] in WARNED)
    assert WARNED.get(row["config"], "") in "".join(str(warning.message) for warning in caught)


def test_the_facts_cover_what_they_should() -> None:
    """A lost file would make every test here pass."""
    assert (len(PLANNED), len(REFUSED)) == (173, 2)
    assert len(list((FACTS / "configs").glob("*.json"))) == len(ROWS)


@pytest.mark.parametrize(
    ("name", "layers", "window"),
    [
        ("google--gemma-3-27b-it", range(5, 62, 6), 1024),
        ("openai--gpt-oss-120b", range(1, 36, 2), 128),
        ("google--gemma-2-2b-it", range(1, 26, 2), 4096),
        ("CohereForAI--c4ai-command-r7b-12-2024", range(3, 32, 4), 4096),
        ("LGAI-EXAONE--EXAONE-4.0-32B", range(3, 64, 4), 4096),
        ("transformers-default--cwm", range(0, 64, 4), 8192),
        ("mistralai--Mistral-7B-Instruct-v0.1", range(0), 4096),
    ],
)
def test_the_full_layers_of_a_hybrid(name: str, layers: range, window: int) -> None:
    """The parity of each pattern, from the config classes: layer 0 has a window, except in cwm."""
    model = read(name)
    spans = [layer.states[0].span for layer in model.layers]
    assert [index for index, span in enumerate(spans) if span.kind == "full"] == list(layers)
    assert {span.tokens for span in spans if span.kind != "full"} == {window}

"""What vLLM 0.33.0's model classes say of each layer (`tests/facts/vllm_layers.csv`), and where and why we differ.

Heads, dimensions, bytes and windows of all layers are compared, in BF16 on one rank. vLLM's window counts the token
itself, as ours does (`SlidingWindowManager.get_num_skipped_tokens`).
"""

from __future__ import annotations

import csv
import json
import warnings
from collections import Counter
from functools import cache
from math import prod
from pathlib import Path
from typing import NamedTuple

import pytest

from poolplan import (
    Attention,
    CompressorState,
    IndexKey,
    LatentAttention,
    ModelSpec,
    RecurrentState,
    UnknownModelWarning,
    cell_bytes,
)

FACTS = Path(__file__).parent / "facts"


def rows_of(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((FACTS / name).read_text(encoding="utf-8").splitlines()))


ROWS = rows_of("vllm_layers.csv")
CONFIGS = sorted({row["config"] for row in ROWS})
STATES = [row for row in ROWS if row["kind"] == "MambaSpec"]
WITH_STATES = {row["config"] for row in STATES}
# vLLM pads the pages of DeepSeek V4's rows to multiples of 576 bytes, and counts compressed rows by the tokens that
# they stand for: its pages are compared, and not its bytes a token.
COMPRESSED = {row["config"] for row in ROWS if row["kind"] == "SlidingWindowMLASpec"}
REFUSED = {row["config"] for row in rows_of("models.csv") if row["refused_key"]}
COMPARED = [config for config in CONFIGS if config not in COMPRESSED | REFUSED]

# The kinds that are compared, and the kind of our span. What is not here makes the tests fail.
SPANS = {
    "FullAttentionSpec": "full",
    "MLAAttentionSpec": "full",
    "SlidingWindowSpec": "window",
    "ChunkedLocalAttentionSpec": "chunk",
}


class Kept(NamedTuple):
    """What one layer keeps. A latent is one head without a value; a state has bytes only."""

    kind: str
    window: int | None
    bytes: int
    heads: tuple[int, int, int] | None


class Difference(NamedTuple):
    """The window of some layers, as vLLM's answer has it and as ours does; None is full attention."""

    vllm: int | None
    ours: int
    layers: int
    why: str


_ASKED_WITHOUT_ENGINE = (
    "Ours is right: transformers gives every layer the window, and so does vLLM's engine. It passes the window on by "
    "`CacheConfig.sliding_window` where the file has no layer_types (`EngineArgs.create_engine_config`, read by "
    "`Attention.__init__`), and the answers were asked of the model class with a `CacheConfig` of their own."
)
DIFFERENT = {
    "CohereForAI--c4ai-command-r7b-12-2024": Difference(
        4097,
        4096,
        24,
        "vLLM's `CohereAttention` adds one, so that a token sees 4,096 before itself: as it was trained, it says. "
        "transformers 5.24.0 shows it 4,096 with itself (`sliding_window_overlay`), and ours is that.",
    ),
    "bigcode--starcoder2-7b": Difference(None, 4096, 32, _ASKED_WITHOUT_ENGINE),
    "mistralai--Mistral-7B-Instruct-v0.1": Difference(None, 4096, 32, _ASKED_WITHOUT_ENGINE),
}


@cache
def model_of(name: str) -> ModelSpec:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownModelWarning)
        return ModelSpec.from_config(json.loads((FACTS / "configs" / f"{name}.json").read_text()), name=name)


def ours(config: str) -> Counter[Kept]:
    """What our layers keep, index keys aside."""
    kept: Counter[Kept] = Counter()
    for layer in model_of(config).layers:
        for state in layer.states:
            size = cell_bytes(state, kv_cache_dtype="bfloat16", tp_size=1)
            if isinstance(state, RecurrentState):
                kept[Kept("state", None, size, None)] += 1
                continue
            heads = None
            match state:
                case IndexKey():
                    continue
                case Attention():
                    heads = state.num_kv_heads, state.head_dim, state.v_head_dim
                case LatentAttention():
                    heads = 1, state.kv_lora_rank + state.qk_rope_head_dim, 0
                case _:
                    pass
            kept[Kept(state.span.kind, state.span.tokens, size, heads)] += 1
    return kept


def state_bytes(row: dict[str, str]) -> int:
    """Bytes of a state by its shapes: a convolution's inputs have two dimensions and 16 bits, states three and 32."""
    shapes = [[int(size) for size in shape.split("x")] for shape in row["shapes"].split(";")]
    assert {len(shape) for shape in shapes} <= {2, 3}
    return sum(prod(shape) * {2: 2, 3: 4}[len(shape)] for shape in shapes)


def vllms(config: str) -> Counter[Kept]:
    kept: Counter[Kept] = Counter()
    for row in ROWS:
        if row["config"] == config:
            if row["kind"] == "MambaSpec":
                layer = Kept("state", None, state_bytes(row), None)
            else:
                heads = int(row["num_kv_heads"]), int(row["head_size"]), int(row["head_size_v"])
                window = int(row["window"]) if row["window"] else None
                layer = Kept(SPANS[row["kind"]], window, int(row["bytes_per_token"]), heads)
            kept[layer] += int(row["layers"])
    return kept


@pytest.mark.parametrize("config", [config for config in COMPARED if config not in DIFFERENT])
def test_the_layers_are_vllms(config: str) -> None:
    assert ours(config) == vllms(config)


@pytest.mark.parametrize("config", DIFFERENT)
def test_only_the_window_is_not_vllms_and_only_where_it_is_known_why(config: str) -> None:
    different = DIFFERENT[config]
    own, their = ours(config), vllms(config)
    assert {layer.window for layer in own - their} == {different.ours}
    assert {layer.window for layer in their - own} == {different.vllm}
    assert (own - their).total() == different.layers
    adapted: Counter[Kept] = Counter()
    for layer, number in their.items():
        adapted[layer._replace(kind="window", window=different.ours) if layer.window == different.vllm else layer] += (
            number
        )
    assert own == adapted


@pytest.mark.parametrize("config", sorted(COMPRESSED))
def test_the_pages_of_deepseek_v4_are_vllms(config: str) -> None:
    """Each buffer's page, padded to 576 bytes as ours: 64 rows of a window, what 256 tokens are compressed to, some rows of
    a ring.
    """
    rows_of_a_page = {"window": 64, 4: 64, 128: 2}
    pages: Counter[int] = Counter()
    for layer in model_of(config).layers:
        for state in layer.states:
            if isinstance(state, CompressorState):
                rows = {4: 4, 128: 8}[state.compress_ratio]
            else:
                rows = rows_of_a_page["window" if state.span.kind == "window" else state.span.tokens or 0]
            pages[-(-rows * cell_bytes(state, kv_cache_dtype="fp8_e4m3", tp_size=1) // 576) * 576] += 1
    vllms_pages: Counter[int] = Counter()
    for row in ROWS:
        if row["config"] == config:
            vllms_pages[int(row["page_bytes"])] += int(row["layers"])
    assert pages == vllms_pages


@pytest.mark.parametrize("row", STATES, ids=lambda row: row["config"])
def test_vllms_states_have_inputs_in_16_bits_and_the_rest_in_32(row: dict[str, str]) -> None:
    """The answers have no dtypes. A page is the state's, or else the fewest tokens of attention that it fits in.

    The 32 bits are its choice for this CPU (`CpuPlatform.check_and_update_config`): what is compared is the elements.
    """
    if row["state_bytes"]:
        assert state_bytes(row) == int(row["state_bytes"])
        return
    (attention,) = (other for other in ROWS if other["config"] == row["config"] and other is not row)
    # Blocks for attention on a CPU are a multiple of 32 tokens.
    tokens, rest = divmod(int(row["page_bytes"]), int(attention["bytes_per_token"]))
    assert (tokens % 32, rest) == (0, 0)
    assert 0 <= int(row["page_bytes"]) - state_bytes(row) < 32 * int(attention["bytes_per_token"])


def test_every_line_of_vllm_is_compared() -> None:
    """A lost file would make every test here pass."""
    assert (len(CONFIGS), len(ROWS)) == (91, 129)
    assert (len(WITH_STATES), len(COMPRESSED)) == (12, 2)
    assert set(CONFIGS) == {*COMPARED, *COMPRESSED}
    assert set(DIFFERENT) <= set(COMPARED)

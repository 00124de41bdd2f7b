"""Plans of well-known checkpoints through the command line: cells to the byte, for TP 1 and 8, BF16 and FP8.

A cell is `heads on the rank · (head_dim + v_head_dim) · bytes · layers`, or `(rank + rope) · bytes · layers` for MLA, with
the layers, heads and dimensions of each checkpoint's own config.json.
"""

from __future__ import annotations

import json

import pytest

from poolplan.cli.commands import run

# Elements of one token on one rank, by pool: at TP 1 and at TP 8.
CELLS = {
    "meta-llama/Llama-3.1-8B": ({"full": 32 * 8 * 256}, {"full": 32 * 1 * 256}),
    "deepseek-ai/DeepSeek-V3": ({"full": 61 * 576}, {"full": 61 * 576}),
    "openai/gpt-oss-120b": ({"full": 18 * 8 * 128, "swa": 18 * 8 * 128}, {"full": 18 * 1 * 128, "swa": 18 * 1 * 128}),
    # 4 KV heads in full layers are one on each of 8 ranks, and so replicated; the 8 of window layers are one each too.
    "XiaomiMiMo/MiMo-V2-Flash": (
        {"full": 9 * 4 * (192 + 128), "swa": 39 * 8 * (192 + 128)},
        {"full": 9 * 1 * (192 + 128), "swa": 39 * 1 * (192 + 128)},
    ),
    "google/gemma-3-27b-it": (
        {"full": 10 * 16 * 256, "swa": 52 * 16 * 256},
        {"full": 10 * 2 * 256, "swa": 52 * 2 * 256},
    ),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (
        {"full": 12 * 8 * 256, "swa": 36 * 8 * 256},
        {"full": 12 * 1 * 256, "swa": 36 * 1 * 256},
    ),
}


@pytest.mark.parametrize("model", CELLS)
@pytest.mark.parametrize(("tp_size", "column"), [("1", 0), ("8", 1)])
@pytest.mark.parametrize(("dtype", "element_bytes"), [("bfloat16", 2), ("fp8_e4m3", 1)])
def test_the_cells_of_a_plan(
    capsys: pytest.CaptureFixture[str], model: str, tp_size: str, column: int, dtype: str, element_bytes: int
) -> None:
    options = ["--tp-size", tp_size, "--kv-cache-dtype", dtype, "--page-size", "64", "--max-running-requests", "64"]
    assert run(["plan", model, "--available", "60GiB", *options, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    expected = {name: elements * element_bytes for name, elements in CELLS[model][column].items()}
    assert {pool["name"]: pool["cell_bytes"] for pool in plan["pools"] if pool["layers"]} == expected
    assert plan["total_bytes"] <= 60 << 30
    assert run(["plan", model, "--available", "60GiB", *options]) == 0
    table = capsys.readouterr().out
    assert all(f"{cell:,}" in table for cell in expected.values())

"""Every kind of state and of serving, on a real file through the command line. Expected bytes are SGLang's or vLLM's own, or
worked out by hand from the file (`tests/facts`); none comes from poolplan.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from poolplan.cli.commands import run

CONFIGS = Path(__file__).parents[1] / "facts" / "configs"
BARE = ("--no-padding", "--no-request-table")


def plan(capsys: pytest.CaptureFixture[str], name: str, *arguments: str) -> dict[str, Any]:
    code = run(["plan", str(CONFIGS / f"{name}.json"), "--json", *arguments])
    answer = json.loads(capsys.readouterr().out)
    assert code == 0, answer
    return answer


def cells(report: dict[str, Any]) -> dict[str, int]:
    return {pool["name"]: pool["cell_bytes"] for pool in report["pools"] if pool["name"] != "request_table"}


def slots(report: dict[str, Any]) -> dict[str, int]:
    return {pool["name"]: pool["slots"] for pool in report["pools"]}


LLAMA = "meta-llama--Meta-Llama-3.1-8B"
V3 = "deepseek-ai--DeepSeek-V3"
V4 = "deepseek-ai--DeepSeek-V4-Flash"


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        # SGLang 0.5.23's cells of these files.
        pytest.param("Qwen--Qwen3-Next-80B-A3B-Thinking", "", {"full": 24_576, "mamba": 77_266_944}, id="gdn"),
        pytest.param(
            "tiiuae--Falcon-H1-0.5B-Instruct", "", {"full": 18_432, "mamba": 28_698_624}, id="mamba 2 beside attention"
        ),
        pytest.param("moonshotai--Kimi-Linear-48B-A3B-Instruct", "", {"full": 8_064, "mamba": 43_417_600}, id="kda"),
        pytest.param("LiquidAI--LFM2.5-VL-1.6B", "", {"full": 12_288, "mamba": 81_920}, id="short convolution"),
        pytest.param("mistralai--Mamba-Codestral-7B-v0.1", "", {"mamba": 272_367_616}, id="state only"),
        pytest.param("deepseek-ai--DeepSeek-V3.2", "", {"full": 78_324}, id="dsa"),
        pytest.param(
            "deepseek-ai--DeepSeek-V3.2", "--kv-cache-dtype fp8_e4m3 --tp-size 8", {"full": 48_068}, id="dsa fp8"
        ),
        pytest.param(
            "deepseek-ai--DeepSeek-V3.2",
            "--kv-cache-dtype fp8_e4m3 --dsa-decode-backend trtllm",
            {"full": 43_188},
            id="dsa raw fp8",
        ),
        # Worked out by hand from the files.
        pytest.param("zai-org--GLM-5.2", "", {"full": 89_856 + 2_772}, id="dsa with shared indexers: 21 of 78"),
        pytest.param("MiniMaxAI--MiniMax-M3", "", {"full": 122_880 + 14_592}, id="index keys beside heads"),
        pytest.param("inclusionAI--Ring-mini-linear-2.0", "", {"full": 8_192, "mamba": 16_777_216}, id="lightning"),
        pytest.param("Zyphra--Zamba2-7B", "", {"full": 372_736, "mamba": 152_243_712}, id="zamba 2"),
        pytest.param("RWKV--rwkv-5-world-3b", "", {"mamba": 21_299_200}, id="rwkv"),
        # 36 layers of conv 8192 x 3 and state 32 x 128 x 128, in 16 bits and in both dtypes the other way round.
        pytest.param(
            "Qwen--Qwen3-Next-80B-A3B-Thinking",
            "--mamba-ssm-dtype bfloat16",
            {"full": 24_576, "mamba": 36 * 2 * (8192 * 3 + 32 * 128 * 128)},
            id="state in 16 bits",
        ),
        pytest.param(
            "Qwen--Qwen3-Next-80B-A3B-Thinking",
            "--mamba-ssm-dtype bfloat16 --mamba-conv-dtype float32",
            {"full": 24_576, "mamba": 36 * (4 * 8192 * 3 + 2 * 32 * 128 * 128)},
            id="inputs in 32 bits",
        ),
        pytest.param("pfnet--plamo-2-1b", "", {"swa": 4_096, "mamba": 8_585_216}, id="windows beside state"),
        pytest.param("transformers-default--gemma3n_text", "", {"full": 8_192, "swa": 32_768}, id="shared caches"),
        pytest.param("facebook--bart-large-cnn", "", {"full": 49_152, "cross": 49_152}, id="encoder"),
        pytest.param(
            "meta-llama--Llama-3.2-11B-Vision-Instruct", "", {"full": 131_072, "cross": 32_768}, id="cross attention"
        ),
        pytest.param("google--gemma-3-27b-it", "", {"full": 81_920, "swa": 425_984}, id="a vision tower adds nothing"),
        # The formats that SGLang and vLLM have for Llama-3.1-8B: 32 layers of 8 heads of 128 + 128.
        pytest.param(LLAMA, "--kv-cache-dtype fp8_e5m2", {"full": 65_536}, id="fp8_e5m2"),
        pytest.param(LLAMA, "--kv-cache-dtype mxfp8", {"full": 67_584}, id="mxfp8"),
        pytest.param(LLAMA, "--kv-cache-dtype nvfp4", {"full": 36_864}, id="nvfp4"),
        pytest.param(LLAMA, "--kv-cache-dtype mxfp4", {"full": 32 * 8 * 2 * (64 + 4)}, id="mxfp4"),
        pytest.param(LLAMA, "--kv-cache-dtype int8", {"full": 32 * 8 * 2 * (128 + 4)}, id="int8"),
        pytest.param(LLAMA, "--kv-cache-dtype int4", {"full": 32 * 8 * 2 * (64 + 4)}, id="int4"),
        pytest.param(
            LLAMA, "--kv-cache-dtype fp8_e4m3 --v-cache-dtype nvfp4", {"full": 32 * 8 * (128 + 72)}, id="k and v apart"
        ),
        pytest.param("nvidia--Qwen3.6-27B-NVFP4", "", {"full": 32_768, "mamba": 153_944_064}, id="kv_cache_scheme"),
        # Drafts: the model's own MTP layers, or others beside it.
        pytest.param(V3, "--speculative-algorithm NEXTN", {"full": 70_272, "draft": 1_152}, id="mtp"),
        pytest.param(V3, "", {"full": 70_272}, id="no mtp without speculation"),
        pytest.param(
            "deepseek-ai--DeepSeek-V3.2",
            "--speculative-algorithm EAGLE",
            {"full": 78_324, "draft": 1_284},
            id="dsa mtp",
        ),
        pytest.param(
            "Qwen--Qwen3-8B",
            f"--speculative-algorithm DFLASH --draft {CONFIGS / 'SpecForge-draft--qwen3-8b-dflash.json'}",
            {"full": 147_456, "draft": 20_480},
            id="dflash",
        ),
        pytest.param(
            "Qwen--Qwen3-8B",
            f"--draft {CONFIGS / 'SpecForge-draft--qwen3-8b-dflash.json'} "
            f"--draft {CONFIGS / 'SpecForge-draft--qwen3-8b-peagle.json'}",
            {"full": 147_456, "draft": 20_480 + 16_384},
            id="several drafts",
        ),
        # Parallelism: heads are divided, replicated, or neither.
        pytest.param(LLAMA, "--tp-size 16", {"full": 16_384}, id="fewer heads than ranks"),
        pytest.param(LLAMA, "--tp-size 8 --dcp-size 2", {"full": 32_768}, id="decode context parallel"),
        pytest.param(LLAMA, "--tp-size 8 --dp-size 8 --enable-dp-attention", {"full": 131_072}, id="attention dp"),
        pytest.param(LLAMA, "--tp-size 8 --ep-size 8", {"full": 16_384}, id="expert parallel"),
        pytest.param(LLAMA, "--pp-size 4", {"full": 8 * 4_096}, id="even stages"),
        pytest.param(LLAMA, "--pp-size 3 --pp-layer-partition 10,12,10", {"full": 12 * 4_096}, id="given stages"),
    ],
)
def test_a_plan_has_the_cells_of_its_source(
    capsys: pytest.CaptureFixture[str], name: str, arguments: str, expected: dict[str, int]
) -> None:
    report = plan(capsys, name, "--available", "60GiB", *arguments.split())
    assert cells(report) == expected
    assert report["total_bytes"] <= 60 << 30


def test_window_drafts_follow_the_window_pool(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """MiMo-V2-Flash: its MTP layers have windows, 8 heads of 192 + 128 (`mimo_v2_nextn` of SGLang 0.5.23)."""
    name = "XiaomiMiMo--MiMo-V2-Flash"
    config = json.loads((CONFIGS / f"{name}.json").read_text()) | {"num_nextn_predict_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run(["plan", str(tmp_path), "--json", "--available", "60GiB", "--speculative-algorithm", "EAGLE"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert cells(report) == {"full": 23_040, "swa": 199_680, "draft_swa": 5_120}
    assert slots(report)["draft_swa"] == slots(report)["swa"]


def test_deepseek_v4_keeps_windows_entries_and_rings(capsys: pytest.CaptureFixture[str]) -> None:
    """SGLang 0.5.23: rows of 584 bytes, index keys of 132 for every 4 tokens, rings of 32-bit rows; 21 and 20 layers."""
    report = plan(capsys, V4, "--available", "60GiB", "--page-size", "256")
    assert cells(report) == {
        "full": 0,
        "swa": 43 * 584,
        "c4": 21 * (584 + 132),
        "c128": 20 * 584,
        "c4_state": 21 * 4 * (4 * 512 + 4 * 128),
        "c128_state": 20 * 4 * 2 * 512,
    }


def test_a_model_of_states_serves_as_many_requests_as_it_has_slots_for(capsys: pytest.CaptureFixture[str]) -> None:
    """20 GiB hold 78 states of 272,367,616 bytes; one is padding, and each request holds three."""
    report = plan(capsys, "mistralai--Mamba-Codestral-7B-v0.1", "--available", "20GiB")
    assert (report["max_running_requests"], slots(report)["mamba"]) == (25, 75)
    assert "the next request (2,048 tokens) needs" in report["unused_because"]


def test_an_encoders_output_is_held_for_each_request(capsys: pytest.CaptureFixture[str]) -> None:
    """BART has 1,024 positions on each side: by default as many requests are served as can all be that long."""
    report = plan(capsys, "facebook--bart-large-cnn", "--available", "8GiB", *BARE)
    requests = report["max_running_requests"]
    assert slots(report) == {"full": report["max_total_num_tokens"], "cross": 1_024 * requests}
    assert report["max_total_num_tokens"] // 1_024 == requests
    # One request more of 1,024 tokens and 1,024 positions does not fit.
    assert 2 * 1_024 * (requests + 1) * 49_152 > 8 << 30 >= 2 * 1_024 * requests * 49_152


def test_the_bytes_that_replication_costs_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Llama-3.1-8B on 16 ranks: 8 heads are held twice, 131,072 bytes of each token."""
    report = plan(capsys, LLAMA, "--available", "60GiB", "--tp-size", "16")
    assert any("131,072 are copies" in note for note in report["notes"])


def test_workers_of_attention_dp_share_the_requests(capsys: pytest.CaptureFixture[str]) -> None:
    dp = ("--tp-size", "8", "--dp-size", "8", "--enable-dp-attention", "--max-running-requests", "256")
    report = plan(capsys, LLAMA, "--available", "60GiB", *dp)
    assert report["max_running_requests"] == 32


def test_a_stage_that_is_named_shows_its_own_layers(capsys: pytest.CaptureFixture[str]) -> None:
    stages = ("--pp-size", "3", "--pp-layer-partition", "10,12,10", "--pp-rank", "1")
    report = plan(capsys, LLAMA, "--available", "60GiB", *stages)
    assert report["pools"][0]["layers"] == list(range(10, 22))


def test_a_workload_fits_as_often_as_its_binding_pool_holds_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Requests of 3,000 + 1,000 tokens hold 63 pages of 64 of the full pool and 3 of a window of 128 that straddles pages."""
    report = plan(
        capsys, "openai--gpt-oss-120b", "--available", "20GiB", "--page-size", "64", "--max-running-requests", "500",
        "--workload", "3000+1000", "--workload", "64",
    )  # fmt: skip
    long, short = report["workloads"]
    held = slots(report)
    assert long["per_pool"] == {
        "full": held["full"] // (63 * 64),
        "swa": held["swa"] // (3 * 64),
        "request_table": 500,
    }
    assert (long["requests"], long["bound_by"]) == (long["per_pool"]["full"], "full")
    assert long["prompts"] == held["full"] // (47 * 64)
    assert (short["requests"], short["bound_by"]) == (500, "request_table")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (f"plan {CONFIGS / f'{V4}.json'} --available 60GiB --page-size 64", "multiple of 128"),
        (f"plan {CONFIGS / f'{LLAMA}.json'} --available 60GiB --speculative-algorithm EAGLE", "--draft"),
        (f"plan {CONFIGS / f'{LLAMA}.json'} --available 60GiB --tp-size 8 --dcp-size 3", "dcp_size"),
        (f"plan {CONFIGS / 'openai--gpt-oss-120b.json'} --available 60GiB --tp-size 2 --dcp-size 2", "dcp_size"),
        (f"plan {CONFIGS / f'{LLAMA}.json'} --available 60GiB --pp-size 2 --pp-layer-partition 16,15", "32 layers"),
        (f"plan {CONFIGS / f'{LLAMA}.json'} --available 60GiB --pp-layer-partition x", "pp_layer_partition"),
        (
            f"plan {CONFIGS / f'{LLAMA}.json'} --available 60GiB --tp-size 8 --dp-size 3 --enable-dp-attention",
            "dp_size",
        ),
        (f"plan {CONFIGS / f'{LLAMA}.json'} --available 60GiB --workload 3000-1000", "3000+1000"),
        (
            f"plan {CONFIGS / f'{LLAMA}.json'} --available 60GiB --mamba-full-memory-ratio 100",
            "mamba_full_memory_ratio",
        ),
        (
            f"plan {CONFIGS / 'Qwen--Qwen3.5-27B.json'} --available 60GiB --max-mamba-cache-size 2",
            "max_mamba_cache_size",
        ),
        (
            f"plan {CONFIGS / 'deepseek-ai--DeepSeek-V3.2.json'} --available 60GiB --kv-cache-dtype int8",
            "sparse attention",
        ),
    ],
    ids=lambda value: value.rsplit(".json ", 1)[-1],
)
def test_what_does_not_fit_the_model_is_refused(capsys: pytest.CaptureFixture[str], arguments: str, word: str) -> None:
    assert run(arguments.split()) == 2
    assert word in capsys.readouterr().err


def test_ranks_that_share_tokens_are_counted_together(capsys: pytest.CaptureFixture[str]) -> None:
    """Llama-3.1-8B on 8 ranks of which 2 share tokens: a request of 131,072 tokens needs half of them on each."""
    dcp = ("--tp-size", "8", "--dcp-size", "2", "--page-size", "64", "--max-running-requests", "16", *BARE)
    report = plan(capsys, LLAMA, "--available", "3GiB", *dcp)
    tokens = report["max_total_num_tokens"]
    assert 65_536 < tokens < 131_072
    assert f"together they hold {2 * tokens:,} tokens" in report["notes"][0]
    assert not any("does not fit" in note for note in report["notes"])
    assert report["concurrent_requests"]["requests"] == 1

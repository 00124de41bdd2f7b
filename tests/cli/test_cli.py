"""The command line as a user types it: tables, JSON, errors and exit codes. Plans themselves are tested elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from poolplan.cli.commands import run
from poolplan.cli.size import format_size, parse_size
from poolplan.errors import InvalidOptionError

GPT_OSS = ["plan", "openai/gpt-oss-120b", "--page-size", "64"]
JSON_KEYS = {
    "max_total_num_tokens",
    "full_max_total_num_tokens",
    "swa_max_total_num_tokens",
    "max_running_requests",
    "available_bytes",
    "total_bytes",
    "unused_bytes",
    "pools",
}
POOL_KEYS = {"name", "slots", "padding_slots", "page_size", "cell_bytes", "bytes", "layers"}


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run a command with --json, and check that it prints one line and nothing else."""
    assert run([*arguments, "--json"]) == code
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.count("\n") == 1
    return json.loads(printed.out)


def test_a_plan_prints_every_pool_the_total_and_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*GPT_OSS, "--available", "60GiB"]) == 0
    printed = capsys.readouterr().out
    for word in ("full", "swa", "request_table", "total", "unused", "max_total_num_tokens", "requests at once"):
        assert word in printed


def test_json_has_the_stable_keys(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, *GPT_OSS, "--available", "60GiB")
    assert set(report) >= JSON_KEYS
    assert all(set(pool) == POOL_KEYS for pool in report["pools"])
    assert sum(pool["bytes"] for pool in report["pools"]) == report["total_bytes"]
    assert report["total_bytes"] + report["unused_bytes"] == report["available_bytes"] == 60 << 30


def test_without_padding_and_table_the_answer_is_sglangs(capsys: pytest.CaptureFixture[str]) -> None:
    """SGLang 0.5.23 with 50 GiB plans 809,024 and 647,168; its binary ratio loses the page that makes it 809,088."""
    arguments = [*GPT_OSS, "--available", "50GiB", "--no-padding", "--no-request-table"]
    report = run_json(capsys, *arguments)
    assert (report["full_max_total_num_tokens"], report["swa_max_total_num_tokens"]) == (809_088, 647_232)
    assert [pool["name"] for pool in report["pools"]] == ["full", "swa"]


def test_a_plan_from_tokens_needs_no_budget(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, *GPT_OSS, "--max-total-tokens", "100000")
    assert report["max_total_num_tokens"] == 99_968
    assert report["unused_bytes"] == 0
    assert report["unused_because"] == "max_total_tokens=100000 is reached"


def test_a_stage_with_room_says_that_another_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    """32 layers in stages of 10, 11 and 11: the first is never full."""
    arguments = ["plan", "meta-llama/Llama-3.1-8B", "--available", "20GiB", "--pp-size", "3", "--page-size", "64"]
    first = run_json(capsys, *arguments, "--pp-rank", "0")
    last = run_json(capsys, *arguments)
    assert first["max_total_num_tokens"] == last["max_total_num_tokens"]
    assert first["unused_bytes"] > 10 * last["unused_bytes"]
    assert "too much for the stage that takes most" in first["unused_because"]
    assert "more than are left" in last["unused_because"]


def test_requests_of_a_length_are_counted_per_pool(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, *GPT_OSS, "--available", "60GiB", "--request-tokens", "8192")
    fit = report["concurrent_requests"]
    assert fit["requests"] == min(fit["per_pool"].values()) == report["full_max_total_num_tokens"] // 8192
    assert fit["bound_by"] == "full"
    # A window of 128 that straddles pages of 64 touches three of them, in 18 layers of 2,048 bytes.
    assert report["request_bytes"]["swa"] == 3 * 64 * 18 * 2048


def test_layers_shows_what_each_layer_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["layers", "XiaomiMiMo/MiMo-V2-Flash"]) == 0
    printed = capsys.readouterr().out
    assert "8 KV heads of 192 + 128" in printed
    assert "window of 128" in printed
    report = run_json(capsys, "layers", "XiaomiMiMo/MiMo-V2-Flash")
    assert {span: cell for span, cell in report["cell_bytes"].items() if cell} == {"full": 23_040, "window": 199_680}
    assert [layer["layer"] for layer in report["layers"]] == list(range(48))


@pytest.mark.parametrize(
    ("arguments", "kind", "word"),
    [
        (["plan", "openai/gpt-oss-120b"], "InvalidOptionError", "available"),
        (["plan", "no-such-model", "--available", "1GiB"], "UnsupportedModelError", "no-such-model"),
        ([*GPT_OSS, "--available", "60g"], "InvalidOptionError", "60GiB"),
        ([*GPT_OSS, "--available", "lots"], "InvalidOptionError", "lots"),
        ([*GPT_OSS, "--available", "1GiB", "--tp-size", "3"], "InvalidOptionError", "tp_size"),
        ([*GPT_OSS, "--available", "1GiB", "--tp-size", "0"], "InvalidOptionError", "tp_size"),
        ([*GPT_OSS, "--available", "1GiB", "--tp-size", "x"], "BadParameter", "tp-size"),
        ([*GPT_OSS, "--available", "1GiB", "--pp-size", "37"], "InvalidOptionError", "36 layers"),
        ([*GPT_OSS, "--available", "1GiB", "--swa-full-tokens-ratio", "2"], "InvalidOptionError", "ratio"),
        ([*GPT_OSS, "--available", "1GiB", "--kv-cache-dtype", "int3"], "InvalidOptionError", "fp8_e4m3"),
        ([*GPT_OSS, "--available", "1GiB", "--context-length", "131073"], "InvalidOptionError", "131072"),
        ([*GPT_OSS, "--available", "1GiB", "--no-such-option"], "NoSuchOption", "no-such-option"),
        ([*GPT_OSS, "--max-total-tokens", "100"], "InvalidOptionError", "at least"),
        (["no-such-command"], "", "no-such-command"),
    ],
    ids=lambda value: " ".join(cast("list[str]", value)) if isinstance(value, list) else None,
)
def test_bad_input_exits_with_2_and_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str], kind: str, word: str
) -> None:
    error = run_json(capsys, *arguments, code=2)["error"]
    assert kind in error["type"]
    assert word in error["message"]
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")


@pytest.mark.parametrize("available", ["10MiB", "0", "1B"])
def test_too_little_memory_exits_with_3_and_names_what_would_do(
    capsys: pytest.CaptureFixture[str], available: str
) -> None:
    error = run_json(capsys, *GPT_OSS, "--available", available, code=3)["error"]
    assert error["missing_bytes"] == error["required_bytes"] - error["available_bytes"] > 0
    assert run([*GPT_OSS, "--available", available]) == 3
    assert f"hint: --available {error['required_bytes']}" in capsys.readouterr().err
    assert run([*GPT_OSS, "--available", str(error["required_bytes"])]) == 0
    assert run([*GPT_OSS, "--available", str(error["required_bytes"] - 1)]) == 3


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--available", "10MiB", "--no-request-table"], "tp_size"),
        (["--available", "40MiB", "--no-request-table", "--swa-full-tokens-ratio", "0.05"], "swa_full_tokens_ratio"),
        (["--available", "60MiB"], "max_running_requests"),
    ],
)
def test_what_a_refusal_proposes_works(capsys: pytest.CaptureFixture[str], arguments: list[str], option: str) -> None:
    arguments = [*GPT_OSS, *arguments]
    error = run_json(capsys, *arguments, code=3)["error"]
    assert option in error["alternatives"]
    for name, value in error["alternatives"].items():
        assert run([*arguments, f"--{name.replace('_', '-')}", value]) == 0


def test_an_unknown_model_type_is_planned_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "brand_new",
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "hidden_size": 512,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = run_json(capsys, "plan", str(tmp_path), "--available", "1GiB")
    assert "brand_new" in report["warnings"][0]
    assert run(["plan", str(tmp_path), "--available", "1GiB"]) == 0
    assert "brand_new" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("60GiB", 60 << 30),
        ("80GB", 80 * 10**9),
        ("1.5T", 3 << 39),
        ("1.5 TiB", 3 << 39),
        ("60gib", 60 << 30),
        ("512M", 512 << 20),
        ("7", 7),
        ("7B", 7),
        ("0.1KB", 100),
        ("8589934592", 1 << 33),
        ("1.1GiB", 1_181_116_006),
    ],
)
def test_a_size_is_exact_bytes(text: str, number: int) -> None:
    assert parse_size(text, "available") == number


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GiB", "1e9", "60g", "60m", "1.GiB", "1 2", "60 Gi", "0x10", "nan", "٣GiB"]
)
def test_what_is_no_size_or_ambiguous_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="60GiB"):
        parse_size(text, "available")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (60 << 30, "60.00 GiB"),
        ((1 << 30) - 1, "1023.99 MiB"),
        (1 << 63, "8192.00 PiB"),
    ],
)
def test_a_size_for_the_eye_never_says_more_than_there_is(number: int, text: str) -> None:
    assert format_size(number) == text

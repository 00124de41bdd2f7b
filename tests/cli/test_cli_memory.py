"""The memory that is there, and the host tier, on the command line: with recorded readings in place of the machine's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from poolplan import DeviceMemory, HostMemory, MemoryQueryError
from poolplan.cli.commands import run

GIB = 1 << 30
PLAN = ["plan", "openai/gpt-oss-120b", "--available", "60GiB", "--page-size", "64", "--tp-size", "8"]
DEVICE = DeviceMemory(
    device="cuda:0",
    backend="cuda",
    total_bytes=80 * GIB,
    free_bytes=63 * GIB,
    reserved_bytes=2 * GIB,
    allocated_bytes=GIB,
    process_fraction="9/10",  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
)
HOST = HostMemory(
    total_bytes=1024 * GIB,
    available_bytes=900 * GIB,
    cgroup_limit_bytes=200 * GIB,
    cgroup_headroom_bytes=170 * GIB,
    cgroup_path="/pod",
    cgroup_version=2,
)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def device(_: str | None = None) -> DeviceMemory:
        return DEVICE

    def host() -> HostMemory:
        return HOST

    monkeypatch.setattr(DeviceMemory, "query", device)
    monkeypatch.setattr(HostMemory, "query", host)


def no_device(_: str | None = None) -> DeviceMemory:
    raise MemoryQueryError("no driver; pass the available bytes yourself")


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    assert run(arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def test_memory_shows_both_and_what_binds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory"]) == 0
    printed = capsys.readouterr().out
    assert "device: cuda:0 (cuda), driver: 67,645,734,912 bytes free of 85,899,345,920" in printed
    assert "host: cgroup v2 /pod: limit 214,748,364,800 bytes, 182,536,110,080 left" in printed
    assert f"host pools: {160 * GIB:,} bytes for one rank" in printed


def test_memory_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, "memory", "--ranks-on-host", "8", "--reserve", "50GiB")
    assert report["host"]["budget_bytes"] == 15 * GIB
    assert report["device"]["headroom_bytes"] == 64 * GIB
    assert report["device"]["process_fraction"] == "9/10"


def test_without_a_device_the_host_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceMemory, "query", no_device)
    assert run(["memory"]) == 0
    assert "device: none: no driver" in capsys.readouterr().out
    assert "no driver" in error_of(capsys, "memory", "--device", "cuda:0", code=2)
    assert "no driver" in error_of(capsys, "plan", "openai/gpt-oss-120b", "--available", "device", code=2)


def test_a_plan_of_what_the_device_has(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, "plan", "openai/gpt-oss-120b", "--available", "device")
    assert report["available_bytes"] == 64 * GIB
    assert report["host"] is None


def test_host_pools_from_one_total(capsys: pytest.CaptureFixture[str]) -> None:
    host = run_json(capsys, *PLAN, "--hicache-size", "100GB")["host"]
    assert [pool["name"] for pool in host["pools"]] == ["full", "swa"]
    assert sum(pool["bytes"] for pool in host["pools"]) == host["total_bytes"] <= host["available_bytes"] == 10**11
    assert run([*PLAN, "--hicache-size", "100GB"]) == 0
    assert "host tier" in capsys.readouterr().out


def test_host_pools_by_a_ratio_or_by_what_the_host_has(capsys: pytest.CaptureFixture[str]) -> None:
    report = run_json(capsys, *PLAN, "--hicache-ratio", "0.5")
    device = {pool["name"]: pool["slots"] for pool in report["pools"]}
    assert all(pool["slots"] == device[pool["name"]] // 2 // 64 * 64 for pool in report["host"]["pools"])
    assert report["host"]["unused_bytes"] == 0
    assert run_json(capsys, *PLAN, "--host-available", "host")["host"]["hicache_ratio"] == "2"
    assert run_json(capsys, *PLAN, "--host-available", "10GB")["host"]["available_bytes"] == 10**10


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ("--hicache-ratio 3 --host-available 100GB", "--hicache-ratio 1."),
        ("--hicache-size 1GB --host-available 1MB", "--host-available 1179648"),
        ("--hicache-size 1kB", "--hicache-size 1179648"),
        ("--host-available 1kB", "--host-available 1179648"),
    ],
)
def test_too_little_host_memory_says_what_would_do(capsys: pytest.CaptureFixture[str], options: str, hint: str) -> None:
    printed = error_of(capsys, *PLAN, *options.split(), code=3)
    hints = [line.removeprefix("hint: ") for line in printed.splitlines() if line.startswith("hint: ")]
    assert len(hints) == 1
    assert hints[0].startswith(hint)
    # The last of two options of a name counts; a size above what the host has is then refused for that.
    again = run([*PLAN, *options.split(), *hints[0].split()])
    assert again == (3 if "--hicache-size 1GB" in options else 0)


def test_one_rule_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert "not both" in error_of(capsys, *PLAN, "--hicache-ratio", "2", "--hicache-size", "1GB", code=2)

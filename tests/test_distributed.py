"""`agree` between real processes over gloo: equal, poor, failing, dying and silent ranks, and pipeline stages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from poolplan import (
    InsufficientMemoryError,
    ModelSpec,
    RankError,
    RuntimeSpec,
    agree,
    create_memory_pool_configurator,
    plan_stages,
)

WORKER = Path(__file__).with_name("distributed_worker.py")
MODEL = "openai/gpt-oss-120b"
GIB = 1 << 30
# No job of these takes as long; one that does hangs, and is killed.
HANGS_SECONDS = 150


def run(tmp_path: Path, ranks: Sequence[dict[str, Any]], **common: Any) -> list[dict[str, Any]]:
    """What each rank printed; a rank that dies or is silent printed nothing. Silent ones are killed at the end."""
    job = {"model": MODEL, "runtime": {"tp_size": 8}, "available_bytes": 40 * GIB, "world": len(ranks), **common}
    job["store"] = (tmp_path / "store").as_uri()
    commands = [
        [sys.executable, str(WORKER), json.dumps({**job, "rank": rank, **own})] for rank, own in enumerate(ranks)
    ]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    answers: list[dict[str, Any]] = []
    try:
        for process, own in zip(processes, ranks, strict=True):
            if own.get("fault") in {"die", "hang"}:
                answers.append({})
                continue
            printed, errors = process.communicate(timeout=HANGS_SECONDS)
            assert process.returncode == 0, errors
            answers.append(json.loads(printed))
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return answers


def config_of(available_bytes: int, **runtime: Any) -> dict[str, Any]:
    """The plan that a process makes alone."""
    configurator = create_memory_pool_configurator(ModelSpec.from_pretrained(MODEL), RuntimeSpec(**runtime))
    return configurator.calculate_pool_sizes(available_bytes).as_dict()


@pytest.mark.parametrize("world", [2, 4, 8])
def test_every_rank_has_the_plan_of_the_poorest(tmp_path: Path, world: int) -> None:
    poorest = world - 1
    ranks = [{"available_bytes": 40 * GIB + rank} for rank in range(world)]
    ranks[poorest] = {"available_bytes": 31 * GIB}
    answers = run(tmp_path, ranks)
    assert [answer["config"] for answer in answers] == [config_of(31 * GIB, tp_size=8)] * world
    assert {(answer["available_bytes"], answer["bound_by_rank"]) for answer in answers} == {(31 * GIB, poorest)}
    assert {(answer["host_bytes"], answer["host_bound_by_rank"]) for answer in answers} == {(None, None)}


def test_the_least_host_memory_counts_on_every_rank(tmp_path: Path) -> None:
    ranks = [{"host_bytes": 90 * GIB}, {"host_bytes": 70 * GIB}, {"host_bytes": 70 * GIB}]
    answers = run(tmp_path, ranks)
    assert [(answer["host_bytes"], answer["host_bound_by_rank"]) for answer in answers] == [(70 * GIB, 1)] * 3
    assert {answer["bound_by_rank"] for answer in answers} == {0}


def test_stages_with_other_layers_have_the_same_tokens(tmp_path: Path) -> None:
    runtime = {"tp_size": 2, "pp_size": 2, "pp_layer_partition": (11, 25)}
    ranks = [
        {"runtime": {**runtime, "pp_rank": stage}, "available_bytes": (40 - rank) * GIB}
        for rank, stage in enumerate([0, 0, 1, 1])
    ]
    answers = run(tmp_path, ranks)
    stages = [config_of(37 * GIB, **runtime, pp_rank=stage) for stage in (0, 0, 1, 1)]
    assert [answer["config"] for answer in answers] == stages
    assert len({answer["config"]["max_total_num_tokens"] for answer in answers}) == 1
    layers = [sum(len(pool["layers"]) for pool in stage["pools"]) for stage in stages]
    assert layers == [11, 11, 25, 25]
    assert stages[0]["total_bytes"] < stages[2]["total_bytes"] <= 37 * GIB
    assert {answer["bound_by_rank"] for answer in answers} == {3}


def test_ranks_outside_of_the_group_do_not_count(tmp_path: Path) -> None:
    ranks = [{"available_bytes": 10 * GIB}, {}, {}]
    answers = run(tmp_path, ranks, group=[1, 2])
    assert answers[0]["error"] == "InvalidOptionError"
    assert [answer["config"] for answer in answers[1:]] == [config_of(40 * GIB, tp_size=8)] * 2
    assert [answer["bound_by_rank"] for answer in answers[1:]] == [0, 0]


def test_a_rank_that_cannot_ask_for_its_memory_fails_all(tmp_path: Path) -> None:
    answers = run(tmp_path, [{}, {}, {"fault": "query"}, {}])
    assert {(answer["error"], answer["rank"]) for answer in answers} == {("RankError", 2)}
    reason = "rank 2 could not plan: OSError: the driver does not answer"
    assert {answer["message"] for answer in answers} == {reason}
    assert [answer["cause"] for answer in answers] == ["NoneType", "NoneType", "OSError", "NoneType"]


def test_a_budget_that_is_no_number_fails_all(tmp_path: Path) -> None:
    answers = run(tmp_path, [{}, {"available_bytes": 1.5e9}])
    assert {(answer["error"], answer["rank"]) for answer in answers} == {("RankError", 1)}


def test_too_little_memory_on_one_rank_is_an_error_of_all(tmp_path: Path) -> None:
    answers = run(tmp_path, [{}, {"available_bytes": 1000}])
    with pytest.raises(InsufficientMemoryError) as alone:
        config_of(1000, tp_size=8)
    said = f"{alone.value} (rank 1 has the least memory of 2 ranks)"
    assert {(answer["error"], answer["message"]) for answer in answers} == {("InsufficientMemoryError", said)}


def test_ranks_that_serve_other_things_are_told_what_differs(tmp_path: Path) -> None:
    answers = run(tmp_path, [{}, {}, {"runtime": {"tp_size": 8, "page_size": 64}}])
    assert {(answer["error"], answer["rank"]) for answer in answers} == {("RankError", None)}
    assert all("page_size is 1 on rank 0 and 64 on rank 2" in answer["message"] for answer in answers)


def test_a_host_budget_of_some_ranks_only_is_refused(tmp_path: Path) -> None:
    answers = run(tmp_path, [{}, {"host_bytes": 10 * GIB}])
    assert {answer["error"] for answer in answers} == {"RankError"}
    assert all("host_bytes is passed on rank 1 and not" in answer["message"] for answer in answers)


@pytest.mark.parametrize("fault", ["die", "hang"])
def test_a_rank_that_never_answers_leaves_no_other_waiting(tmp_path: Path, fault: str) -> None:
    ranks: list[dict[str, Any]] = [{}, {}, {"fault": fault}, {}]
    answers = run(tmp_path, ranks, timeout=3, hang_seconds=HANGS_SECONDS)
    others = [answer for answer in answers if answer]
    assert len(others) == 3
    assert {answer["error"] for answer in others} == {"RankError"}
    # Two collectives of 3 seconds at most, and what a loaded machine adds; the silent rank is silent for far longer.
    assert all(answer["waited"] < HANGS_SECONDS / 2 for answer in others)
    assert all("waited at most 3 seconds" in answer["message"] for answer in others)


def test_a_process_without_a_group_is_the_only_rank() -> None:
    code = f"""
import sys
from poolplan import ModelSpec, RuntimeSpec, agree, create_memory_pool_configurator
configurator = create_memory_pool_configurator(ModelSpec.from_pretrained("{MODEL}"), RuntimeSpec(tp_size=8))
agreement = agree(configurator, lambda: 40 << 30, host_bytes=7)
assert agreement.config == configurator.calculate_pool_sizes(40 << 30)
assert (agreement.bound_by_rank, agreement.host_bytes, agreement.host_bound_by_rank) == (0, 7, 0)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANGS_SECONDS)


def test_one_process_plans_all_stages_and_says_which_one_binds() -> None:
    runtime = RuntimeSpec(pp_size=3, pp_layer_partition=(10, 16, 10))
    plans = plan_stages(ModelSpec.from_pretrained(MODEL), runtime, 20 * GIB)
    assert plans.binding_stage == 1
    assert len({config.max_total_num_tokens for config in plans.configs}) == 1
    # The pools of a layer are the same on every stage, so the bytes are as the layers.
    assert plans.configs[0].total_bytes == plans.configs[2].total_bytes < plans.configs[1].total_bytes
    alone = create_memory_pool_configurator(ModelSpec.from_pretrained(MODEL), runtime)
    assert alone.calculate_pool_sizes(20 * GIB) == plans.configs[1]


def test_a_failure_of_the_only_rank_keeps_its_cause() -> None:
    configurator = create_memory_pool_configurator(ModelSpec.from_pretrained(MODEL), RuntimeSpec())
    with pytest.raises(RankError, match="rank 0 could not plan: TypeError") as caught:
        agree(configurator, "60 GiB")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert isinstance(caught.value.__cause__, TypeError)

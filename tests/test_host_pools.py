"""The host tier: one total for all pools, in proportion, drafts in step; and the old rules that took it twice."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolplan import (
    HostMemory,
    HostPoolConfig,
    HostPoolConfigurator,
    InsufficientMemoryError,
    InvalidOptionError,
    MemoryPoolConfig,
    MemoryPoolConfigurator,
    ModelSpec,
    PoolPlanError,
    RuntimeSpec,
    create_memory_pool_configurator,
    split_hicache_size,
)
from strategies import Case, cases

GB = 10**9
GIB = 1 << 30


def device_plan(model: str, **options: Any) -> tuple[MemoryPoolConfigurator, MemoryPoolConfig]:
    configurator = create_memory_pool_configurator(ModelSpec.from_pretrained(model), RuntimeSpec(**options))
    return configurator, configurator.calculate_pool_sizes(60 * GIB)


def host_of(model: str, available_bytes: int, **options: Any) -> HostPoolConfig:
    configurator, config = device_plan(model)
    host = HostPoolConfigurator(configurator=configurator, config=config, **options)
    return host.calculate_pool_sizes(available_bytes)


def old_rule_bytes(device: MemoryPoolConfig, names: tuple[str, ...], hicache_size: int) -> int:
    """What was taken when each of the pools was sized by the whole total (sgl-project/sglang#29034)."""
    pools = [pool for pool in device.pools if pool.name in names]
    return sum(hicache_size // (pool.bytes // pool.slots) * (pool.bytes // pool.slots) for pool in pools)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        pytest.param("openai/gpt-oss-120b", ("full", "swa"), id="hybrid windows"),
        pytest.param("Qwen/Qwen3.5-35B-A3B", ("full", "mamba"), id="recurrent state"),
    ],
)
def test_one_total_is_not_taken_by_each_pool(model: str, names: tuple[str, ...]) -> None:
    _, device = device_plan(model)
    size = 100 * GB
    # The old rule takes the total once for each pool: twice here, which the law below does not allow.
    assert old_rule_bytes(device, names, size) > 19 * size // 10
    host = host_of(model, 200 * GB, hicache_size=size)
    assert {pool.name for pool in host.pools} == set(names)
    assert host.total_bytes == sum(pool.bytes for pool in host.pools) <= size
    assert host.total_bytes > 99 * size // 100
    # In proportion: each pool has the part of the total that it has of the device's pools, but for less than a thousandth.
    kept = {pool.name: pool.slots * pool.cell_bytes for pool in device.pools if pool.name in names}
    for pool in host.pools:
        assert abs(Fraction(pool.bytes, host.total_bytes) - Fraction(kept[pool.name], sum(kept.values()))) < Fraction(
            1, 1000
        )


def test_the_seed_splits() -> None:
    assert split_hicache_size(100 * GB, {"full": 75, "swa": 25}) == {"full": 75 * GB, "swa": 25 * GB}
    assert split_hicache_size(100, {"full": 75, "swa": (15, 10)}) == {"full": 75, "swa": 25}
    assert split_hicache_size(100, {"full": 55, "swa": (15, 10), "mamba": 20}) == {"full": 55, "swa": 25, "mamba": 20}
    assert split_hicache_size(100, {"full": 1, "swa": 2}, {"full": 64, "swa": 1}) == {"full": 0, "swa": 100}


def test_a_ratio_is_exact_and_refused_where_it_does_not_fit() -> None:
    _, device = device_plan("openai/gpt-oss-120b")
    host = host_of("openai/gpt-oss-120b", 200 * GIB, hicache_ratio="0.8")
    assert host.hicache_ratio == Fraction(4, 5)
    assert {pool.name: pool.slots for pool in host.pools} == {
        pool.name: pool.slots * 4 // 5 for pool in device.pools if pool.name in {"full", "swa"}
    }
    with pytest.raises(InsufficientMemoryError, match="hicache_ratio=") as caught:
        host_of("openai/gpt-oss-120b", 100 * GIB, hicache_ratio=3)
    works = caught.value.alternatives["hicache_ratio"]
    assert host_of("openai/gpt-oss-120b", 100 * GIB, hicache_ratio=works).total_bytes <= 100 * GIB
    with pytest.raises(InsufficientMemoryError, match=f"hicache_size={100 * GIB}"):
        host_of("openai/gpt-oss-120b", 100 * GIB, hicache_size=100 * GIB + 1)


def test_with_neither_the_ratio_is_two_or_what_fits() -> None:
    assert host_of("openai/gpt-oss-120b", 200 * GIB).hicache_ratio == 2
    less = host_of("openai/gpt-oss-120b", 80 * GIB)
    assert 1 < less.hicache_ratio < 2
    assert 79 * GIB < less.total_bytes <= 80 * GIB


def test_a_pool_can_have_a_size_of_its_own() -> None:
    host = host_of("Qwen/Qwen3.5-35B-A3B", 200 * GB, hicache_size=100 * GB, pool_bytes={"mamba": 10 * GB})
    state = next(pool for pool in host.pools if pool.name == "mamba")
    assert 10 * GB - state.cell_bytes < state.bytes <= 10 * GB
    assert 99 * GB < host.total_bytes <= 100 * GB
    with pytest.raises(InvalidOptionError, match="pool_bytes"):
        host_of("Qwen/Qwen3.5-35B-A3B", 200 * GB, pool_bytes={"swa": 10 * GB})


def test_both_rules_at_once_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="hicache_ratio"):
        host_of("openai/gpt-oss-120b", 200 * GB, hicache_size=GB, hicache_ratio=2)


def test_a_plan_from_this_hosts_memory_respects_it() -> None:
    budget = HostMemory.query().budget_bytes(reserve_bytes=GIB)
    try:
        host = host_of("openai/gpt-oss-120b", budget)
    except InsufficientMemoryError as error:
        assert error.required_bytes > budget
        return
    assert host.total_bytes <= budget


@given(case=cases(), size=st.integers(0, 2**50), more=st.integers(0, 2**50))
def test_the_three_laws_hold_for_host_pools(case: Case, size: int, more: int) -> None:
    """Fits, maximal in steps of one token of the device, monotone; and a refusal names the least size that works."""
    try:
        configurator = case.configurator()
        device = configurator.calculate_pool_sizes(case.budget)
    except PoolPlanError:
        return

    def plan(**rule: Any) -> HostPoolConfig:
        host = HostPoolConfigurator(configurator=configurator, config=device, **rule)
        return host.calculate_pool_sizes(2**64 - 1)

    try:
        host = plan(hicache_size=size)
    except InsufficientMemoryError as error:
        assert error.required_bytes > size
        if error.required_bytes < 2**63:
            assert plan(hicache_size=error.required_bytes).total_bytes <= error.required_bytes
        return
    except PoolPlanError:
        return
    assert host.total_bytes <= size == host.available_bytes
    assert all(pool.slots > 0 and pool.slots % pool.page_size == 0 and pool.padding_slots == 0 for pool in host.pools)
    assert host.total_bytes >= sum(pool.bytes for pool in host.pools)
    try:
        next_ratio = host.hicache_ratio + Fraction(1, max(1, device.max_total_num_tokens))
        assert plan(hicache_ratio=next_ratio).total_bytes > size
    except InvalidOptionError:
        assert host.total_bytes == 0 or host.hicache_ratio * device.max_total_num_tokens >= 2**62
    larger = plan(hicache_size=size + more)
    assert all(small.slots <= large.slots for small, large in zip(host.pools, larger.pools, strict=True))

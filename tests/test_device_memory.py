"""What a device's memory holds: recorded readings, the rules of SGLang and vLLM, and every backend of a stand-in torch.

No device is needed, and none is pretended: those tests are in `gpu/`.
"""

from __future__ import annotations

import dataclasses
import doctest
import sys
from collections import OrderedDict
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from poolplan import ModelSpec, RuntimeSpec, create_memory_pool_configurator
from poolplan.errors import InsufficientMemoryError, InvalidOptionError, MemoryQueryError
from poolplan.memory import device as device_module
from poolplan.memory.device import DeviceMemory
from poolplan.memory.host import HostMemory

MIB, GIB, GB = 1 << 20, 1 << 30, 10**9


def gib(number: str) -> int:
    """The bytes of a number of GiB as logs write it, rounded down."""
    return int(Fraction(number) * GIB)


def reading(free: int, total: int = 80 * GIB, **more: Any) -> DeviceMemory:
    return DeviceMemory(**dict[str, Any](device="cuda:0", backend="cuda", total_bytes=total, free_bytes=free) | more)


def test_the_example_of_the_class_runs() -> None:
    results = doctest.testmod(device_module)
    assert results.attempted > 0
    assert results.failed == 0


# What can be allocated


def test_whole_free_segments_go_back_to_the_driver() -> None:
    """Of 10 GiB that the allocator has 7 are in tensors, and 1 is free beside them."""
    device = reading(
        20 * GIB, reserved_bytes=10 * GIB, allocated_bytes=7 * GIB, inactive_split_bytes=GIB, expandable_segments=True
    )
    assert (device.releasable_bytes, device.headroom_bytes) == (2 * GIB, 22 * GIB)
    assert device.source == (
        "cuda:0 (cuda), driver: 21,474,836,480 bytes free of 85,899,345,920, and 2,147,483,648 in its cache"
    )


def test_the_allocators_limit_counts_what_it_has_taken() -> None:
    """Half of 80 GiB, of which 25 of the 30 that are reserved stay."""
    device = reading(45 * GIB, reserved_bytes=30 * GIB, allocated_bytes=25 * GIB, process_fraction=Fraction(1, 2))
    assert (device.releasable_bytes, device.headroom_bytes) == (5 * GIB, 15 * GIB)
    assert device.source == (
        "cuda:0 (cuda), limit of the process: 26,843,545,600 bytes taken of 42,949,672,960 (1/2 of 85,899,345,920)"
    )


def test_a_limit_below_what_is_taken_leaves_nothing() -> None:
    device = reading(40 * GIB, reserved_bytes=30 * GIB, allocated_bytes=30 * GIB, process_fraction=Fraction(1, 4))
    assert device.headroom_bytes == 0
    assert reading(80 * GIB, process_fraction=Fraction(0)).headroom_bytes == 0


def test_a_limit_that_does_not_bind_is_not_the_source() -> None:
    device = reading(20 * GIB, process_fraction=Fraction(1))
    assert device.headroom_bytes == 20 * GIB
    assert "driver" in device.source


def test_an_integrated_device_has_what_its_host_has_available() -> None:
    """vllm-project/vllm#48140: 121 GiB, 40 of weights in the page cache, which the driver counts as used."""
    device = reading(60 * GIB, 121 * GIB, host_available_bytes=100 * GIB)
    assert device.is_integrated
    assert device.headroom_bytes == 100 * GIB
    assert device.source == "cuda:0 (cuda), host: 107,374,182,400 bytes available, and 0 in its cache"
    assert (
        device.available_bytes(gpu_memory_utilization=0.8, non_kv_bytes=41 * GIB) == -(-121 * GIB * 4 // 5) - 41 * GIB
    )


def test_metal_bounds_an_integrated_device_too() -> None:
    device = reading(
        8 * GIB,
        24 * GIB,
        device="mps:0",
        backend="mps",
        host_available_bytes=20 * GIB,
        reserved_bytes=16 * GIB,
        allocated_bytes=16 * GIB,
    )
    assert device.headroom_bytes == 8 * GIB
    assert device.source == "mps:0 (mps), device: 17,179,869,184 bytes taken of 25,769,803,776"


# Recorded faults: each is a reading of that server, and what its rule must answer


def test_another_process_is_not_charged_to_this_one() -> None:
    """vllm-project/vllm#55828, #55827, #56830, #35920; ovg-project/kvcached#448: a neighbour came or left meanwhile.

    What this process takes is its own allocator's and its own to name; what the neighbour has only decides if it fits.
    """
    alone, beside = reading(79 * GIB), reading(59 * GIB)
    budgets = {device.available_bytes(gpu_memory_utilization=0.5, non_kv_bytes=18 * GIB) for device in (alone, beside)}
    assert budgets == {22 * GIB}


def test_replicas_of_one_fraction_have_one_budget() -> None:
    """Three on one card with 0.27 each had 97,503, 53,149 and 20,961 tokens: what was left, not what was asked for."""
    total = 80 * GIB
    asked = -(-total * 27 // 100)
    frees = [total - GIB - taken * asked for taken in range(3)]
    budgets = {reading(free).available_bytes(gpu_memory_utilization="0.27", non_kv_bytes=9 * GIB) for free in frees}
    assert budgets == {asked - 9 * GIB}
    with pytest.raises(InsufficientMemoryError, match="can be had"):  # and a fourth has none
        reading(frees[-1] - asked).available_bytes(gpu_memory_utilization="0.27", non_kv_bytes=9 * GIB)


def test_more_used_than_asked_for_is_an_error() -> None:
    """a710128/nanovllm-voxcpm#27: 0.4 of the total less what was used was negative, and a size."""
    with pytest.raises(InsufficientMemoryError) as caught:
        reading(gib("23.5"), 24 * GIB).available_bytes(gpu_memory_utilization=0.4, non_kv_bytes=12 * GIB)
    assert str(caught.value) == (
        "gpu_memory_utilization=0.4 asks for 10307921511 of 25769803776 bytes, and non_kv_bytes=12884901888 leaves none"
        " of them for pools: pass gpu_memory_utilization=0.501 to 0.979"
    )
    assert caught.value.alternatives == {"gpu_memory_utilization": "0.501"}
    assert (caught.value.available_bytes, caught.value.required_bytes) == (10_307_921_511, 12 * GIB + 1)


def test_a_loaders_segments_are_not_lost() -> None:
    """sgl-project/sglang#36583: 4 cards as of 80 GB, fraction 0.8: 1,741 tokens and 46.9 GB idle, or 349,377 and 17.0.

    So a token takes (46.9 - 17.0) GB / (349,377 - 1,741), and the loader had 29.9 GB, since dropped, in the cache.
    """
    cell = 29_900_000_000 // (349_377 - 1_741)
    loader = cell * (349_377 - 1_741)
    driver = 16 * GB + 1_741 * cell
    late = reading(driver, 80 * GB, reserved_bytes=40 * GB, allocated_bytes=40 * GB)
    collected = dataclasses.replace(late, allocated_bytes=40 * GB - loader)
    rule = dict[str, Any](mem_fraction_static=0.8, before_load=80 * GB)
    assert late.available_bytes(**rule) // cell == 1_741
    assert collected.available_bytes(**rule) // cell == 349_377


def test_memory_from_elsewhere_than_the_allocator_is_taken() -> None:
    """ROCm/ATOM#1649: collectives held about 14 GB that the allocator had not counted."""
    device = reading(192 * GB - 100 * GB - 14 * GB, 192 * GB, reserved_bytes=100 * GB, allocated_bytes=100 * GB)
    assert device.headroom_bytes == 78 * GB
    by_allocator = device.total_bytes - device.reserved_bytes
    assert by_allocator - device.available_bytes(mem_fraction_static=1, before_load=192 * GB) == 14 * GB


def test_graphs_are_part_of_what_else_is_needed() -> None:
    """vllm-project/vllm#2031: 31,615 blocks were 20,865 once graphs had been captured. In blocks of a MiB."""
    device, block = reading(79 * GIB), MIB
    weights = 72 * GIB - 31_615 * block
    graphs = (31_615 - 20_865) * block
    rule = dict[str, Any](gpu_memory_utilization=0.9)
    assert device.available_bytes(**rule, non_kv_bytes=weights) // block == 31_615
    assert device.available_bytes(**rule, non_kv_bytes=weights + graphs) // block == 20_865


def test_a_shared_card_is_measured_by_what_is_free() -> None:
    """vllm-project/vllm#7256, NVIDIA/TensorRT-LLM#4660: a fraction of the total of a card of which others have half."""
    device = reading(38 * GIB)
    with pytest.raises(InsufficientMemoryError) as caught:
        device.available_bytes(gpu_memory_utilization=0.9, non_kv_bytes=16 * GIB)
    assert caught.value.alternatives == {"gpu_memory_utilization": "0.475"}
    assert device.available_bytes(gpu_memory_utilization=0.475, non_kv_bytes=16 * GIB) == 22 * GIB
    assert device.available_bytes(mem_fraction_static=0.9, before_load=device) == 38 * GIB - gib("3.8") - 1


def test_fragments_are_reserved_and_not_usable() -> None:
    """vllm-project/vllm#37428: 384 MiB were needed, with 329.87 free and 402 reserved between tensors."""
    free, fragments = int(Fraction("329.87") * MIB), 402 * MIB
    used = 20 * GIB
    whole = reading(free, 24 * GIB, reserved_bytes=used + fragments, allocated_bytes=used)
    split = dataclasses.replace(whole, inactive_split_bytes=fragments)
    assert split.headroom_bytes == free < 384 * MIB
    assert whole.headroom_bytes == free + fragments


def test_a_flat_reserve_is_not_the_peak() -> None:
    """kaito-project/kaito#2139: 2.3 GiB were kept of a model whose run took 5.5."""
    device, weights = reading(79 * GIB), 40 * GIB
    flat, real = (
        device.available_bytes(gpu_memory_utilization=0.95, non_kv_bytes=weights + gib(peak)) for peak in ("2.3", "5.5")
    )
    assert flat - real == gib("5.5") - gib("2.3")


def test_a_peak_at_start_counts_against_the_same_bytes() -> None:
    """vllm-project/vllm#46307, #56824: 0.70 of 119 GiB were 83, and 112 in use before there was a pool."""
    device = reading(30 * GIB, 119 * GIB, host_available_bytes=115 * GIB)
    with pytest.raises(
        InsufficientMemoryError, match=r"asks for 894\d+ of .*: pass gpu_memory_utilization=0.942 to 0.966"
    ):
        device.available_bytes(gpu_memory_utilization=0.70, non_kv_bytes=112 * GIB)


@pytest.mark.parametrize(("free", "greatest"), [("101.3", "0.832"), ("102.2", "0.839")])
def test_a_fraction_that_no_start_can_meet_names_the_greatest(free: str, greatest: str) -> None:
    """MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#47: 0.87 of 121.69 GiB are 105.87, and 101.3 to 102.2 were free."""
    device = reading(gib("90"), gib("121.69"), host_available_bytes=gib(free))
    with pytest.raises(InsufficientMemoryError) as caught:
        device.available_bytes(gpu_memory_utilization=0.87, non_kv_bytes=80 * GIB)
    assert caught.value.required_bytes == -(-gib("121.69") * 87 // 100)
    assert caught.value.alternatives == {"gpu_memory_utilization": greatest}
    assert device.available_bytes(gpu_memory_utilization=greatest, non_kv_bytes=80 * GIB) > 0


# SGLang's rule


@pytest.mark.parametrize(
    "fraction", [0.88, "0.88", "22/25", Fraction(22, 25), Decimal("0.88")], ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize("before", [gib("78.5"), reading(gib("78.5"))], ids=["bytes", "a reading"])
def test_a_budget_is_sglangs_to_the_byte(fraction: Any, before: Any) -> None:
    """SGLang 0.5.23, asked for 63.0 GiB free of 78.5."""
    device = reading(63 * GIB)
    assert device.available_bytes(mem_fraction_static=fraction, before_load=before) == 57_531_086_929


def test_a_fraction_that_weights_exceed_names_the_least() -> None:
    """SGLang 0.5.23, of 5.0 GiB free of 78.5: at least 0.9363, and 0.937 suggested."""
    with pytest.raises(InsufficientMemoryError) as caught:
        reading(5 * GIB).available_bytes(mem_fraction_static=0.88, before_load=gib("78.5"))
    assert str(caught.value) == (
        "mem_fraction_static=0.88 keeps 10114647983 of 84288733184 bytes free, and there are 5368709120 (cuda:0 (cuda), "
        "driver: 5,368,709,120 bytes free of 85,899,345,920, and 0 in its cache): pass mem_fraction_static=0.937 or more"
    )
    assert caught.value.required_bytes == -(-gib("78.5") * 12 // 100) + 1
    assert caught.value.alternatives == {"mem_fraction_static": "0.937"}
    least = 1 - Fraction(5 * GIB, gib("78.5"))
    assert Fraction("0.9363") < least < Fraction("0.9364")


def test_without_memory_no_fraction_helps() -> None:
    with pytest.raises(InsufficientMemoryError, match="no value leaves any for pools") as caught:
        reading(0).available_bytes(mem_fraction_static=0.5, before_load=GIB)
    assert caught.value.alternatives == {}


def test_before_load_counts_the_limit_of_the_process() -> None:
    """Half of 80 GiB, 20 of them weights: a tenth of 40 stays free, not of 79."""
    half = Fraction(1, 2)
    before = reading(79 * GIB, process_fraction=half)
    after = reading(59 * GIB, process_fraction=half, reserved_bytes=20 * GIB, allocated_bytes=20 * GIB)
    assert after.available_bytes(mem_fraction_static=0.9, before_load=before) == 16 * GIB


def test_before_load_is_of_the_same_device() -> None:
    other = reading(79 * GIB, device="cuda:1")
    with pytest.raises(InvalidOptionError, match="before_load=cuda:1 is not valid: pass a reading of cuda:0"):
        reading(70 * GIB).available_bytes(mem_fraction_static=0.9, before_load=other)


# vLLM's rule


def test_a_request_is_rounded_up_as_vllm_does() -> None:
    """vLLM 0.33.0, `request_memory`: the ceiling of the total times the utilization."""
    assert reading(101, 101).available_bytes(gpu_memory_utilization=0.9, non_kv_bytes=1) == 90  # 90.9
    assert reading(101, 101).available_bytes(gpu_memory_utilization=1, non_kv_bytes=0) == 101


def test_a_request_must_be_free() -> None:
    with pytest.raises(InsufficientMemoryError) as caught:
        reading(60 * GIB).available_bytes(gpu_memory_utilization=0.9, non_kv_bytes=50 * GIB)
    assert str(caught.value) == (
        "gpu_memory_utilization=0.9 asks for 77309411328 of 85899345920 bytes, and 64424509440 can be had (cuda:0 (cuda), "
        "driver: 64,424,509,440 bytes free of 85,899,345,920, and 0 in its cache): pass gpu_memory_utilization=0.626 to 0.75"
    )
    assert caught.value.missing_bytes == 12 * GIB


def test_needs_above_what_is_free_are_beyond_any_utilization() -> None:
    with pytest.raises(InsufficientMemoryError, match="no value of three decimals works with non_kv_bytes=") as caught:
        reading(60 * GIB).available_bytes(gpu_memory_utilization=0.9, non_kv_bytes=61 * GIB)
    assert caught.value.alternatives == {}


def test_a_limit_of_the_process_bounds_a_request() -> None:
    device = reading(79 * GIB, process_fraction=Fraction(1, 2))
    with pytest.raises(InsufficientMemoryError, match="limit of the process") as caught:
        device.available_bytes(gpu_memory_utilization=0.6, non_kv_bytes=GIB)
    assert caught.value.alternatives == {"gpu_memory_utilization": "0.5"}


def test_a_fraction_of_many_digits_is_shown_as_one() -> None:
    with pytest.raises(InsufficientMemoryError, match=r"^gpu_memory_utilization=1/3 asks for"):
        reading(0).available_bytes(gpu_memory_utilization=Fraction(1, 3), non_kv_bytes=0)


# Options


RULES = "pass either mem_fraction_static and before_load, or gpu_memory_utilization and non_kv_bytes"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, f"mem_fraction_static=None is not valid: {RULES}"),
        ({"mem_fraction_static": 0.9}, f"mem_fraction_static=0.9 is not valid: {RULES}"),
        ({"before_load": 5}, f"before_load=5 is not valid: {RULES}"),
        ({"gpu_memory_utilization": 0.9}, f"gpu_memory_utilization=0.9 is not valid: {RULES}"),
        ({"mem_fraction_static": 0.9, "non_kv_bytes": 5}, f"mem_fraction_static=0.9 is not valid: {RULES}"),
        (
            {"mem_fraction_static": 1, "before_load": 5, "non_kv_bytes": 5},
            f"mem_fraction_static=1 is not valid: {RULES}",
        ),
        ({"mem_fraction_static": 0, "before_load": 5}, "mem_fraction_static=0 is not valid: pass a fraction above 0"),
        (
            {"mem_fraction_static": 1.01, "before_load": 5},
            "mem_fraction_static=1.01 is not valid: pass a fraction above 0",
        ),
        ({"mem_fraction_static": True, "before_load": 5}, "mem_fraction_static=True is not valid"),
        ({"mem_fraction_static": "88%", "before_load": 5}, "mem_fraction_static=88% is not valid"),
        ({"mem_fraction_static": 0.9, "before_load": -1}, "before_load=-1 is not valid: pass a whole number from 0"),
        ({"mem_fraction_static": 0.9, "before_load": 5e9}, "before_load=5000000000.0 is not valid"),
        ({"gpu_memory_utilization": float("nan"), "non_kv_bytes": 5}, "gpu_memory_utilization=nan is not valid"),
        ({"gpu_memory_utilization": Fraction(-1, 2), "non_kv_bytes": 5}, "gpu_memory_utilization=-1/2 is not valid"),
        ({"gpu_memory_utilization": 0.9, "non_kv_bytes": True}, "non_kv_bytes=True is not valid"),
    ],
    ids=str,
)
def test_options_are_those_of_one_rule(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        reading(70 * GIB).available_bytes(**options)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("values", "option"),
    [
        ({"total_bytes": None}, "total_bytes"),
        ({"free_bytes": 1e9}, "free_bytes"),
        ({"free_bytes": 81 * GIB}, "free_bytes"),
        ({"reserved_bytes": None}, "reserved_bytes"),
        ({"allocated_bytes": -1}, "allocated_bytes"),
        ({"inactive_split_bytes": False}, "inactive_split_bytes"),
        ({"host_available_bytes": -1}, "host_available_bytes"),
        ({"process_fraction": Fraction(3, 2)}, "process_fraction"),
        ({"process_fraction": "half"}, "process_fraction"),
    ],
    ids=str,
)
def test_a_value_is_checked_where_it_is_made(values: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        reading(**dict[str, Any](free=GIB) | ({"free": values["free_bytes"]} if "free_bytes" in values else values))
    assert caught.value.option == option


def test_a_reading_is_a_value() -> None:
    device = reading(GIB, process_fraction=0.8)
    assert device.process_fraction == Fraction(4, 5)
    assert eval(repr(device)) == device
    assert hash(dataclasses.replace(device)) == hash(device)


# Laws

BYTES = st.integers(0, 1 << 38)
FRACTIONS = st.fractions(Fraction(1, 1000), 1, max_denominator=10_000) | st.integers(1, 1000).map(
    lambda n: Fraction(n, 1000)
)


@st.composite
def readings(draw: st.DrawFn) -> DeviceMemory:
    total = draw(st.integers(1, 1 << 38))
    free = draw(st.integers(0, total))
    reserved = draw(st.integers(0, total - free))
    allocated = draw(st.integers(0, reserved))
    return reading(
        free,
        total,
        reserved_bytes=reserved,
        allocated_bytes=allocated,
        inactive_split_bytes=draw(st.integers(0, reserved - allocated)),
        host_available_bytes=draw(st.none() | st.integers(0, total)),
        process_fraction=draw(st.none() | st.just(Fraction(0)) | FRACTIONS),
    )


def headroom(device: DeviceMemory) -> Fraction:
    """Written as an operator would reckon it: what is free, and what an empty cache adds, under each limit."""
    cache = device.reserved_bytes - device.allocated_bytes - device.inactive_split_bytes
    used = device.reserved_bytes - cache
    least = Fraction(device.free_bytes + cache)
    if device.host_available_bytes is not None:
        least = min(Fraction(device.host_available_bytes + cache), Fraction(device.total_bytes - used))
    if device.process_fraction is not None:
        least = min(least, device.total_bytes * device.process_fraction - used)
    return max(Fraction(0), least)


@given(device=readings(), fraction=FRACTIONS, before=BYTES)
def test_sglangs_rule_is_exact(device: DeviceMemory, fraction: Fraction, before: int) -> None:
    expected = (headroom(device) // 1) - before + before * fraction
    try:
        budget = device.available_bytes(mem_fraction_static=fraction, before_load=before)
    except InsufficientMemoryError as error:
        assert expected < 1
        assert error.missing_bytes > 0
        assert error.available_bytes == device.headroom_bytes
        advised = error.alternatives.get("mem_fraction_static")
        assert (advised is None) == (device.headroom_bytes == 0)
        if advised is not None:
            assert device.available_bytes(mem_fraction_static=advised, before_load=before) >= 1
            with pytest.raises((InsufficientMemoryError, InvalidOptionError)):  # and a thousandth less does not do
                device.available_bytes(mem_fraction_static=Fraction(advised) - Fraction(1, 1000), before_load=before)
    else:
        assert budget == expected // 1 >= 1
        assert budget <= device.headroom_bytes


@given(device=readings(), fraction=FRACTIONS, non_kv=BYTES)
def test_vllms_rule_is_exact(device: DeviceMemory, fraction: Fraction, non_kv: int) -> None:
    asked = -(-(device.total_bytes * fraction) // 1)
    works = asked <= headroom(device) and asked > non_kv
    try:
        budget = device.available_bytes(gpu_memory_utilization=fraction, non_kv_bytes=non_kv)
    except InsufficientMemoryError as error:
        assert not works
        assert error.missing_bytes > 0
        for advised in error.alternatives.values():
            assert device.available_bytes(gpu_memory_utilization=advised, non_kv_bytes=non_kv) >= 1
        if not error.alternatives:  # none of the thousand does
            least = non_kv * 1000 // device.total_bytes + 1
            if least <= 1000:
                with pytest.raises(InsufficientMemoryError):
                    device.available_bytes(gpu_memory_utilization=Fraction(least, 1000), non_kv_bytes=non_kv)
    else:
        assert works
        assert budget == asked - non_kv <= device.headroom_bytes - non_kv


@given(device=readings())
def test_never_more_than_is_free(device: DeviceMemory) -> None:
    assert device.headroom_bytes == headroom(device) // 1
    assert device.headroom_bytes <= device.total_bytes - (device.reserved_bytes - device.releasable_bytes)
    if not device.is_integrated:
        assert device.headroom_bytes <= device.free_bytes + device.releasable_bytes


def budget(device: DeviceMemory, **options: Any) -> int:
    """The budget, and 0 where there is none."""
    try:
        return device.available_bytes(**options)
    except InsufficientMemoryError:
        return 0


@given(device=readings(), pair=st.tuples(FRACTIONS, FRACTIONS), other=BYTES)
def test_a_lower_fraction_never_gives_more(device: DeviceMemory, pair: tuple[Fraction, Fraction], other: int) -> None:
    low, high = sorted(pair)
    sglang = [budget(device, mem_fraction_static=fraction, before_load=other) for fraction in (low, high)]
    assert sglang[0] <= sglang[1]
    vllm = [budget(device, gpu_memory_utilization=fraction, non_kv_bytes=other) for fraction in (low, high)]
    assert vllm[0] <= vllm[1] or vllm[1] == 0  # too high a request is refused


@given(device=readings(), more=BYTES, fraction=FRACTIONS, before=BYTES)
def test_more_free_memory_never_gives_less(device: DeviceMemory, more: int, fraction: Fraction, before: int) -> None:
    assume(device.free_bytes + device.reserved_bytes + more <= device.total_bytes)
    wider = dataclasses.replace(device, free_bytes=device.free_bytes + more)
    options = dict[str, Any](mem_fraction_static=fraction, before_load=before)
    assert budget(wider, **options) >= budget(device, **options)


@given(device=readings(), more=BYTES)
def test_a_tighter_limit_never_gives_more(device: DeviceMemory, more: int) -> None:
    unlimited = dataclasses.replace(device, process_fraction=None)
    assert device.headroom_bytes <= unlimited.headroom_bytes


# What PyTorch says: stand-ins with the functions that its backends have


class Device(NamedTuple):
    type: str
    index: int | None = None  # pyright: ignore[reportIncompatibleMethodOverride]  # the name that torch has for it


def parse_device(text: object) -> Device:
    """As `torch.device` does it."""
    if not isinstance(text, str | Device):
        raise TypeError("device() received an invalid combination of arguments")
    if isinstance(text, Device):
        return text
    kind, colon, index = text.partition(":")
    if kind not in ("cpu", "cuda", "xpu", "mps") or (colon and not index.isdecimal()):
        raise RuntimeError(f"Invalid device string: {text!r}")
    return Device(kind, int(index) if colon else None)


STATS = {
    "reserved_bytes.all.current": 10 * GIB,
    "reserved_bytes.all.peak": 30 * GIB,
    "allocated_bytes.all.current": 6 * GIB,
    "active_bytes.all.current": 7 * GIB,  # 1 GiB waits for a stream
    "inactive_split_bytes.all.current": GIB // 2,
}
# Of the 3 GiB that are free: half a GiB is beside tensors, 1 GiB is a graph's, and 1.5 GiB go back to the driver.
SEGMENTS = [
    {
        "device": 0,
        "total_size": 15 * GIB // 2,
        "active_size": 7 * GIB,
        "segment_pool_id": (0, 0),
        "is_expandable": False,
    },
    {"device": 0, "total_size": GIB, "active_size": 0, "segment_pool_id": (0, 1), "is_expandable": False},
    {"device": 0, "total_size": 3 * GIB // 2, "active_size": 0, "segment_pool_id": (0, 0), "is_expandable": False},
    {"device": 1, "total_size": 5 * GIB, "active_size": 0, "segment_pool_id": (0, 0), "is_expandable": False},
]
FREES = {0: 40 * GIB, 1: 75 * GIB}


def always(answer: Any) -> Callable[..., Any]:
    """A function that answers the same whatever it is asked."""

    def function(*arguments: object) -> Any:
        return answer

    return function


def forbidden(*arguments: object) -> None:
    raise AssertionError("a query changes nothing")


def mem_get_info(index: int) -> tuple[int, int]:
    return FREES[index], 80 * GIB


def memory_stats(index: int) -> OrderedDict[str, int]:
    return OrderedDict(STATS) if index == 0 else OrderedDict()


def gpu(**more: Any) -> SimpleNamespace:
    """A module such as `torch.cuda`, with two devices of which 0 is the current one."""
    functions: dict[str, Any] = {
        "is_available": always(True),
        "device_count": always(2),
        "current_device": always(0),
        "mem_get_info": mem_get_info,
        "memory_stats": memory_stats,
        "memory_snapshot": always(SEGMENTS),
        "get_device_properties": always(SimpleNamespace(is_integrated=0, total_memory=141 * GB)),
        "get_per_process_memory_fraction": always(1.0),
        "empty_cache": forbidden,
        "set_device": forbidden,
    }
    functions |= more
    return SimpleNamespace(**{name: function for name, function in functions.items() if function is not None})


Install = Callable[..., ModuleType]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make `import torch` find a stand-in for the rest of the test."""

    def stand_in(
        kind: str | None, module: SimpleNamespace | None, *, hip: str | None = None, **accelerator: Any
    ) -> ModuleType:
        torch: Any = ModuleType("torch")
        torch.__version__ = "2.15.0"
        torch.version = SimpleNamespace(hip=hip)
        torch.device = parse_device
        torch.accelerator = SimpleNamespace(current_accelerator=always(kind and Device(kind)), **accelerator)
        if kind:
            setattr(torch, kind, module)
        monkeypatch.setitem(sys.modules, "torch", torch)
        return torch

    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    return stand_in


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> int:
    """A host with 90 GiB available, in a cgroup that leaves 50."""

    def query() -> HostMemory:
        group = dict[str, Any](cgroup_path="/", cgroup_version=2)
        return HostMemory(
            total_bytes=121 * GIB,
            available_bytes=90 * GIB,
            cgroup_limit_bytes=64 * GIB,
            cgroup_headroom_bytes=50 * GIB,
            **group,
        )

    monkeypatch.setattr(HostMemory, "query", query)
    return 50 * GIB


def test_cuda_answers_for_the_current_device(install: Install) -> None:
    install("cuda", gpu())
    assert DeviceMemory.query() == DeviceMemory(
        device="cuda:0",
        backend="cuda",
        total_bytes=80 * GIB,
        free_bytes=40 * GIB,
        reserved_bytes=10 * GIB,
        allocated_bytes=7 * GIB,
        inactive_split_bytes=3 * GIB // 2,
        process_fraction=Fraction(1),
    )
    assert DeviceMemory.query().headroom_bytes == 40 * GIB + 3 * GIB // 2


@pytest.mark.parametrize("name", ["cuda:1", 1, Device("cuda", 1)], ids=repr)
def test_a_device_is_a_name_an_index_or_a_device(install: Install, name: Any) -> None:
    install("cuda", gpu())
    device = DeviceMemory.query(name)
    assert (device.device, device.free_bytes, device.reserved_bytes, device.headroom_bytes) == (
        "cuda:1",
        75 * GIB,
        0,
        75 * GIB,
    )


@pytest.mark.parametrize("name", [None, "cuda", Device("cuda")], ids=repr)
def test_a_device_without_an_index_is_the_current_one(install: Install, name: Any) -> None:
    install("cuda", gpu(current_device=always(1)))
    assert DeviceMemory.query(name).device == "cuda:1"


def test_rocm_is_told_by_its_version(install: Install) -> None:
    install("cuda", gpu(), hip="7.2")
    device = DeviceMemory.query()
    assert (device.device, device.backend) == ("cuda:0", "rocm")


def test_a_slice_is_not_the_whole_card(install: Install) -> None:
    """vllm-project/vllm#39874, #40937; sgl-project/sglang#3353: of a slice of 16 GB the whole 141 were read."""
    install("cuda", gpu(mem_get_info=always((15 * GB, 16 * GB)), memory_stats=always({})))
    device = DeviceMemory.query()
    assert device.total_bytes == 16 * GB
    assert device.available_bytes(gpu_memory_utilization=0.9, non_kv_bytes=4 * GB) == 14_400_000_000 - 4 * GB


def test_a_limit_of_the_process_is_read_back(install: Install) -> None:
    install("cuda", gpu(get_per_process_memory_fraction=always(0.8)))
    assert DeviceMemory.query().process_fraction == Fraction(4, 5)


def test_an_older_torch_does_not_say_the_limit(install: Install) -> None:
    install("cuda", gpu(get_per_process_memory_fraction=None))
    assert DeviceMemory.query().process_fraction is None


def test_an_allocator_that_has_not_started_has_nothing(install: Install) -> None:
    install("cuda", gpu(memory_stats=always({}), memory_snapshot=list))
    device = DeviceMemory.query()
    assert (device.reserved_bytes, device.allocated_bytes, device.inactive_split_bytes) == (0, 0, 0)


def test_expandable_segments_beside_tensors_are_not_promised(install: Install) -> None:
    """PyTorch leaves them out of its statistic of what cannot be released: 3 GiB free, and none surely goes back."""
    stats = STATS | {"inactive_split_bytes.all.current": 0}
    segment = {
        "device": 0,
        "total_size": 10 * GIB,
        "active_size": 7 * GIB,
        "segment_pool_id": (0, 0),
        "is_expandable": True,
    }
    install("cuda", gpu(memory_stats=always(stats), memory_snapshot=always([segment])))
    device = DeviceMemory.query()
    assert (device.inactive_split_bytes, device.releasable_bytes) == (3 * GIB, 0)


def test_an_allocator_without_segments_promises_nothing(install: Install) -> None:
    def refuse() -> None:
        raise RuntimeError("snapshot with cudaMallocAsync")

    install("cuda", gpu(memory_snapshot=refuse))
    assert DeviceMemory.query().releasable_bytes == 0


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, None),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, True),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64, expandable_segments: True"}, True),
        ({"PYTORCH_HIP_ALLOC_CONF": "expandable_segments:False,max_split_size_mb:64"}, False),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:True"},
            True,
        ),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:False"},
            None,
        ),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments_reserve:1G"}, None),
    ],
    ids=str,
)
def test_expandable_segments_are_what_the_environment_says(
    install: Install, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], expected: bool | None
) -> None:
    install("cuda", gpu())
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert DeviceMemory.query().expandable_segments is expected


def test_xpu_has_the_same_functions(install: Install) -> None:
    """As in PyTorch 2.6, which lists no segments: its statistic is that of segments that do not grow."""
    properties = SimpleNamespace(total_memory=80 * GIB)
    install(
        "xpu",
        gpu(memory_snapshot=None, get_per_process_memory_fraction=None, get_device_properties=always(properties)),
    )
    device = DeviceMemory.query()
    assert (device.device, device.backend, device.free_bytes) == ("xpu:0", "xpu", 40 * GIB)
    assert device.releasable_bytes == (10 - 7) * GIB - GIB // 2


def test_another_backend_is_asked_through_the_accelerator(install: Install) -> None:
    """PyTorch 2.15: `torch.accelerator` has the functions that the backend's own module lacks."""
    module = gpu(mem_get_info=None, memory_stats=None, memory_snapshot=None, get_device_properties=None)
    install("npu", module, get_memory_info=always((30 * GIB, 64 * GIB)), memory_stats=always(OrderedDict(STATS)))
    device = DeviceMemory.query()
    assert (device.device, device.backend, device.total_bytes, device.reserved_bytes) == (
        "npu:0",
        "npu",
        64 * GIB,
        10 * GIB,
    )


def test_a_backend_that_counts_no_splits_promises_nothing(install: Install) -> None:
    stats = {name: value for name, value in STATS.items() if "split" not in name}
    install("npu", gpu(memory_snapshot=None, memory_stats=always(stats)))
    assert DeviceMemory.query().releasable_bytes == 0


@pytest.mark.parametrize("name", ["is_integrated", "is_integrated_gpu"])
def test_an_integrated_device_asks_its_host(install: Install, host: int, name: str) -> None:
    """SGLang 0.5.23 and vLLM 0.33.0 take the system's available memory; a container's limit binds here too."""
    properties = SimpleNamespace(**{name: 1})
    install("cuda", gpu(get_device_properties=always(properties), memory_stats=always({})))
    device = DeviceMemory.query()
    assert device.is_integrated
    assert device.headroom_bytes == device.host_available_bytes == host


def metal() -> SimpleNamespace:
    """As `torch.mps` of PyTorch 2.15."""
    return SimpleNamespace(
        is_available=always(True),
        device_count=always(1),
        recommended_max_memory=always(48 * GIB),
        driver_allocated_memory=always(12 * GIB),
        current_allocated_memory=always(9 * GIB),
        empty_cache=forbidden,
    )


def test_metal_has_the_lesser_of_its_own_and_the_hosts(install: Install, host: int) -> None:
    """SGLang 0.5.23: what Metal recommends less what it has given out, and what the system has available."""
    install("mps", metal())
    device = DeviceMemory.query("mps")
    assert (device.device, device.backend, device.is_integrated) == ("mps:0", "mps", True)
    assert (device.total_bytes, device.free_bytes, device.allocated_bytes) == (48 * GIB, 36 * GIB, 9 * GIB)
    assert (device.releasable_bytes, device.headroom_bytes) == (0, 36 * GIB)


def no_proc() -> HostMemory:
    raise MemoryQueryError("no /proc/meminfo")


def test_a_host_other_than_linux_is_read_by_psutil(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("mps", metal())
    monkeypatch.setattr(HostMemory, "query", no_proc)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setitem(
        sys.modules, "psutil", SimpleNamespace(virtual_memory=always(SimpleNamespace(available=20 * GIB)))
    )
    assert DeviceMemory.query().headroom_bytes == 20 * GIB
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(MemoryQueryError, match="install psutil; or pass the available bytes yourself"):
        DeviceMemory.query()


def test_a_hosts_limit_is_never_passed_over(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("mps", metal())
    monkeypatch.setattr(HostMemory, "query", no_proc)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(MemoryQueryError, match="it shares the host's, and no /proc/meminfo"):
        DeviceMemory.query()


# What cannot be read


def test_no_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        MemoryQueryError, match=r"torch cannot be imported .*install torch; or pass the available bytes"
    ):
        DeviceMemory.query()


def test_a_torch_without_accelerators_is_too_old(install: Install) -> None:
    torch: Any = install("cuda", gpu())
    del torch.accelerator
    with pytest.raises(MemoryQueryError, match=r"torch 2\.15\.0 is too old; install torch 2.6 or later"):
        DeviceMemory.query()


def unavailable() -> SimpleNamespace:
    return gpu(is_available=always(False))


def failing(*arguments: object) -> Any:
    raise RuntimeError("CUDA error: unspecified launch failure")


@pytest.mark.parametrize(
    ("kind", "module", "name", "message"),
    [
        pytest.param(
            None, None, None, "2.15.0 is built for the CPU only; install a build for the", id="no accelerator"
        ),
        pytest.param(
            "cuda", unavailable(), None, "built for cuda and finds no device; check the driver", id="no driver"
        ),
        pytest.param("cuda", gpu(device_count=always(0)), 0, "built for cuda and finds no device", id="none visible"),
        pytest.param("cuda", gpu(), 2, "cuda:2 is not there, as devices are cuda:0 to cuda:1", id="no such index"),
        pytest.param("cuda", gpu(), -1, "cuda:-1 is not there", id="a negative index"),
        pytest.param("cuda", gpu(), "cuda:7", "cuda:7 is not there", id="no such name"),
        pytest.param("cuda", gpu(), "xpu:0", "built for cuda, and xpu:0 is none", id="another accelerator"),
        pytest.param("cuda", gpu(mem_get_info=None), None, "torch.cuda has no mem_get_info", id="no function"),
        pytest.param(
            "cuda", gpu(mem_get_info=failing), None, "unspecified launch failure; or pass", id="a driver's error"
        ),
        pytest.param("cuda", SimpleNamespace(), None, "has no attribute 'is_available'", id="half a backend"),
    ],
)
def test_what_cannot_be_read_says_what_would_do(
    install: Install, kind: str | None, module: SimpleNamespace | None, name: Any, message: str
) -> None:
    install(kind, module)
    with pytest.raises(MemoryQueryError, match=r"^the device's memory cannot be read: ") as caught:
        DeviceMemory.query(name)
    assert message in str(caught.value)
    assert str(caught.value).endswith("; or pass the available bytes yourself")


@pytest.mark.parametrize("name", ["gpu", "cuda:first", True, 1.5, "cpu"], ids=repr)
def test_a_name_that_is_no_accelerators_is_refused(install: Install, name: Any) -> None:
    install("cuda", gpu())
    with pytest.raises(InvalidOptionError) as caught:
        DeviceMemory.query(name)
    assert caught.value.option == "device"


# This machine's PyTorch, on the CPU


def test_a_machine_without_a_device_says_so() -> None:
    torch: Any = pytest.importorskip("torch")
    if torch.accelerator.is_available():
        pytest.skip("this machine has a device, which the tests in gpu/ read")
    with pytest.raises(MemoryQueryError, match=r"finds no device; check the driver|is built for the CPU only"):
        DeviceMemory.query()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("Qwen/Qwen3-8B", {}, id="dense"),
        pytest.param("deepseek-ai/DeepSeek-V3.2", {"kv_cache_dtype": "fp8_e4m3"}, id="latents and index keys"),
        pytest.param("openai/gpt-oss-120b", {}, id="windows"),
        pytest.param("google/gemma-3-27b-it", {"count_padding": False}, id="windows without padding"),
        pytest.param("Qwen/Qwen3.5-35B-A3B", {"speculative_algorithm": "NEXTN"}, id="states and drafts"),
        pytest.param("deepseek-ai/DeepSeek-V4-Flash", {"page_size": 256}, id="compressed entries"),
    ],
)
def test_the_tensors_of_a_plan_take_what_it_says(name: str, options: dict[str, Any]) -> None:
    """Allocated for real, on the CPU: each pool has its bytes, and all of them the plan's."""
    torch: Any = pytest.importorskip("torch")
    spec = RuntimeSpec(**dict[str, Any](page_size=64, max_running_requests=2, context_length=4096, tp_size=4) | options)
    configurator = create_memory_pool_configurator(ModelSpec.from_pretrained(name), spec)
    config = configurator.calculate_pool_sizes(configurator.required_bytes + 256 * MIB)
    taken: dict[str, int] = {}
    for pool, buffers in configurator.buffer_bytes(config).items():
        tensors = [torch.empty(size, dtype=torch.uint8) for size, count in buffers for _ in range(count)]
        taken[pool] = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    assert taken == {pool.name: pool.bytes for pool in config.pools}
    assert sum(taken.values()) == config.total_bytes

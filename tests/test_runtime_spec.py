"""Options: what is accepted, what is stored, and what is refused with its name."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolplan import InvalidOptionError, RuntimeSpec

NUMBERS = [option.name for option in dataclasses.fields(RuntimeSpec) if str(option.type).startswith("int")]


@pytest.mark.parametrize("ratio", [0.8, "0.8", "4/5", Fraction(4, 5), Decimal("0.8"), "8e-1"], ids=repr)
def test_a_ratio_is_the_decimal_that_was_typed(ratio: Any) -> None:
    assert RuntimeSpec(swa_full_tokens_ratio=ratio).swa_full_tokens_ratio == Fraction(4, 5)


@given(st.floats(min_value=1e-3, max_value=1, exclude_min=True))
def test_every_float_ratio_is_its_shortest_decimal(ratio: float) -> None:
    assert RuntimeSpec(swa_full_tokens_ratio=Fraction(repr(ratio))) == RuntimeSpec(swa_full_tokens_ratio=ratio)  # pyright: ignore[reportArgumentType]


def test_a_ratio_that_does_not_fit_64_bits_is_refused_with_the_limit() -> None:
    with pytest.raises(InvalidOptionError, match="64 bits"):
        RuntimeSpec(swa_full_tokens_ratio=Fraction(1, 2**64))


@pytest.mark.parametrize(
    "ratio",
    [0, -0.5, 1.01, float("nan"), float("inf"), True, "x", "1/0", "", b"1", [1], 10**400, 5e-324],
    ids=repr,
)
def test_a_ratio_above_1_or_not_above_0_is_refused(ratio: Any) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        RuntimeSpec(swa_full_tokens_ratio=ratio)
    assert caught.value.option == "swa_full_tokens_ratio"


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, 1.0, "1", b"1", -2, 2**64, 2**200, float("nan"), [1]], ids=repr)
def test_a_number_that_is_not_whole_or_out_of_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        RuntimeSpec(**{name: value})
    assert caught.value.option == name
    assert name in str(caught.value)


@pytest.mark.parametrize("dtype", ["bfloat16", "bf16", "torch.bfloat16"])
def test_a_dtype_has_one_name(dtype: str) -> None:
    assert RuntimeSpec(kv_cache_dtype=dtype).kv_cache_dtype == "bfloat16"


class _TorchDtype:
    """Writes itself as `torch.dtype` does, so that torch is not needed here."""

    def __str__(self) -> str:
        return "torch.float8_e4m3fn"


def test_a_torch_dtype_is_read_by_its_name() -> None:
    assert RuntimeSpec(kv_cache_dtype=_TorchDtype()).kv_cache_dtype == "fp8_e4m3"  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"kv_cache_dtype": "int3"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": 16}, "kv_cache_dtype"),
        ({"disaggregation_mode": "both"}, "disaggregation_mode"),
        ({"disable_radix_cache": 1}, "disable_radix_cache"),
        ({"pp_size": 2, "pp_rank": 2}, "pp_rank"),
        ({"tp_size": None}, "tp_size"),
    ],
    ids=repr,
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        RuntimeSpec(**options)
    assert caught.value.option == option


def test_minus_one_is_sglangs_word_for_whole_prompts() -> None:
    assert RuntimeSpec(chunked_prefill_size=-1) == RuntimeSpec()


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"mamba_full_memory_ratio": 0}, "mamba_full_memory_ratio"),
        ({"mamba_full_memory_ratio": 99.5}, "mamba_full_memory_ratio"),
        ({"mamba_radix_cache_strategy": "buffer"}, "mamba_radix_cache_strategy"),
        ({"speculative_algorithm": "MAGIC"}, "speculative_algorithm"),
        ({"speculative_num_steps": 0}, "speculative_num_steps"),
        ({"mamba_ssm_dtype": "int3"}, "mamba_ssm_dtype"),
        ({"v_cache_dtype": "auto"}, "v_cache_dtype"),
        ({"tp_size": 8, "dp_size": 3, "enable_dp_attention": True}, "dp_size"),
        ({"pp_layer_partition": ()}, "pp_layer_partition"),
        ({"pp_layer_partition": "4,x"}, "pp_layer_partition"),
        ({"pp_layer_partition": [4, 0]}, "pp_layer_partition"),
        ({"pp_layer_partition": 8}, "pp_layer_partition"),
    ],
    ids=str,
)
def test_an_option_that_no_runtime_could_follow_is_named(options: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        RuntimeSpec(**options)
    assert caught.value.option == option


def test_a_partition_is_kept_as_numbers() -> None:
    for partition in ("15, 15,16,15", [15, 15, 16, 15], (15, 15, 16, 15)):
        assert RuntimeSpec(pp_size=4, pp_layer_partition=partition).pp_layer_partition == (15, 15, 16, 15)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_workers_of_attention_dp_share_ranks_and_requests() -> None:
    """SGLang 0.5.23: `attn_tp_size = tp / dp`, and each worker serves its part, one request at least."""
    runtime = RuntimeSpec(tp_size=8, dp_size=4, enable_dp_attention=True, max_running_requests=10)
    assert (runtime.attention_tp_size, runtime.requests_per_worker) == (2, 2)
    few = RuntimeSpec(tp_size=8, dp_size=4, enable_dp_attention=True, max_running_requests=3, max_mamba_cache_size=40)
    assert (few.requests_per_worker, few.state_slots_per_worker) == (1, 10)
    apart = RuntimeSpec(tp_size=8, dp_size=4, max_running_requests=10)
    assert (apart.attention_tp_size, apart.requests_per_worker) == (8, 10)


def test_drafts_are_one_more_than_steps_unless_given() -> None:
    assert RuntimeSpec(speculative_algorithm="EAGLE").speculative_num_draft_tokens == 4
    assert RuntimeSpec(speculative_algorithm="EAGLE", speculative_num_draft_tokens=7).speculative_num_draft_tokens == 7
    assert RuntimeSpec().speculative_num_draft_tokens is None

"""The reference itself, against numbers worked out by hand, what SGLang 0.5.23 answered, and the three laws."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_sglang_cases import ALLOCATIONS, GPT_OSS, PLANS, Model

from reference import Answer, ClosedForm, Options, Refusal, World, plan_by_scan
from reference.cells import Formats, Layer, Span, State, cell_bytes
from strategies import Case, cases, small_cases

GIB = 1 << 30
FULL: Span = ("full", None)
TENTH = Fraction(1, 10)


def heads(count: int, key: int, value: int, span: Span = FULL) -> Layer:
    return (("heads", count, key, value, span),)


def planner(
    layers: tuple[Layer, ...], *, bare: bool = True, drafts: tuple[Layer, ...] = (), **options: Any
) -> ClosedForm:
    """A planner that counts neither padding nor the request table, as SGLang, unless told."""
    counted = {"count_padding": not bare, "count_request_table": not bare}
    return ClosedForm(World(layers, Options(**counted, **options), drafts))


def slots(answer: Answer) -> dict[str, int]:
    return {name: count for name, count, *_ in answer.pools}


@pytest.mark.parametrize(
    ("state", "dtype", "tp_size", "cell"),
    [
        pytest.param(("heads", 8, 128, 128, FULL), "bfloat16", 1, 8 * 256 * 2, id="heads"),
        pytest.param(("heads", 8, 128, 128, FULL), "float32", 2, 4 * 256 * 4, id="heads over ranks"),
        pytest.param(("heads", 2, 128, 128, FULL), "bfloat16", 4, 1 * 256 * 2, id="fewer heads than ranks"),
        pytest.param(("heads", 4, 192, 128, FULL), "fp8_e4m3", 4, 1 * 320, id="values narrower than keys"),
        pytest.param(("latent", 512, 64, FULL), "bfloat16", 8, 576 * 2, id="latent is not divided"),
        pytest.param(("latent", 512, 64, FULL), "fp8_e5m2", 1, 576, id="latent fp8"),
        pytest.param(("latent", 512, 64, FULL), "fp4_mx_block16", 1, 288 + 36, id="latent fp4"),
        pytest.param(("heads", 8, 128, 128, FULL), "mxfp8", 1, 8 * 2 * (128 + 4), id="mxfp8"),
        pytest.param(("heads", 8, 128, 128, FULL), "nvfp4", 1, 8 * 2 * (64 + 8), id="nvfp4"),
        pytest.param(("heads", 8, 128, 128, FULL), "mxfp4", 1, 8 * 2 * (64 + 4), id="mxfp4"),
        # vLLM 0.33.0, `TritonAttentionBackend.customize_spec` and `MLACommonBackend.customize_spec`: a 32-bit scale on
        # each side of each head; two beside a latent.
        pytest.param(("heads", 8, 128, 128, FULL), "int8", 1, 8 * (256 + 8), id="int8"),
        pytest.param(("heads", 8, 128, 128, FULL), "int4", 1, 8 * (128 + 8), id="int4"),
        pytest.param(("latent", 512, 64, FULL), "int8", 8, 576 + 8, id="latent int8"),
    ],
)
def test_a_cell_is_the_one_worked_out_by_hand(state: State, dtype: str, tp_size: int, cell: int) -> None:
    assert cell_bytes(state, Formats(dtype, tp_size)) == cell


@pytest.mark.parametrize(
    ("state", "dtype", "tp_size", "option"),
    [
        pytest.param(("heads", 10, 128, 128, FULL), "bfloat16", 4, "tp_size", id="10 heads on 4 ranks"),
        pytest.param(("heads", 4, 128, 128, FULL), "bfloat16", 6, "tp_size", id="4 heads on 6 ranks"),
        # K and V together would be three blocks of 32.
        pytest.param(("heads", 4, 48, 48, FULL), "mxfp8", 1, "kv_cache_dtype", id="half a block"),
        pytest.param(("latent", 512, 72, FULL), "nvfp4", 1, "kv_cache_dtype", id="half a block of a latent"),
    ],
)
def test_a_cell_that_does_not_divide_is_refused(state: State, dtype: str, tp_size: int, option: str) -> None:
    with pytest.raises(Refusal) as caught:
        cell_bytes(state, Formats(dtype, tp_size))
    assert caught.value.option == option


def test_a_head_may_be_whole_blocks_of_16_and_not_of_32() -> None:
    assert cell_bytes(("heads", 1, 80, 80, FULL), Formats("nvfp4")) == 2 * (40 + 5)
    with pytest.raises(Refusal):
        cell_bytes(("heads", 1, 80, 80, FULL), Formats("mxfp4"))


def test_each_stage_pays_for_its_own_layers() -> None:
    # vllm-project/vllm#32105: 92 layers on 8 stages are 4 of 11 and 4 of 12; the rank takes 9.28 GiB, not 71.16.
    layers = (heads(8, 128, 128),) * 92
    assert planner(layers, pp_size=8).plan_from_max_tokens(202_752).total_bytes == 202_752 * 12 * 4096
    assert planner(layers).plan_from_max_tokens(202_752).total_bytes == 202_752 * 92 * 4096


def test_the_last_stages_own_the_layers_that_are_left_over() -> None:
    # Three layers on two stages: one, then two. Only the last layer is wide, so the second stage pays for it and one more.
    layers = (heads(1, 1, 1), heads(1, 1, 1), heads(1, 3, 3))
    assert planner(layers, pp_size=2).plan_from_max_tokens(10).total_bytes == 10 * (4 + 12)


def test_a_stage_without_layers_of_a_pool_pays_no_padding_for_it() -> None:
    layers = (heads(1, 1, 1), heads(1, 2, 2, ("window", 4)))
    answer = planner(layers, bare=False, pp_size=2, page_size=8, ratio=Fraction(1)).plan_from_max_tokens(64)
    # The second stage takes most: 64 + 8 slots of 8 bytes, and the table of 32 + 1 requests.
    table = 33 * 8196 * 4
    assert answer.pools == (("full", 64, 0, 0, 0), ("swa", 64, 8, 8, 72 * 8), ("request_table", 32, 1, 32_784, table))


def test_ratios_are_exact() -> None:
    # sgl-project/sglang#18039: 375,360 tokens at 0.8 are 300,288, and the cells of MiMo-V2-Flash with TP 4.
    layers = (heads(4, 192, 128),) * 9 + (heads(8, 192, 128, ("window", 128)),) * 39
    answer = planner(layers, tp_size=4, page_size=64).plan_from_max_tokens(375_360)
    assert slots(answer) == {"full": 375_360, "swa": 300_288}
    assert answer.total_bytes == 375_360 * 9 * 320 * 2 + 300_288 * 39 * 2 * 320 * 2
    # In binary floats int(6400 * 0.29) is 1855, and its page floor 1792.
    window = (heads(1, 1, 1), heads(1, 1, 1, ("window", 64)))
    assert slots(planner(window, page_size=64, ratio=Fraction("0.29")).plan_from_max_tokens(6400))["swa"] == 1856


def test_a_window_pool_must_exceed_the_window_and_a_page() -> None:
    # sgl-project/sglang#37610: 4,096 tokens at 0.1 are one page of 256, and 384 are not enough: 512 are.
    layers = (heads(1, 64, 64), heads(1, 64, 64, ("window", 128)))
    with pytest.raises(Refusal) as caught:
        planner(layers, page_size=256, ratio=TENTH, max_total_tokens=4096)
    assert caught.value.option == "max_total_tokens"
    least = planner(layers, page_size=256, ratio=TENTH).least_pages * 256
    assert slots(planner(layers, page_size=256, ratio=TENTH).plan_from_max_tokens(least)) == {"full": 5120, "swa": 512}


def test_a_window_pool_holds_a_chunk_too() -> None:
    # sgl-project/sglang#36458: a chunk of 12,800 deadlocks in the 13,056 slots of 131,072 tokens at 0.1.
    layers = (heads(1, 64, 64), heads(1, 64, 64, ("window", 128)))
    served: dict[str, Any] = {"page_size": 256, "ratio": TENTH, "context_length": 131_072, "max_total_tokens": 131_072}
    assert slots(planner(layers, **served).plan(GIB))["swa"] == 13_056
    assert slots(planner(layers, **served, chunked_prefill_size=12_672).plan(GIB))["swa"] == 13_056
    with pytest.raises(Refusal):
        planner(layers, **served, chunked_prefill_size=12_800)


def test_a_request_of_the_stated_length_fits() -> None:
    layers = (heads(1, 1, 1), heads(1, 1, 1, ("window", 8)))
    assert planner(layers, page_size=4, request_tokens=1001).least_pages * 4 == 1004
    # A request shorter than its window still needs what any request needs: more than 8 + 4 slots at a ratio of 4/5.
    assert planner(layers, page_size=4, request_tokens=3).least_pages * 4 == 20
    with pytest.raises(Refusal) as caught:
        planner(layers, request_tokens=8193)
    assert caught.value.option == "request_tokens"


# SGLang's own tests: 32 layers of 4 heads of 64, in BF16.
FULL_16 = (heads(4, 64, 64),) * 16
WINDOW_16 = (heads(4, 64, 64, ("window", 8)),) * 16


def test_plans_from_tokens_are_those_of_sglangs_own_tests() -> None:
    assert slots(planner(FULL_16 * 2).plan_from_max_tokens(100)) == {"full": 100}
    assert slots(planner(FULL_16 * 2, page_size=128).plan_from_max_tokens(1000)) == {"full": 896}
    assert slots(planner(WINDOW_16 * 2).plan_from_max_tokens(500)) == {"swa": 500}
    half = planner(FULL_16 + WINDOW_16, ratio=Fraction(1, 2))
    assert slots(half.plan_from_max_tokens(200)) == {"full": 200, "swa": 100}


def test_a_budget_is_used_as_in_sglangs_own_tests() -> None:
    for layers in (FULL_16 * 2, WINDOW_16 * 2, FULL_16 + WINDOW_16):
        for ratio in (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(1)):
            answer = planner(layers, ratio=ratio).plan(10_000_000)
            assert 9_900_000 < answer.total_bytes <= 10_000_000
            if len(answer.pools) == 2:
                assert slots(answer)["swa"] == int(slots(answer)["full"] * ratio)


@pytest.mark.parametrize(
    ("window", "options", "slots_held"),
    [
        pytest.param(4, {"max_running_requests": 10, "disaggregation_mode": "decode"}, 100, id="decode role"),
        pytest.param(
            8,
            {"page_size": 4, "max_running_requests": 2, "chunked_prefill_size": 16, "disaggregation_mode": "prefill"},
            76,
            id="prefill role",
        ),
        # Worked out by hand from the line above, which has two chunks in flight: one chunk of 16 less.
        pytest.param(
            8,
            {
                "page_size": 4,
                "max_running_requests": 2,
                "chunked_prefill_size": 16,
                "disaggregation_mode": "prefill",
                "disable_overlap_schedule": True,
            },
            60,
            id="prefill role without overlap",
        ),
    ],
)
def test_a_request_cap_is_the_one_of_sglangs_own_tests(window: int, options: dict[str, Any], slots_held: int) -> None:
    """Left out are its 104 and 91, which need speculation, and 110, which needs slots beyond the requests."""
    layers = FULL_16 + (heads(4, 64, 64, ("window", window)),) * 16
    answer = planner(layers, disable_radix_cache=True, eviction_interval=4, **options).plan(10_000_000)
    assert slots(answer)["swa"] == slots_held


def served_as(options: dict[str, Any]) -> dict[str, Any]:
    """Options of the public API as options of the reference."""
    names = {"kv_cache_dtype": "dtype", "swa_full_tokens_ratio": "ratio"}
    values = {names.get(name, name): value for name, value in options.items()}
    return values | {"ratio": Fraction(str(values.get("ratio", "0.8")))}


@pytest.mark.parametrize(
    ("model", "options", "sglangs", "more"), [case[1:] for case in PLANS], ids=[c[0] for c in PLANS]
)
def test_a_plan_of_50_gib_is_sglangs_or_a_page_more(
    model: Model, options: dict[str, Any], sglangs: tuple[int, int | None, int | None, int], more: int | None
) -> None:
    max_total, _, swa, requests = sglangs
    answer = planner(model.layers, drafts=model.drafts, context_length=model.context_length, **served_as(options)).plan(
        50 * GIB
    )
    assert (answer.tokens, answer.requests) == (more or max_total, requests)
    assert more or slots(answer).get("swa") == swa


@pytest.mark.parametrize(
    ("model", "options", "tokens", "cache_bytes", "table"),
    [c[1:] for c in ALLOCATIONS],
    ids=[c[0] for c in ALLOCATIONS],
)
def test_the_bytes_of_a_plan_are_what_sglang_allocates_for_it(
    model: Model, options: dict[str, Any], tokens: int, cache_bytes: int, table: tuple[int, int]
) -> None:
    whole = planner(
        model.layers, drafts=model.drafts, bare=False, context_length=model.context_length, **served_as(options)
    )
    rows, width = table
    assert whole.plan_from_max_tokens(tokens).total_bytes == cache_bytes + rows * width * 4


def test_a_cap_above_the_budget_changes_nothing() -> None:
    # SGLang: GPT-OSS with 1 GiB and a cap of 10^9 tokens takes 16,128 and 12,864; its float cell loses a page of each,
    # as (16,192 + 12,928) slots of 18 layers of 2,048 bytes are 1,073,479,680 bytes.
    options: dict[str, Any] = {"page_size": 64, "context_length": GPT_OSS.context_length}
    answer = planner(GPT_OSS.layers, **options, max_total_tokens=10**9).plan(GIB)
    assert slots(answer) == {"full": 16_192, "swa": 12_928}
    assert answer == planner(GPT_OSS.layers, **options).plan(GIB)


@given(cases(), st.integers(0, 2**40))
def test_the_closed_form_keeps_the_three_laws(case: Case, more: int) -> None:
    try:
        planner = ClosedForm(case.world())
        tokens = planner.plan(case.budget).tokens
    except Refusal:
        return
    world, share = planner.world, planner.share(case.budget)
    next_step = tokens + world.step
    assert world.cost(tokens, share) <= case.budget
    assert next_step > world.max_tokens or world.cost(next_step, share) > case.budget
    larger = planner.share(case.budget + more)
    assert larger >= share
    if larger == share:
        assert planner.plan(case.budget + more).tokens >= tokens


@given(small_cases())
def test_the_bytes_of_a_refusal_are_the_least_that_a_scan_plans(case: Case) -> None:
    try:
        required = ClosedForm(case.world()).required_bytes
    except Refusal:
        return
    world = case.world()
    assert plan_by_scan(world, required).total_bytes <= required
    with pytest.raises(Refusal) as caught:
        plan_by_scan(world, required - 1)
    assert caught.value.required_bytes == required

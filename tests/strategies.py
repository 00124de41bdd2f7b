"""Random models, options and budgets, and their way into the public API. Used by the laws and against the reference."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from poolplan import (
    Attention,
    IndexKey,
    LatentAttention,
    Layer,
    MemoryPoolConfig,
    MemoryPoolConfigurator,
    ModelSpec,
    RuntimeSpec,
    Span,
    create_memory_pool_configurator,
)
from reference import Answer, ClosedForm, Options, Refusal, World
from reference.world import DTYPES, State
from reference.world import Layer as ReferenceLayer

Layers = tuple[ReferenceLayer, ...]
_LONGEST_CONTEXT = 2**40 - 1  # the options say how much of it is used
_LARGEST_BUDGET = 2**63


@dataclass(frozen=True)
class Case:
    """A model, how it is served, and a budget."""

    layers: Layers
    options: Options
    budget: int

    def configurator(self) -> MemoryPoolConfigurator:
        """Return the case through the public API."""
        return create_memory_pool_configurator(model_of(self.layers, _LONGEST_CONTEXT), runtime_of(self.options))


def model_of(layers: Layers, context_length: int = 8192) -> ModelSpec:
    """Return layers of the reference as a model."""
    return ModelSpec(
        name="random",
        model_type="random",
        layers=tuple(Layer(states=[_state(state) for state in layer]) for layer in layers),
        context_length=context_length,
        dtype="bfloat16",
        kv_cache_dtype="bfloat16",
    )


def _state(state: State) -> Attention | LatentAttention | IndexKey:
    span = Span(kind=state[-1][0], tokens=state[-1][1])
    if state[0] == "index":
        return IndexKey(head_dim=state[1], format="fp8_blocks" if state[2] == 8 else "bfloat16")
    if state[0] == "latent" or state[0] == "sparse":
        sparse = state[0] == "sparse"
        return LatentAttention(kv_lora_rank=state[1], qk_rope_head_dim=state[2], span=span, sparse=sparse)
    return Attention(num_kv_heads=state[1], head_dim=state[2], v_head_dim=state[3], span=span)


def runtime_of(options: Options) -> RuntimeSpec:
    """Return options of the reference as a runtime."""
    names = {"dtype": "kv_cache_dtype", "ratio": "swa_full_tokens_ratio", "eviction_interval": "swa_eviction_interval"}
    values: dict[str, Any] = {names.get(name, name): value for name, value in vars(options).items()}
    return RuntimeSpec(**values)


def answer_of(config: MemoryPoolConfig) -> Answer:
    """Return a config as an answer of the reference."""
    pools = tuple((pool.name, pool.slots, pool.padding_slots, pool.cell_bytes, pool.bytes) for pool in config.pools)
    return Answer(config.max_total_num_tokens, config.max_running_requests, pools, config.total_bytes)


def spans(longest: int) -> st.SearchStrategy[Any]:
    """Full attention, windows and chunks of up to `longest` tokens."""
    tokens = st.integers(1, longest)
    return st.one_of(
        st.just(("full", None)),
        st.tuples(st.just("window"), tokens),
        st.tuples(st.just("chunk"), tokens),
    )


def layers(dims: st.SearchStrategy[int], longest_span: int) -> st.SearchStrategy[Any]:
    """Up to 12 layers of up to 2 states of every kind and span; some layers keep nothing."""
    heads = st.tuples(st.just("heads"), st.sampled_from([1, 2, 4, 6, 8]), dims, dims, spans(longest_span))
    latent = st.tuples(st.just("latent"), dims, st.sampled_from([0, 32, 64]), spans(longest_span))
    sparse = st.tuples(st.just("sparse"), st.sampled_from([128, 512, 64]), st.just(64), spans(longest_span))
    index = st.tuples(st.just("index"), st.just(128), st.sampled_from([8, 16]), st.just(("full", None)))
    return st.lists(
        st.lists(st.one_of(heads, heads, latent, sparse, index), max_size=2).map(tuple), min_size=1, max_size=12
    ).map(tuple)


RATIOS = st.one_of(
    st.just(Fraction(4, 5)),
    st.integers(1, 100).map(lambda hundredths: Fraction(hundredths, 100)),
    st.floats(1e-3, 1).map(lambda ratio: Fraction(repr(ratio))),
)
# Every magnitude up to 2^63, and what is near a power of two.
BUDGETS = st.one_of(
    st.integers(2**24, 2**40),
    st.integers(0, 2**63),
    st.tuples(st.integers(0, 62), st.integers(-100, 2**20)).map(lambda pair: max(0, 2 ** pair[0] + pair[1])),
)


@st.composite
def options(draw: st.DrawFn, *, largest_page: int, longest_context: int) -> Options:
    """Options of every kind, most of them at their defaults."""
    context_length = draw(st.integers(1, longest_context))
    # The request cap needs three options to agree, which alone they seldom do.
    request_cap = draw(st.sampled_from([False, False, True]))
    requests, chunk = st.integers(1, 5000), st.integers(1, longest_context)

    def optional(strategy: st.SearchStrategy[int]) -> int | None:
        return draw(st.one_of(st.none(), st.none(), strategy))

    return Options(
        tp_size=draw(st.sampled_from([1, 1, 1, 1, 2, 8, 3])),
        pp_size=draw(st.sampled_from([1, 1, 2, 3])),
        page_size=draw(st.one_of(st.integers(1, largest_page), st.sampled_from([1, min(64, largest_page)]))),
        dtype=draw(st.sampled_from(["bfloat16"] * 6 + [*DTYPES])),
        ratio=draw(RATIOS),
        context_length=context_length,
        max_total_tokens=draw(st.one_of(st.none(), st.none(), st.none(), st.integers(1, 2**40))),
        max_running_requests=draw(requests) if request_cap else optional(requests),
        request_tokens=draw(st.one_of(st.none(), st.none(), st.none(), st.integers(1, context_length))),
        chunked_prefill_size=draw(chunk) if request_cap else optional(chunk),
        eviction_interval=draw(st.sampled_from([128, 0, 4])),
        disaggregation_mode=draw(st.sampled_from(["null", "null", "prefill", "decode"])),
        disable_radix_cache=request_cap or draw(st.booleans()),
        dsa_prefill_backend=draw(st.sampled_from([None, None, "trtllm", "flashmla_kv"])),
        dsa_decode_backend=draw(st.sampled_from([None, None, "trtllm", "flashmla_kv"])),
        disable_overlap_schedule=draw(st.booleans()),
        disable_hybrid_swa_memory=draw(st.sampled_from([False, False, False, True])),
        count_padding=draw(st.booleans()),
        count_request_table=draw(st.booleans()),
    )


def edges(layers: Layers, options: Options, most_pages: int) -> st.SearchStrategy[int]:
    """Budgets that some number of pages takes to the byte, or by one byte does not: from the refusal up."""
    try:
        planner = ClosedForm(World(layers, options))
    except Refusal:
        return st.just(0)
    pages = st.one_of(st.just(0), st.integers(0, most_pages)).map(lambda more: planner.least_pages + more)
    costs = pages.map(lambda count: planner.world.cost(count * planner.page))
    return st.tuples(costs, st.integers(-1, 1)).map(lambda edge: min(max(sum(edge), 0), _LARGEST_BUDGET))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Models and budgets of every size."""
    dims = st.sampled_from([32, 64, 96, 128, 192, 512, 576, 80, 100, 7])
    model = draw(layers(dims, longest_span=10_000))
    served = draw(options(largest_page=2**20, longest_context=2**22))
    return Case(model, served, draw(st.one_of(BUDGETS, edges(model, served, most_pages=2**20))))


@st.composite
def small_cases(draw: st.DrawFn) -> Case:
    """Worlds of few pages, in which a scan is quick."""
    model = draw(layers(st.sampled_from([2, 4, 32]), longest_span=6))
    served = draw(options(largest_page=5, longest_context=8))
    return Case(model, served, draw(st.one_of(st.integers(0, 20_000), edges(model, served, most_pages=200))))

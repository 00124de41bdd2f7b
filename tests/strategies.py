"""Random models, options and budgets, and their way into the public API. Used by the laws and against the reference."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from hypothesis import strategies as st

from poolplan import (
    Attention,
    CompressedLatent,
    CompressorState,
    IndexKey,
    LatentAttention,
    Layer,
    MemoryPoolConfig,
    MemoryPoolConfigurator,
    ModelSpec,
    RecurrentState,
    RuntimeSpec,
    Span,
    State,
    StateTensor,
    create_memory_pool_configurator,
)
from reference import Answer, ClosedForm, Options, Refusal, World
from reference.cells import DTYPES
from reference.cells import Layer as ReferenceLayer
from reference.cells import State as ReferenceState

Layers = tuple[ReferenceLayer, ...]
_LONGEST_CONTEXT = 2**40 - 1  # the options say how much of it is used
_LARGEST_BUDGET = 2**63


@dataclass(frozen=True)
class Case:
    """A model, how it is served, and a budget."""

    layers: Layers
    options: Options
    budget: int
    drafts: Layers = ()

    def configurator(self) -> MemoryPoolConfigurator:
        """Return the case through the public API."""
        model = model_of(self.layers, _LONGEST_CONTEXT, self.drafts)
        return create_memory_pool_configurator(model, runtime_of(self.options))

    def world(self) -> World:
        """Return the case as the reference sees it."""
        return World(self.layers, self.options, self.drafts)


def model_of(layers: Layers, context_length: int = 8192, drafts: Layers = ()) -> ModelSpec:
    """Return layers of the reference as a model."""
    return ModelSpec(
        name="random",
        model_type="random",
        layers=layers_of(layers),
        context_length=context_length,
        dtype="bfloat16",
        kv_cache_dtype="bfloat16",
        draft_layers=layers_of(drafts),
    )


def layers_of(layers: Layers) -> tuple[Layer, ...]:
    """Return layers of the reference as ours."""
    return tuple(Layer(states=[_state(state) for state in layer]) for layer in layers)


def _state(state: ReferenceState) -> State:
    span = Span(kind=state[-1][0], tokens=state[-1][1])
    match state:
        case ("heads", heads, key, value, _):
            return Attention(num_kv_heads=heads, head_dim=key, v_head_dim=value, span=span)
        case ("latent" | "sparse" as kind, rank, rope, _):
            return LatentAttention(kv_lora_rank=rank, qk_rope_head_dim=rope, span=span, sparse=kind == "sparse")
        case ("index", elements, bits, _):
            return IndexKey(head_dim=elements, format="fp8_blocks" if bits == 8 else "bfloat16", span=span)
        case ("compressed", nope, rope, _):
            return CompressedLatent(qk_nope_head_dim=nope, qk_rope_head_dim=rope, span=span)
        case ("ring", ratio, elements, _):
            return CompressorState(compress_ratio=ratio, row_elements=elements)
        case ("recurrent", tensors, _):
            return RecurrentState(
                tensors=[
                    StateTensor(num_heads=heads, head_elements=elements, role=role, sharding=sharding)
                    for heads, elements, role, sharding in tensors
                ]
            )


def runtime_of(options: Options) -> RuntimeSpec:
    """Return options of the reference as a runtime."""
    names = {"dtype": "kv_cache_dtype", "ratio": "swa_full_tokens_ratio", "eviction_interval": "swa_eviction_interval"}
    values: dict[str, Any] = {names.get(name, name): value for name, value in vars(options).items()}
    return RuntimeSpec(**values)


def answer_of(config: MemoryPoolConfig) -> Answer:
    """Return a config as an answer of the reference."""
    pools = tuple((pool.name, pool.slots, pool.padding_slots, pool.cell_bytes, pool.bytes) for pool in config.pools)
    return Answer(config.max_total_num_tokens, config.max_running_requests, pools, config.total_bytes)


def spans(longest: int, entries: tuple[int, ...] = ()) -> st.SearchStrategy[Any]:
    """Full attention, windows and chunks of up to `longest` tokens, encoders, and entries of several tokens."""
    tokens = st.integers(1, longest)
    full = st.just(("full", None))
    windows = st.tuples(st.sampled_from(["window", "window", "chunk"]), tokens)
    encoders = st.tuples(st.just("encoder"), tokens)
    compressed = [st.tuples(st.just("compressed"), st.sampled_from(entries))] if entries else []
    return st.one_of(full, full, full, windows, windows, windows, encoders, *compressed)


def tensors(elements: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    """Tensors of recurrent state, shared by ranks in every way."""
    heads = st.sampled_from([1, 2, 8, 16, 16, 24])
    sharding = st.sampled_from(["heads", "groups", "whole"])
    tensor = st.tuples(heads, elements, st.sampled_from(["conv", "temporal"]), sharding)
    return st.lists(tensor, min_size=1, max_size=3).map(tuple)


def layers(dims: st.SearchStrategy[int], longest_span: int, entries: tuple[int, ...] = ()) -> st.SearchStrategy[Any]:
    """Up to 12 layers of up to 2 states of every kind and span at once; some layers keep nothing."""
    span, request = spans(longest_span, entries), st.just(("request", None))
    of_windows = st.one_of(
        st.tuples(st.just("window"), st.integers(1, longest_span)),
        st.tuples(st.just("compressed"), st.sampled_from(entries or (4,))),
    )
    heads = st.tuples(st.just("heads"), st.sampled_from([1, 2, 4, 6, 8]), dims, dims, span)
    latent = st.tuples(st.just("latent"), dims, st.sampled_from([0, 32, 64]), span)
    sparse = st.tuples(st.just("sparse"), st.sampled_from([128, 512, 64]), st.just(64), span)
    index = st.tuples(
        st.just("index"), st.just(128), st.sampled_from([8, 16]), span.filter(lambda s: s[0] != "encoder")
    )
    recurrent = st.tuples(st.just("recurrent"), tensors(dims), request)
    compressed = st.tuples(st.just("compressed"), dims, st.sampled_from([2, 64]), of_windows)
    ring = st.tuples(st.just("ring"), st.sampled_from([4, 128]), dims, request)
    usual = st.one_of(heads, heads, latent, sparse, index, recurrent)
    # Most models are of few kinds, and some of all at once.
    state = st.one_of(usual, usual, usual, compressed, ring)
    plain = st.lists(st.lists(heads, min_size=1, max_size=2).map(tuple), min_size=1, max_size=12)
    of_usual, of_all = (
        st.lists(st.lists(kind, max_size=2).map(tuple), min_size=1, max_size=12) for kind in (usual, state)
    )
    return st.one_of(plain, of_usual, of_usual, of_all).map(tuple)


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
    tp_size = draw(st.sampled_from([1, 1, 1, 1, 2, 8, 3]))
    drafts: Literal["NGRAM"] | None = "NGRAM" if draw(st.sampled_from([False, False, False, True])) else None
    # The request cap needs three options to agree, which alone they seldom do.
    request_cap = draw(st.sampled_from([False, False, True]))
    requests, chunk = st.integers(1, 5000), st.integers(1, longest_context)

    def optional(strategy: st.SearchStrategy[int]) -> int | None:
        return draw(st.one_of(st.none(), st.none(), strategy))

    return Options(
        tp_size=tp_size,
        dp_size=draw(st.sampled_from([1, 1, tp_size])),
        enable_dp_attention=draw(st.booleans()),
        dcp_size=draw(st.sampled_from([1, 1, 1, 1, 1, 2])),
        pp_size=draw(st.sampled_from([1, 1, 2, 3])),
        page_size=draw(st.one_of(st.integers(1, largest_page), st.sampled_from(pages_of(largest_page)))),
        dtype=draw(st.sampled_from(["bfloat16"] * 6 + [*DTYPES])),
        v_cache_dtype=draw(st.sampled_from([None] * 6 + ["fp8_e5m2", "int4"])),
        ratio=draw(st.one_of(st.none(), RATIOS)),
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
        mamba_full_memory_ratio=draw(
            st.one_of(st.just(Fraction(9, 10)), st.fractions(Fraction(1, 100), 99, max_denominator=10**9))
        ),
        max_mamba_cache_size=optional(st.integers(1, 5000)),
        mamba_radix_cache_strategy=draw(st.sampled_from(["no_buffer", "extra_buffer", "extra_buffer_lazy"])),
        mamba_ssm_dtype=draw(st.sampled_from(["float32", "float32", "bfloat16"])),
        mamba_conv_dtype=draw(st.sampled_from(["bfloat16", "float32"])),
        speculative_algorithm=drafts,
        speculative_num_draft_tokens=draw(st.integers(1, 9)),
        speculative_num_steps=draw(st.integers(1, 5)),
        speculative_eagle_topk=draw(st.sampled_from([1, 1, 4])),
    )


def pages_of(largest: int) -> list[int]:
    """Return page sizes that runtimes have, and 256, which entries of 4 and 128 tokens divide."""
    return [page for page in (1, 16, 64, 256, 256) if page <= largest] or [1]


def edges(layers: Layers, options: Options, drafts: Layers, most_pages: int) -> st.SearchStrategy[int]:
    """Budgets that some number of pages takes to the byte, or by one byte does not: from the refusal up."""
    try:
        planner = ClosedForm(World(layers, options, drafts))
    except Refusal:
        return st.just(0)
    pages = st.one_of(st.just(0), st.integers(0, most_pages)).map(lambda more: planner.least_pages + more)
    costs = pages.map(lambda count: planner.cost(count * planner.page))
    return st.tuples(costs, st.integers(-1, 1)).map(lambda edge: min(max(sum(edge), 0), _LARGEST_BUDGET))


def drafts_of(layers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return up to two layers that draft, seldom."""
    return st.one_of(st.just(()), st.just(()), layers.map(lambda drawn: drawn[:2]))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Models and budgets of every size."""
    dims = st.sampled_from([32, 64, 96, 128, 192, 512, 576, 80, 100, 7])
    kinds = layers(dims, longest_span=10_000, entries=(4, 4, 128, 16))
    model, drafts = draw(kinds), draw(drafts_of(kinds))
    served = draw(options(largest_page=2**20, longest_context=2**22))
    budget = draw(st.one_of(BUDGETS, edges(model, served, drafts, most_pages=2**20)))
    return Case(model, served, budget, drafts)


@st.composite
def small_cases(draw: st.DrawFn) -> Case:
    """Worlds of few pages, in which a scan is quick."""
    kinds = layers(st.sampled_from([2, 4, 32]), longest_span=6, entries=(4,))
    model, drafts = draw(kinds), draw(drafts_of(kinds))
    served = draw(options(largest_page=5, longest_context=8))
    budget = draw(st.one_of(st.integers(0, 20_000), edges(model, served, drafts, most_pages=200)))
    return Case(model, served, budget, drafts)

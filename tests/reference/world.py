"""The rules, each written once and plainly: cells, pools, requests, and what a plan must hold.

Sources: SGLang 0.5.23 (`pool_configurator.py`, `kv_cache_configurator.py`, as run on a CPU) for the pools, the request
cap and the number of requests; OCP Microscaling Formats 1.0 for blocks of scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

Span = tuple[Literal["full", "window", "chunk"], "int | None"]
# ("heads", KV heads, elements of a key, elements of a value, span), ("latent" or "sparse", rank, rotary elements, span):
# sparse latents are those of DSA; ("index", elements, bits, span): the key that sparse attention searches.
Heads = tuple[Literal["heads"], int, int, int, Span]
Latent = tuple[Literal["latent"], int, int, Span]
Sparse = tuple[Literal["sparse"], int, int, Span]
Index = tuple[Literal["index"], int, int, Span]
State = Heads | Latent | Sparse | Index
Layer = tuple[State, ...]

# Bits of an element, and the elements that share one scale byte.
DTYPES: dict[str, tuple[int, int | None]] = {
    "float32": (32, None),
    "float16": (16, None),
    "bfloat16": (16, None),
    "fp8_e4m3": (8, None),
    "fp8_e5m2": (8, None),
    "mxfp8": (8, 32),
    "mxfp4": (4, 32),
    "nvfp4": (4, 16),
    "fp4_mx_block16": (4, 16),
}


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """No plan: the option that is wrong, or the bytes that the least plan takes."""

    def __init__(self, option: str | None, required_bytes: int | None = None) -> None:
        super().__init__(option, required_bytes)
        self.option = option
        self.required_bytes = required_bytes


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a runtime serves a model."""

    tp_size: int = 1
    pp_size: int = 1
    page_size: int = 1
    dtype: str = "bfloat16"
    ratio: Fraction = Fraction(4, 5)
    context_length: int = 8192
    max_total_tokens: int | None = None
    max_running_requests: int | None = None
    request_tokens: int | None = None
    chunked_prefill_size: int | None = None
    eviction_interval: int = 128
    disaggregation_mode: Literal["null", "prefill", "decode"] = "null"
    dsa_prefill_backend: str | None = None
    dsa_decode_backend: str | None = None
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    disable_hybrid_swa_memory: bool = False
    count_padding: bool = True
    count_request_table: bool = True


class Pool(NamedTuple):
    """A pool of one stage. Its rule: slots follow `ratio` · tokens, or `per_request` · requests + `base`."""

    name: str
    page: int
    padding: int
    cell: int
    ratio: Fraction | None
    per_request: int = 0
    base: int = 0

    def slots(self, tokens: int, requests: int) -> int:
        """Slots when the anchor holds `tokens` and `requests` are served."""
        if self.ratio is not None:
            return tokens * self.ratio.numerator // self.ratio.denominator // self.page * self.page
        held = -(-(self.per_request * requests + self.base) // self.page) * self.page
        return held if self.name == "request_table" else min(held, tokens)

    def bytes(self, tokens: int, requests: int) -> int:
        """Bytes, padding included; a pool without layers takes none."""
        return (self.slots(tokens, requests) + self.padding) * self.cell if self.cell else 0


class Answer(NamedTuple):
    """A plan: the anchor's tokens, the requests, and each pool's (name, slots, padding, cell, bytes) on one stage."""

    tokens: int
    requests: int
    pools: tuple[tuple[str, int, int, int, int], ...]
    total_bytes: int


class World:
    """A model under options: the pools of each stage, and the rules that a plan of them obeys."""

    def __init__(self, layers: tuple[Layer, ...], options: Options) -> None:
        self.options = options
        self.page = options.page_size
        spans = [state[-1] for layer in layers for state in layer]
        if options.pp_size > len(layers):
            raise Refusal("pp_size")
        if options.request_tokens is not None and options.request_tokens > options.context_length:
            raise Refusal("request_tokens")
        if not spans:
            raise Refusal("model")
        windows = [tokens for _, tokens in spans if tokens is not None]
        self.hybrid_memory = bool(windows) and not options.disable_hybrid_swa_memory
        self.has_full = not self.hybrid_memory or len(windows) < len(spans)
        self.window = min(max(windows), options.context_length) if self.hybrid_memory else 0
        self.stages = [self._pools(layers[start:end]) for start, end in _stages(len(layers), options.pp_size)]

    def requests(self, tokens: int) -> int:
        """Requests that are served at once: each needs two tokens."""
        asked = self.options.max_running_requests
        if asked is None:
            asked = min(max(tokens * 512 // self.options.context_length, 2048), 4096)
        return min(tokens // 2, asked)

    def cost(self, tokens: int) -> int:
        """Bytes of `tokens` on the stage where they take most."""
        requests = self.requests(tokens)
        return max(sum(pool.bytes(tokens, requests) for pool in stage) for stage in self.stages)

    def suffices(self, tokens: int) -> bool:
        """Whether the runtime can serve one request with `tokens`."""
        options, page, requests = self.options, self.page, self.requests(tokens)
        if requests < 1:
            return False
        length = options.request_tokens
        if self.has_full and length is not None and tokens < -(-length // page) * page:
            return False
        if not self.hybrid_memory:
            return True
        slots = next(pool.slots(tokens, requests) for pool in self.stages[0] if pool.name == "swa")
        if slots <= self.window + page:
            return False
        chunk = options.chunked_prefill_size
        in_flight = (
            0 if chunk is None or options.disaggregation_mode == "decode" else min(chunk, options.context_length)
        )
        if slots < self.window + page + in_flight:
            return False
        if length is None:
            return True
        return slots >= min(-(-length // page) * page, (-(-self.window // page) + 1) * page)

    def answer(self, tokens: int) -> Answer:
        """The plan of `tokens` as the stage sees it that takes most."""
        requests = self.requests(tokens)
        stage = max(self.stages, key=lambda pools: sum(pool.bytes(tokens, requests) for pool in pools))
        pools = tuple(
            (
                pool.name,
                pool.slots(tokens, requests),
                pool.padding if pool.cell else 0,
                pool.cell,
                pool.bytes(tokens, requests),
            )
            for pool in stage
        )
        return Answer(tokens, requests, pools, sum(pool[-1] for pool in pools))

    def _pools(self, layers: tuple[Layer, ...]) -> list[Pool]:
        options, page = self.options, self.page
        full = swa = 0
        for layer in layers:
            for state in layer:
                cell = cell_bytes(state, options.dtype, options.tp_size, self._raw_sparse_rows())
                if self.hybrid_memory and state[-1][0] != "full":
                    swa += cell
                else:
                    full += cell
        padding = page if options.count_padding else 0
        pools: list[Pool] = []
        if self.has_full:
            pools.append(Pool("full", page, padding, full, Fraction(1)))
        if self.hybrid_memory:
            pools.append(self._window_pool(swa, padding))
        if options.count_request_table:
            row = (options.context_length + 4) * 4
            pools.append(Pool("request_table", 1, 1, row, None, per_request=1))
        return pools

    def _raw_sparse_rows(self) -> bool:
        prefill, decode = self.options.dsa_prefill_backend, self.options.dsa_decode_backend
        role = {"null": (prefill, decode), "prefill": (prefill,), "decode": (decode,)}
        return "trtllm" in role[self.options.disaggregation_mode]

    def _window_pool(self, cell: int, padding: int) -> Pool:
        options, page = self.options, self.page
        if not self.has_full:
            return Pool("swa", page, padding, cell, Fraction(1))
        decode = options.disaggregation_mode == "decode"
        capped = options.disable_radix_cache and options.max_running_requests is not None
        if not capped or not (decode or options.chunked_prefill_size is not None):
            return Pool("swa", page, padding, cell, options.ratio)
        trail = self.window + options.eviction_interval + page
        chunks = (1 if options.disable_overlap_schedule else 2) * (options.chunked_prefill_size or 0)
        base = 0 if decode else chunks + page
        return Pool("swa", page, padding, cell, None, per_request=trail + page, base=base)


def cell_bytes(state: State, dtype: str, tp_size: int, raw: bool = False) -> int:
    """Bytes of one slot of `state` on one rank."""
    if state[0] == "latent":
        return _row_bytes(state[1] + state[2], dtype)
    if state[0] == "sparse":
        return _sparse_row_bytes(state[1], state[2], dtype, raw)
    if state[0] == "index":
        return state[1] * state[2] // 8 + (state[1] // 128 * 4 if state[2] == 8 else 0)
    heads = state[1]
    if heads % tp_size and tp_size % heads:
        raise Refusal("tp_size")
    return max(1, heads // tp_size) * (_row_bytes(state[2], dtype) + _row_bytes(state[3], dtype))


def _sparse_row_bytes(rank: int, rope: int, dtype: str, raw: bool) -> int:
    """In 8 bits a 32-bit scale for each 128 of the latent, and the rotary key in 16 bits; or neither, if raw."""
    if dtype == "fp8_e4m3" and raw:
        return rank + rope
    if dtype == "fp8_e4m3" and rank % 128 == 0:
        return rank + rank // 128 * 4 + rope * 2
    if dtype in ("bfloat16", "float16"):
        return (rank + rope) * 2
    raise Refusal("kv_cache_dtype")


def _row_bytes(elements: int, dtype: str) -> int:
    bits, block = DTYPES[dtype]
    if block is None:
        return elements * bits // 8
    if elements % block:
        raise Refusal("kv_cache_dtype")
    return elements * bits // 8 + elements // block


def _stages(layers: int, count: int) -> list[tuple[int, int]]:
    """The layers of each stage: the last `layers mod count` own one more."""
    sizes = [layers // count + (stage >= count - layers % count) for stage in range(count)]
    ends = [sum(sizes[: stage + 1]) for stage in range(count)]
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]

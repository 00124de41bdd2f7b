"""Exact arithmetic of memory pools, in Rust. Use the names that `poolplan` exports."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Literal, Protocol, SupportsIndex, final

from typing_extensions import Self

from poolplan.configurators.runtime import RuntimeSpec
from poolplan.models import ModelSpec

__all__ = [
    "Attention",
    "IndexKey",
    "LatentAttention",
    "Layer",
    "MemoryPoolConfig",
    "MemoryPoolConfigurator",
    "PoolSize",
    "Span",
    "__version__",
    "build_profile",
    "cell_bytes",
    "parse_dtype",
    "parse_ratio",
    "split_budget",
]

__version__: str
build_profile: Literal["debug", "release"]

@final
class Span:
    """The tokens that a layer can still attend to, and so must keep.

    Args:
        kind: `full` (every token), `window` (the last `tokens`) or `chunk` (since the last multiple of `tokens`).
        tokens: Tokens of the window or chunk; None for full attention.

    Raises:
        InvalidOptionError: A window or chunk without tokens, or tokens without either.
    """

    __match_args__ = ("kind", "tokens")
    def __new__(cls, *, kind: str = "full", tokens: SupportsIndex | None = None) -> Self: ...
    @staticmethod
    def full() -> Span:
        """Every token."""
    @staticmethod
    def window(tokens: SupportsIndex) -> Span:
        """The last `tokens` tokens (sliding window)."""
    @staticmethod
    def chunk(tokens: SupportsIndex) -> Span:
        """The tokens since the last multiple of `tokens` (chunked attention)."""
    @property
    def kind(self) -> Literal["full", "window", "chunk"]:
        """`full`, `window` or `chunk`."""
    @property
    def tokens(self) -> int | None:
        """Tokens of the window or chunk; `None` for full attention."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    def __replace__(self, **changes: Any) -> Self: ...

@final
class Attention:
    """Keys and values of separate heads: MHA, GQA, MQA. One slot is `num_kv_heads · (head_dim + v_head_dim)` elements.

    Args:
        num_kv_heads: KV heads of the whole layer, before tensor parallelism.
        head_dim: Elements of one head's key.
        v_head_dim: Elements of one head's value; `head_dim` where it is not given.
        span: The tokens that are kept; all of them where it is not given.

    Raises:
        InvalidOptionError: A number that is not whole, below 1 or above 2^24.
    """

    __match_args__ = ("num_kv_heads", "head_dim", "v_head_dim", "span")
    def __new__(
        cls,
        *,
        num_kv_heads: SupportsIndex,
        head_dim: SupportsIndex,
        v_head_dim: SupportsIndex | None = None,
        span: Span | None = None,
    ) -> Self: ...
    @property
    def num_kv_heads(self) -> int:
        """KV heads of the whole layer, before tensor parallelism."""
    @property
    def head_dim(self) -> int:
        """Elements of one head's key."""
    @property
    def v_head_dim(self) -> int:
        """Elements of one head's value."""
    @property
    def span(self) -> Span:
        """The tokens that are kept."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    def __replace__(self, **changes: Any) -> Self: ...

@final
class LatentAttention:
    """One compressed row for all heads: MLA. One slot is `kv_lora_rank + qk_rope_head_dim` elements, on every rank.

    Args:
        kv_lora_rank: Elements of the latent.
        qk_rope_head_dim: Elements of the rotary key beside it; 0 where positions are not stored.
        span: The tokens that are kept; all of them where it is not given.
        sparse: Whether sparse attention reads it (DSA): in FP8 a row then has its own scales and a 16-bit rotary key.

    Raises:
        InvalidOptionError: A number that is not whole, negative or above 2^24, or a rank of zero.
    """

    __match_args__ = ("kv_lora_rank", "qk_rope_head_dim", "span", "sparse")
    def __new__(
        cls,
        *,
        kv_lora_rank: SupportsIndex,
        qk_rope_head_dim: SupportsIndex,
        span: Span | None = None,
        sparse: bool = False,
    ) -> Self: ...
    @property
    def kv_lora_rank(self) -> int:
        """Elements of the latent."""
    @property
    def qk_rope_head_dim(self) -> int:
        """Elements of the rotary key beside the latent."""
    @property
    def span(self) -> Span:
        """The tokens that are kept."""
    @property
    def sparse(self) -> bool:
        """Whether sparse attention reads it."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    def __replace__(self, **changes: Any) -> Self: ...

@final
class IndexKey:
    """The key by which sparse attention finds the tokens to attend to: one for all heads, every token and every rank.

    Args:
        head_dim: Elements of the key.
        format: Whatever the dtype of the cache beside it, `fp8_blocks` (8 bits and a 32-bit scale for each 128: DSA) or
            `bfloat16` (MiniMax M3).

    Raises:
        InvalidOptionError: A number that is not whole, below 1 or above 2^24; blocks of 128 that do not end with it.
    """

    __match_args__ = ("head_dim", "format")
    def __new__(cls, *, head_dim: SupportsIndex, format: str = "fp8_blocks") -> Self: ...
    @property
    def head_dim(self) -> int:
        """Elements of the key."""
    @property
    def format(self) -> Literal["fp8_blocks", "bfloat16"]:
        """`fp8_blocks` or `bfloat16`."""
    @property
    def span(self) -> Span:
        """The tokens that are kept: every token."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    def __replace__(self, **changes: Any) -> Self: ...

@final
class Layer:
    """One layer: everything that it keeps. Most keep one state, some none, and some two (LongCat-Flash).

    Raises:
        TypeError: Something else than `Attention`, `LatentAttention` and `IndexKey`.
    """

    __match_args__ = ("states",)
    def __new__(cls, *, states: Iterable[Attention | LatentAttention | IndexKey] | None = None) -> Self: ...
    @property
    def states(self) -> tuple[Attention | LatentAttention | IndexKey, ...]:
        """What the layer keeps: `Attention`, `LatentAttention` and `IndexKey` states."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    def __replace__(self, **changes: Any) -> Self: ...

@final
class PoolSize:
    """One pool of a plan: what to allocate. It takes `(slots + padding_slots) · cell_bytes` bytes."""

    __match_args__ = ("name", "slots", "padding_slots", "page_size", "cell_bytes", "bytes", "layers")
    def __new__(
        cls,
        *,
        name: str,
        slots: SupportsIndex,
        padding_slots: SupportsIndex,
        page_size: SupportsIndex,
        cell_bytes: SupportsIndex,
        bytes: SupportsIndex,
        layers: Iterable[SupportsIndex],
    ) -> Self: ...
    @property
    def name(self) -> str:
        """`full`, `swa`, `request_table`, …"""
    @property
    def slots(self) -> int:
        """Slots that the runtime hands out, whole pages."""
    @property
    def padding_slots(self) -> int:
        """Slots that are allocated beside them and never handed out."""
    @property
    def page_size(self) -> int:
        """Slots in a page."""
    @property
    def cell_bytes(self) -> int:
        """Bytes of one slot in all layers of the pool together, on one rank."""
    @property
    def bytes(self) -> int:
        """Bytes that the pool takes, padding included."""
    @property
    def layers(self) -> tuple[int, ...]:
        """The model's layers that use the pool, by index, on this stage."""
    def as_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    def __replace__(self, **changes: Any) -> Self: ...

@final
class MemoryPoolConfig:
    """The sizes of every pool: what to allocate, and what that leaves. Sizes are of one rank of one stage."""

    __match_args__ = (
        "max_total_num_tokens",
        "max_running_requests",
        "full_max_total_num_tokens",
        "swa_max_total_num_tokens",
        "available_bytes",
        "total_bytes",
        "pools",
    )
    def __new__(
        cls,
        *,
        max_total_num_tokens: SupportsIndex,
        max_running_requests: SupportsIndex,
        full_max_total_num_tokens: SupportsIndex | None = None,
        swa_max_total_num_tokens: SupportsIndex | None = None,
        available_bytes: SupportsIndex,
        total_bytes: SupportsIndex,
        pools: Iterable[PoolSize],
    ) -> Self: ...
    @property
    def max_total_num_tokens(self) -> int:
        """Tokens that the anchor holds: the full pool, or the window pool of a model with windows only."""
    @property
    def max_running_requests(self) -> int:
        """Requests that are served at once."""
    @property
    def full_max_total_num_tokens(self) -> int | None:
        """Slots of the full pool; `None` without one."""
    @property
    def swa_max_total_num_tokens(self) -> int | None:
        """Slots of the window pool; `None` without one."""
    @property
    def available_bytes(self) -> int:
        """The budget, bytes. Of a plan from tokens: the least budget that holds it."""
    @property
    def total_bytes(self) -> int:
        """Bytes that all pools take, padding included."""
    @property
    def unused_bytes(self) -> int:
        """Bytes of the budget that no pool takes."""
    @property
    def pools(self) -> tuple[PoolSize, ...]:
        """Every pool."""
    def as_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values, `unused_bytes` and the pools included."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    def __replace__(self, **changes: Any) -> Self: ...

class MemoryPoolConfigurator:
    """Plans the memory pools of one model under one runtime.

    Abstract: `create_memory_pool_configurator` picks the subclass that applies. Frozen; equal, hashed and pickled by
    its class, model and runtime.

    Raises:
        InvalidOptionError: An option does not fit the model or another option.
        UnsupportedModelError: The model keeps nothing that a pool could hold.
    """

    def __new__(cls, model: ModelSpec, runtime: RuntimeSpec) -> Self: ...
    @property
    def model(self) -> ModelSpec:
        """The model that is planned."""
    @property
    def runtime(self) -> RuntimeSpec:
        """How it is served."""
    def calculate_pool_sizes(
        self, available_bytes: SupportsIndex, page_size: SupportsIndex | None = None
    ) -> MemoryPoolConfig:
        """The plan with the most tokens whose pools fit `available_bytes`.

        Args:
            available_bytes: The budget of all pools together, on each rank.
            page_size: Tokens in a page, if other than the runtime's; the pools are then built again.

        Raises:
            InsufficientMemoryError: The budget is zero, negative, or below the least plan that can serve one request.
            InvalidOptionError: Not a whole number, or above 2^64 - 1.
        """
    def calculate_pool_sizes_from_max_tokens(
        self, max_total_num_tokens: SupportsIndex, page_size: SupportsIndex | None = None
    ) -> MemoryPoolConfig:
        """The plan for `max_total_num_tokens`, rounded down to whole pages, and the bytes that it takes.

        Raises:
            InvalidOptionError: Too few tokens to serve one request, or so many that they take 2^63 bytes and more.
        """
    def finalize_with_max_running_requests(self, config: MemoryPoolConfig) -> MemoryPoolConfig:
        """The config with its pools sized again for its own `max_running_requests`; its tokens stay as they are.

        Raises:
            InsufficientMemoryError: The pools of so many requests do not fit the config's budget.
        """
    def concurrent_requests(self, config: MemoryPoolConfig, request_tokens: SupportsIndex) -> dict[str, int]:
        """Requests of `request_tokens` (prompt and output) that each pool holds at once; the least of them fit."""
    def request_bytes(self, request_tokens: SupportsIndex) -> dict[str, int]:
        """Bytes that one complete request of `request_tokens` holds in each pool."""
    def largest_buffer_bytes(self, config: MemoryPoolConfig) -> dict[str, int]:
        """Bytes of the largest single buffer of each pool: what a kernel's offsets must reach."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[type[Self], tuple[ModelSpec, RuntimeSpec]]: ...

class _Rational(Protocol):
    @property
    def numerator(self) -> int: ...
    @property
    def denominator(self) -> int: ...

def cell_bytes(
    state: Attention | LatentAttention | IndexKey,
    *,
    kv_cache_dtype: str,
    tp_size: SupportsIndex,
    raw_sparse_rows: bool = False,
) -> int:
    """Bytes that one slot of `state` takes on one of `tp_size` ranks, block scales included.

    Args:
        state: What a layer keeps.
        kv_cache_dtype: Element type of the cache.
        tp_size: Ranks that divide the heads.
        raw_sparse_rows: Whether 8-bit rows of sparse latents have no scales, as TensorRT-LLM's kernels want them.

    Raises:
        InvalidOptionError: The ranks do not divide the heads, or blocks of scales do not divide a row.
    """

def parse_dtype(name: str) -> str:
    """The name of a cache dtype as this package writes it, from any name that SGLang, vLLM or torch uses.

    Raises:
        InvalidOptionError: No such dtype.
    """

def parse_ratio(value: _Rational | float | str) -> Fraction:
    """The exact ratio of `value` as a `fractions.Fraction`: 0.8 is 4/5.

    Raises:
        InvalidOptionError: Not a ratio above zero.
    """

def split_budget(
    total: SupportsIndex,
    weights: Iterable[SupportsIndex],
    granularity: SupportsIndex | Iterable[SupportsIndex] | None = None,
) -> list[int]:
    """`total` divided in proportion to `weights`, each part a multiple of its own granularity.

    What rounding leaves is given out by largest remainder. The parts together never exceed the total, and less than the
    smallest granularity (of a part with a weight) is left over. A weight of zero gets zero.

        >>> split_budget(100, [75, 25])
        [75, 25]

    Args:
        total: What is divided, from 0 to 2^64 - 1.
        weights: One weight a part.
        granularity: One number for all parts or one a part; 1 where it is not given.

    Raises:
        InvalidOptionError: A number that is not whole or out of range, or not as many granularities as weights.
    """

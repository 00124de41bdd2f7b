"""Exact arithmetic of memory pools, in Rust. Use the names that `poolplan` exports."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Literal, Protocol, SupportsIndex, final

from numpy import int64
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

from poolplan.configurators.runtime import RuntimeSpec
from poolplan.models import ModelSpec
from poolplan.models.state import State

__all__ = [
    "Attention",
    "CompressedLatent",
    "CompressorState",
    "IndexKey",
    "LatentAttention",
    "Layer",
    "MemoryPoolConfig",
    "MemoryPoolConfigurator",
    "PoolSize",
    "RecurrentState",
    "Span",
    "StateTensor",
    "__version__",
    "build_profile",
    "cell_bytes",
    "host_pools",
    "kinds_of",
    "parse_dtype",
    "parse_ratio",
    "split_above_minimums",
    "split_budget",
]

__version__: str
build_profile: Literal["debug", "release"]

@final
class Span:
    """The tokens that a layer can still attend to, and so must keep.

    Args:
        kind: `full` (every token), `window` (the last `tokens`), `chunk` (since the last multiple of `tokens`),
            `compressed` (one entry for every `tokens`), `encoder` (no token: `tokens` positions of an encoder's output)
            or `request` (no token: one state a request).
        tokens: The number that goes with the kind; None for `full` and `request`.

    Raises:
        InvalidOptionError: No such kind, or a number where none goes with it, or none where one does.
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
    @staticmethod
    def compressed(tokens: SupportsIndex) -> Span:
        """Every token, one entry for so many `tokens`."""
    @staticmethod
    def encoder(tokens: SupportsIndex) -> Span:
        """The `tokens` positions of an encoder's output, at most so many a request."""
    @staticmethod
    def request() -> Span:
        """One state a request, however long it is."""
    @property
    def kind(self) -> Literal["full", "window", "chunk", "compressed", "encoder", "request"]:
        """`full`, `window`, `chunk`, `compressed`, `encoder` or `request`."""
    @property
    def tokens(self) -> int | None:
        """The number that goes with the kind; `None` for `full` and `request`."""
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
        span: Whether each token has a key, as where it is not given, or so many share one.

    Raises:
        InvalidOptionError: A number that is not whole, below 1 or above 2^24; blocks of 128 that do not end with it.
    """

    __match_args__ = ("head_dim", "format", "span")
    def __new__(cls, *, head_dim: SupportsIndex, format: str = "fp8_blocks", span: Span | None = None) -> Self: ...
    @property
    def head_dim(self) -> int:
        """Elements of the key."""
    @property
    def format(self) -> Literal["fp8_blocks", "bfloat16"]:
        """`fp8_blocks` or `bfloat16`."""
    @property
    def span(self) -> Span:
        """The tokens that are kept."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    def __replace__(self, **changes: Any) -> Self: ...

@final
class CompressedLatent:
    """One row for all heads that is key and value at once, on every rank: DeepSeek V4, in the paged layout of FlashMLA.

    Args:
        qk_nope_head_dim: Elements of the row without rotary positions.
        qk_rope_head_dim: Elements of the rotary part, in 16 bits also where the others have 8.
        span: The tokens that are kept: a window, or one entry for so many tokens.

    Raises:
        InvalidOptionError: A number that is not whole, below 1 or above 2^24.
    """

    __match_args__ = ("qk_nope_head_dim", "qk_rope_head_dim", "span")
    def __new__(cls, *, qk_nope_head_dim: SupportsIndex, qk_rope_head_dim: SupportsIndex, span: Span) -> Self: ...
    @property
    def qk_nope_head_dim(self) -> int:
        """Elements of the row without rotary positions."""
    @property
    def qk_rope_head_dim(self) -> int:
        """Elements of the rotary part."""
    @property
    def span(self) -> Span:
        """The tokens that are kept."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    def __replace__(self, **changes: Any) -> Self: ...

@final
class CompressorState:
    """Rows of 32-bit floats that wait to be compressed: a ring of them for each window page, or for each request.

    Args:
        compress_ratio: Tokens of one compressed entry: 4 (rings follow window pages) or 128 (rings follow requests).
        row_elements: Elements of one row.

    Raises:
        InvalidOptionError: Another ratio, or a number that is not whole, below 1 or above 2^24.
    """

    __match_args__ = ("compress_ratio", "row_elements")
    def __new__(cls, *, compress_ratio: SupportsIndex, row_elements: SupportsIndex) -> Self: ...
    @property
    def compress_ratio(self) -> int:
        """Tokens of one compressed entry."""
    @property
    def row_elements(self) -> int:
        """Elements of one row."""
    @property
    def span(self) -> Span:
        """What a request holds: a state, and no tokens."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    def __replace__(self, **changes: Any) -> Self: ...

@final
class StateTensor:
    """One tensor of a request's recurrent state: `num_heads` parts of `head_elements` elements.

    Args:
        num_heads: Parts that ranks share: heads, channels or groups.
        head_elements: Elements of one part.
        role: `temporal` (the state itself, in the state's dtype) or `conv` (the last inputs of a convolution, or a
            shifted row, in the dtype of activations).
        sharding: `heads` (ranks divide the parts evenly), `groups` (the same, and fewer parts than ranks are
            replicated) or `whole` (every rank holds all).

    Raises:
        InvalidOptionError: A number that is not whole, below 1 or above 2^24; no such role or sharding.
    """

    __match_args__ = ("num_heads", "head_elements", "role", "sharding")
    def __new__(
        cls,
        *,
        num_heads: SupportsIndex,
        head_elements: SupportsIndex,
        role: str = "temporal",
        sharding: str = "heads",
    ) -> Self: ...
    @property
    def num_heads(self) -> int:
        """Parts that ranks share."""
    @property
    def head_elements(self) -> int:
        """Elements of one part."""
    @property
    def role(self) -> Literal["temporal", "conv"]:
        """`temporal` or `conv`."""
    @property
    def sharding(self) -> Literal["heads", "groups", "whole"]:
        """`heads`, `groups` or `whole`."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    def __replace__(self, **changes: Any) -> Self: ...

@final
class RecurrentState:
    """What a recurrent layer keeps for a request, however long it is: Mamba, linear attention, short convolutions.

    Args:
        tensors: The tensors that it is made of.

    Raises:
        InvalidOptionError: No tensors.
    """

    __match_args__ = ("tensors",)
    def __new__(cls, *, tensors: Iterable[StateTensor]) -> Self: ...
    @property
    def tensors(self) -> tuple[StateTensor, ...]:
        """The tensors that it is made of."""
    @property
    def span(self) -> Span:
        """What a request holds: a state, and no tokens."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    def __replace__(self, **changes: Any) -> Self: ...

@final
class Layer:
    """One layer: everything that it keeps. Most keep one state, some none, and some two (LongCat-Flash).

    Raises:
        TypeError: Something that is no state: none of the classes of `poolplan.State`.
    """

    __match_args__ = ("states",)
    def __new__(cls, *, states: Iterable[State] | None = None) -> Self: ...
    @property
    def states(self) -> tuple[State, ...]:
        """What the layer keeps."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...
    def __replace__(self, **changes: Any) -> Self: ...

@final
class PoolSize:
    """One pool of a plan: what to allocate. It takes `(slots + padding_slots) · cell_bytes` bytes.

    Where compressed entries are kept in 8 bits it also takes what their pages are padded by, and with `allocator` what
    that rounds up.
    """

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
        """Tokens that the anchor holds: the full pool, or the window pool of a model with windows only.

        Of a model of which nothing grows with tokens, as many as the requests that it holds may have together.
        """
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
    def pool(self, name: str) -> PoolSize | None:
        """The pool of that name, or `None`."""
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
    @property
    def token_step(self) -> int:
        """Tokens by which plans grow: a page, or a request of the whole context where nothing grows with tokens."""
    @property
    def required_bytes(self) -> int:
        """The least budget of which one request can be served, bytes. Budgets from 0 to 2^64 - 1 can be planned."""
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
    def calculate_pool_sizes_batch(self, available_bytes: ArrayLike) -> dict[str, NDArray[int64]]:
        """The plans of many budgets at once, each as `calculate_pool_sizes` plans it.

        Args:
            available_bytes: Budgets, bytes: an integer array of any shape, or what NumPy makes one of.

        Returns:
            Arrays of that shape, of 64-bit integers, by name: `max_total_num_tokens`, `max_running_requests`,
            `total_bytes`, and the slots of each pool by its name. All of them are 0 where the budget is below
            `required_bytes`.

        Raises:
            InvalidOptionError: Not whole numbers, or above 2^63 - 1.
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
    def next_step_bytes(self, config: MemoryPoolConfig) -> int:
        """Bytes of one step of tokens more than `config` has, beside its state slots, on the costliest stage.

        More than its budget, unless an option limits the tokens.
        """
    def stage_bytes(self, config: MemoryPoolConfig) -> tuple[int, ...]:
        """Bytes that all pools take on a rank of each pipeline stage. The stage with most binds the plan."""
    def buffer_bytes(self, config: MemoryPoolConfig) -> dict[str, tuple[tuple[int, int], ...]]:
        """The tensors of each pool, padding included: bytes of one, and how many there are alike.

        An allocator may take more for them; the plan counts that where `allocator` says so.
        """
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[type[Self], tuple[ModelSpec, RuntimeSpec]]: ...

class _Rational(Protocol):
    @property
    def numerator(self) -> int: ...
    @property
    def denominator(self) -> int: ...

def cell_bytes(
    state: State,
    *,
    kv_cache_dtype: str,
    tp_size: SupportsIndex,
    v_cache_dtype: str | None = None,
    dcp_size: SupportsIndex | None = None,
    raw_sparse_rows: bool = False,
    mamba_conv_dtype: str = "bfloat16",
    mamba_ssm_dtype: str = "float32",
) -> int:
    """Bytes that one slot of `state` takes on one of `tp_size` ranks, scales included; of recurrent state, a request.

    Args:
        state: What a layer keeps.
        kv_cache_dtype: Element type of the cache.
        tp_size: Ranks that divide the heads.
        v_cache_dtype: Element type of values, if other than `kv_cache_dtype`.
        dcp_size: Ranks among them that divide the tokens of a request instead.
        raw_sparse_rows: Whether 8-bit rows of sparse latents have no scales, as TensorRT-LLM's kernels want them.
        mamba_conv_dtype: Element type of the inputs that a convolution keeps.
        mamba_ssm_dtype: Element type of recurrent state.

    Raises:
        InvalidOptionError: The ranks do not divide the heads, or blocks of scales do not divide a row.
    """

def host_pools(
    configurator: MemoryPoolConfigurator,
    config: MemoryPoolConfig,
    *,
    hicache_size: SupportsIndex | None = None,
    hicache_ratio: _Rational | float | str | None = None,
    pool_bytes: dict[str, int],
    granularity: SupportsIndex,
) -> tuple[Fraction, int, tuple[PoolSize, ...]]:
    """The host pools of `config`: those of `hicache_ratio`, or of the largest ratio that fits `hicache_size`.

    Args:
        configurator: What planned `config`.
        config: The pools on the device.
        hicache_size: Bytes of all host pools of a rank together.
        hicache_ratio: Host slots for each device slot.
        pool_bytes: Bytes of single pools, drafts included.
        granularity: Bytes to whose multiple each buffer is rounded up.

    Returns:
        The ratio as a Fraction, the bytes of the stage where they are most, and the pools of the stage of `config`.

    Raises:
        InsufficientMemoryError: The size does not hold what a cached prefix needs of every pool.
        InvalidOptionError: A number that is not whole or out of range, or a pool that is not on the host.
        UnsupportedModelError: No pool holds what a cached prefix needs.
    """

def kinds_of(layers: Iterable[Layer]) -> frozenset[str]:
    """The names of all states that `layers` keep, and of the kinds of their spans.

    States are `attention`, `latent`, `index_key`, `compressed_latent`, `compressor` and `recurrent`.
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

def split_above_minimums(
    total: SupportsIndex, weights: Iterable[SupportsIndex], minimums: Iterable[SupportsIndex]
) -> list[int]:
    """`total` divided in proportion to `weights`, but no part less than its minimum.

    Bytes go one by one to the part that has least for its weight (D'Hondt's method), so that a larger total never gives
    any part less. All of the total is given out, if there is any weight.

        >>> split_above_minimums(100, [3, 1], [0, 40])
        [60, 40]

    Args:
        total: What is divided, from 0 to 2^64 - 1.
        weights: One weight a part; one of weight zero gets its minimum.
        minimums: The least that each part gets.

    Raises:
        InsufficientMemoryError: The minimums together pass the total.
        InvalidOptionError: A number that is not whole or out of range, or not as many minimums as weights.
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

"""How a runtime serves a model: the options, with SGLang's names. The model itself is `poolplan.models.ModelSpec`."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, Literal, cast, get_args

from poolplan._core import parse_dtype, parse_ratio
from poolplan.errors import InvalidOptionError

DisaggregationMode = Literal["null", "prefill", "decode"]
# NGRAM drafts without a model; the others with the checkpoint's own MTP layers or with a draft model beside it.
SpeculativeAlgorithm = Literal["EAGLE", "EAGLE3", "NEXTN", "DFLASH", "STANDALONE", "NGRAM"]
AllocatorRule = Literal["exact", "torch", "torch_expandable"]
MambaRadixCacheStrategy = Literal["no_buffer", "extra_buffer", "extra_buffer_lazy"]
# How a configurator pools windows, and the number that goes with it: the ratio, or the cached prefixes of a request.
WindowRule = tuple[Literal["keep_all", "ratio", "request_cap"], "Fraction | float | str | None"]

_MAX_COUNT = 2**63 - 1
_MAX_OPTION = 2**32 - 1
# The others then have a hundredth of the budget.
_MAX_STATE_RATIO = 99
# The values of the options that have a few.
CHOICES: dict[str, tuple[str, ...]] = {
    "allocator": get_args(AllocatorRule),
    "disaggregation_mode": get_args(DisaggregationMode),
    "mamba_radix_cache_strategy": get_args(MambaRadixCacheStrategy),
    "speculative_algorithm": get_args(SpeculativeAlgorithm),
}


def _option(default: Any, help: str, *, low: int = 1, high: int = _MAX_OPTION) -> Any:  # noqa: A002 - click's own word
    """Describe one option once: the class checks it, and the command line shows it."""
    return field(default=default, metadata={"help": help, "low": low, "high": high})


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeSpec:
    """How a runtime serves a model. Every option has SGLang's name where SGLang has it.

    Numbers are whole (any type with `__index__`, but no bool or float); `swa_full_tokens_ratio` is kept as the exact
    fraction of the decimal that was typed, so 0.8 is 4/5.

    Raises:
        InvalidOptionError: An option is of the wrong type or out of range.
    """

    tp_size: int = _option(1, "Tensor-parallel ranks; each holds its share of the KV heads.")
    dp_size: int = _option(1, "Data-parallel workers; each serves its share of the requests.")
    enable_dp_attention: bool = _option(False, "The workers share the tensor-parallel ranks, tp-size / dp-size each.")
    dcp_size: int = _option(1, "Tensor-parallel ranks that divide the tokens of a request instead of the KV heads.")
    ep_size: int = _option(1, "Expert-parallel ranks; they change nothing that is cached.")
    pp_size: int = _option(1, "Pipeline stages; each holds a contiguous range of layers.")
    pp_layer_partition: tuple[int, ...] | str | None = _option(
        None, "Layers of each stage, such as 15,15,16,15; by default even, the last ones longer."
    )
    pp_rank: int | None = _option(None, "Show the pools of this stage instead of the one that takes most.", low=0)
    page_size: int = _option(1, "Tokens in a page.", high=2**32)
    kv_cache_dtype: str = _option("auto", "Element type of the cache; auto is the checkpoint's own.")
    v_cache_dtype: str | None = _option(None, "Element type of values, if other than that of keys.")
    context_length: int | None = _option(None, "Longest request, in tokens; by default the model's.", high=2**40 - 1)
    max_total_tokens: int | None = _option(None, "Upper limit of the tokens.", high=_MAX_COUNT)
    max_running_requests: int | None = _option(None, "Requests served at once; by default 2048 to 4096.")
    request_tokens: int | None = _option(
        None, "A request of so many tokens, prompt and output, must be able to run.", high=2**40 - 1
    )
    swa_full_tokens_ratio: Fraction | float | str | None = _option(
        None,
        "Slots of the window pool for each slot of the full pool; 4/5, or 1/10 beside compressed entries.",
    )
    mamba_full_memory_ratio: Fraction | float | str = _option(
        Fraction(9, 10), "Bytes of recurrent state for each byte of the rest."
    )
    max_mamba_cache_size: int | None = _option(None, "Slots of recurrent state, instead of the ratio.")
    mamba_ssm_dtype: str = _option("auto", "Element type of recurrent state; auto is the checkpoint's own.")
    mamba_conv_dtype: str = _option("auto", "Element type of what convolutions keep; auto is the checkpoint's own.")
    mamba_radix_cache_strategy: MambaRadixCacheStrategy = _option(
        "no_buffer", "State slots that the prefix cache takes beside 3 a request: none, 1 or 2, or 1 when needed."
    )
    speculative_algorithm: SpeculativeAlgorithm | None = _option(
        None, "Draft tokens: with the checkpoint's MTP layers, or with a draft model."
    )
    speculative_num_draft_tokens: int | None = _option(None, "Tokens that are verified at once; by default steps + 1.")
    speculative_num_steps: int = _option(3, "Steps of the draft.")
    speculative_eagle_topk: int = _option(1, "Branches of each step of the draft.")
    chunked_prefill_size: int | None = _option(None, "Prompt tokens in one prefill chunk; -1 for whole prompts.")
    disable_radix_cache: bool = _option(False, "No prefix cache.")
    disable_overlap_schedule: bool = _option(False, "One batch in flight instead of two.")
    disable_hybrid_swa_memory: bool = _option(False, "Keep every token of window layers too, in one pool.")
    disaggregation_mode: DisaggregationMode = _option("null", "Serve prompts only (prefill) or outputs only (decode).")
    swa_eviction_interval: int = _option(128, "Tokens by which a window may lag before slots are freed.", low=0)
    dsa_prefill_backend: str | None = _option(None, "Kernels of sparse prefill; trtllm keeps raw FP8 rows.")
    dsa_decode_backend: str | None = _option(None, "Kernels of sparse decode; trtllm keeps raw FP8 rows.")
    count_padding: bool = _option(True, "Count the page that each token pool never hands out.")
    count_request_table: bool = _option(True, "Count the table from requests to slots.")
    allocator: AllocatorRule = _option(
        "exact", "Count what PyTorch's caching allocator rounds up for each tensor, by segments or in expandable ones."
    )

    def __post_init__(self) -> None:
        """Check every option, and store its exact value."""
        for option in fields(self):
            checked = _checked(option.name, option.type, getattr(self, option.name), option.metadata)
            object.__setattr__(self, option.name, checked)
        if self.pp_rank is not None and self.pp_rank >= self.pp_size:
            raise InvalidOptionError("pp_rank", self.pp_rank, f"pass a stage below pp_size={self.pp_size}")
        ratio = cast("Fraction | None", self.swa_full_tokens_ratio)
        if ratio is not None and ratio > 1:
            raise InvalidOptionError("swa_full_tokens_ratio", ratio, "pass a ratio above 0, up to 1")
        if cast("Fraction", self.mamba_full_memory_ratio) > _MAX_STATE_RATIO:
            allowed = f"pass a ratio above 0, up to {_MAX_STATE_RATIO}"
            raise InvalidOptionError("mamba_full_memory_ratio", self.mamba_full_memory_ratio, allowed)
        if self.enable_dp_attention and self.tp_size % self.dp_size:
            raise InvalidOptionError("dp_size", self.dp_size, f"pass a number that divides tp_size={self.tp_size}")
        if self.speculative_algorithm is not None and self.speculative_num_draft_tokens is None:
            object.__setattr__(self, "speculative_num_draft_tokens", self.speculative_num_steps + 1)

    @property
    def attention_tp_size(self) -> int:
        """Ranks that share the heads of a layer of one data-parallel worker."""
        return self.tp_size // self.dp_size if self.enable_dp_attention else self.tp_size

    @property
    def requests_per_worker(self) -> int | None:
        """Requests that one data-parallel worker serves at once (SGLang 0.5.23, `resolve_max_num_reqs`)."""
        return self._per_worker(self.max_running_requests)

    @property
    def state_slots_per_worker(self) -> int | None:
        """Slots of recurrent state of one data-parallel worker, where they are given."""
        return self._per_worker(self.max_mamba_cache_size)

    def _per_worker(self, number: int | None) -> int | None:
        return number if number is None or not self.enable_dp_attention else max(1, number // self.dp_size)

    @property
    def state_slots_per_request(self) -> int:
        """Slots of recurrent state that one request holds (SGLang 0.5.23, `_calculate_mamba_ratio`).

        With the prefix cache 3, and what its strategy tracks beside them: 1, or 2 where batches overlap.
        """
        strategy = self.mamba_radix_cache_strategy
        if self.disable_radix_cache:
            return 1
        if strategy == "no_buffer":
            return 3
        return 4 if strategy == "extra_buffer_lazy" or self.disable_overlap_schedule else 5

    @property
    def caps_windows_by_requests(self) -> bool:
        """Whether the requests that are served bound the windows that are held: no prefix cache, and chunks or none."""
        return self.disable_radix_cache and self.bounds_requests

    @property
    def bounds_requests(self) -> bool:
        """Whether the operator limits the requests, and what each of them takes while it is prefilled."""
        chunked = self.chunked_prefill_size is not None or self.disaggregation_mode == "decode"
        return self.max_running_requests is not None and chunked

    @property
    def raw_sparse_rows(self) -> bool:
        """Whether FP8 rows of sparse latents have no scales: when the kernels of this role are TensorRT-LLM's.

        SGLang 0.5.23, `pool_configurator`: either backend counts unless prefill and decode are served apart.
        """
        prefill, decode = self.dsa_prefill_backend == "trtllm", self.dsa_decode_backend == "trtllm"
        mode = self.disaggregation_mode
        return (prefill and mode != "decode") or (decode and mode != "prefill")


def _checked(name: str, kind: object, value: object, limits: Any) -> object:
    """The value that is stored for an option of a type written as `kind`."""
    text = cast("str", kind)
    if value is None and "None" in text:
        return None
    if text.startswith("int"):
        if name == "chunked_prefill_size" and value == -1:
            return None
        return _whole(name, value, limits["low"], limits["high"])
    if text == "bool":
        if not isinstance(value, bool):
            raise InvalidOptionError(name, repr(value), "pass True or False")
        return value
    if name == "pp_layer_partition":
        return _partition(name, value)
    if name.endswith(("_ratio", "_dtype")):
        return _parsed(name, value, may_be_auto="None" not in text)
    return _text(name, value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidOptionError(name, repr(value), "pass text")
    if name in CHOICES and value not in CHOICES[name]:
        raise InvalidOptionError(name, value, f"pass one of {', '.join(CHOICES[name])}")
    return value


def _parsed(name: str, value: object, *, may_be_auto: bool) -> object:
    """The exact ratio or the name of the dtype that `value` stands for; errors name the option."""
    try:
        if name.endswith("_ratio"):
            return parse_ratio(cast("Any", value))
        # torch.bfloat16 writes itself as its name: torch need not be imported.
        return "auto" if may_be_auto and str(value) == "auto" else parse_dtype(str(value))
    except InvalidOptionError as error:
        raise InvalidOptionError(name, error.value, error.allowed) from None


def _partition(name: str, value: object) -> tuple[int, ...]:
    """`15,15,16,15`, as `SGLANG_PP_LAYER_PARTITION` has it, or a sequence of numbers."""
    allowed = "pass the layers of each stage, such as 15,15,16,15"
    parts: list[object] = []
    if isinstance(value, str):
        parts = [int(part) if part.strip().isdecimal() else part for part in value.split(",")]
    elif isinstance(value, list | tuple):
        parts = list(cast("list[object]", value))
    if not parts:
        raise InvalidOptionError(name, repr(cast("object", value)), allowed)
    return tuple(_whole(name, part, 1, _MAX_OPTION) for part in parts)


def _whole(name: str, value: object, low: int, high: int) -> int:
    allowed = f"pass a whole number from {low} to {high}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidOptionError(name, repr(value), allowed)
    number = operator.index(cast("Any", value))
    if not low <= number <= high:
        raise InvalidOptionError(name, number, allowed)
    return number

"""How a runtime serves a model: the options, with SGLang's names. The model itself is `poolplan.models.ModelSpec`."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, Literal, cast, get_args

from poolplan._core import parse_dtype, parse_ratio
from poolplan.errors import InvalidOptionError

DisaggregationMode = Literal["null", "prefill", "decode"]

_MAX_COUNT = 2**63 - 1
_MAX_OPTION = 2**32 - 1


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
    pp_size: int = _option(1, "Pipeline stages; each holds a contiguous range of layers.")
    pp_rank: int | None = _option(None, "Show the pools of this stage instead of the one that takes most.", low=0)
    page_size: int = _option(1, "Tokens in a page.", high=2**32)
    kv_cache_dtype: str = _option("auto", "Element type of the cache; auto is the checkpoint's own.")
    context_length: int | None = _option(None, "Longest request, in tokens; by default the model's.", high=2**40 - 1)
    max_total_tokens: int | None = _option(None, "Upper limit of the tokens.", high=_MAX_COUNT)
    max_running_requests: int | None = _option(None, "Requests served at once; by default 2048 to 4096.")
    request_tokens: int | None = _option(
        None, "A request of so many tokens, prompt and output, must be able to run.", high=2**40 - 1
    )
    swa_full_tokens_ratio: Fraction | float | str = _option(
        Fraction(4, 5), "Slots of the window pool for each slot of the full pool."
    )
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

    def __post_init__(self) -> None:
        """Check every option, and store its exact value."""
        for option in fields(self):
            checked = _checked(option.name, option.type, getattr(self, option.name), option.metadata)
            object.__setattr__(self, option.name, checked)
        if self.pp_rank is not None and self.pp_rank >= self.pp_size:
            raise InvalidOptionError("pp_rank", self.pp_rank, f"pass a stage below pp_size={self.pp_size}")
        ratio = cast("Fraction", self.swa_full_tokens_ratio)
        if ratio > 1:
            raise InvalidOptionError("swa_full_tokens_ratio", ratio, "pass a ratio above 0, up to 1")
        if self.disaggregation_mode not in get_args(DisaggregationMode):
            allowed = ", ".join(get_args(DisaggregationMode))
            raise InvalidOptionError("disaggregation_mode", self.disaggregation_mode, f"pass one of {allowed}")

    @property
    def raw_sparse_rows(self) -> bool:
        """Whether FP8 rows of sparse latents have no scales: when the kernels of this role are TensorRT-LLM's.

        SGLang 0.5.23, `pool_configurator`: either backend counts unless prefill and decode are served apart.
        """
        backends = {
            "null": (self.dsa_prefill_backend, self.dsa_decode_backend),
            "prefill": (self.dsa_prefill_backend,),
            "decode": (self.dsa_decode_backend,),
        }
        return "trtllm" in backends[self.disaggregation_mode]


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
    if name == "swa_full_tokens_ratio":
        try:
            return parse_ratio(cast("Any", value))
        except InvalidOptionError as error:
            raise InvalidOptionError(name, error.value, error.allowed) from None
    if name == "kv_cache_dtype":
        # torch.bfloat16 writes itself as its name: torch need not be imported.
        return "auto" if str(value) == "auto" else parse_dtype(str(value))
    if not isinstance(value, str):
        raise InvalidOptionError(name, repr(value), "pass text")
    return value


def _whole(name: str, value: object, low: int, high: int) -> int:
    allowed = f"pass a whole number from {low} to {high}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidOptionError(name, repr(value), allowed)
    number = operator.index(cast("Any", value))
    if not low <= number <= high:
        raise InvalidOptionError(name, number, allowed)
    return number

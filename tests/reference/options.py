"""How a runtime serves a model, as the reference sees it: the options of the public API, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a runtime serves a model."""

    tp_size: int = 1
    dp_size: int = 1
    enable_dp_attention: bool = False
    dcp_size: int = 1
    pp_size: int = 1
    page_size: int = 1
    dtype: str = "bfloat16"
    v_cache_dtype: str | None = None
    ratio: Fraction | None = None
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
    mamba_full_memory_ratio: Fraction = Fraction(9, 10)
    max_mamba_cache_size: int | None = None
    mamba_radix_cache_strategy: Literal["no_buffer", "extra_buffer", "extra_buffer_lazy"] = "no_buffer"
    mamba_ssm_dtype: str = "float32"
    mamba_conv_dtype: str = "bfloat16"
    speculative_algorithm: Literal["NGRAM", "EAGLE"] | None = None
    speculative_num_draft_tokens: int = 4
    speculative_num_steps: int = 3
    speculative_eagle_topk: int = 1

    def per_worker(self, number: int | None) -> int | None:
        """A number of the server, for one of the workers that share the ranks."""
        return number if number is None or not self.enable_dp_attention else max(1, number // self.dp_size)

    @property
    def ranks(self) -> int:
        """Ranks that share the heads of a layer."""
        return self.tp_size // self.dp_size if self.enable_dp_attention else self.tp_size

    @property
    def held(self) -> int:
        """State slots of one request."""
        if self.disable_radix_cache:
            return 1
        buffered = 1 if self.disable_overlap_schedule else 2
        return 3 + {"no_buffer": 0, "extra_buffer": buffered, "extra_buffer_lazy": 1}[self.mamba_radix_cache_strategy]

    @property
    def bounds_requests(self) -> bool:
        """Whether requests, and what each takes while it is prefilled, are limited."""
        chunked = self.chunked_prefill_size is not None or self.disaggregation_mode == "decode"
        return self.max_running_requests is not None and chunked

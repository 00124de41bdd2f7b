"""Compressed entries beside windows: DeepSeek V4. Windows beside full attention are in `hybrid_swa.py`."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from poolplan._core import MemoryPoolConfigurator

if TYPE_CHECKING:
    from poolplan.configurators.runtime import RuntimeSpec, WindowRule
    from poolplan.models import ModelSpec

# SGLang 0.5.23, `DSV4_DEFAULT_SWA_FULL_TOKENS_RATIO`.
_DEFAULT_RATIO = Fraction(1, 10)
# SGLang 0.5.23, `_resolve_swa_prefix_tails`: prefixes that stay reusable for each request.
_PREFIX_TAILS = 4


class CompressedPoolConfigurator(MemoryPoolConfigurator):
    """Applies when a layer keeps compressed entries (DeepSeek V4): pools `c4` and `c128` beside a window pool.

    The anchor (`full`) counts tokens and takes no bytes itself. Rows that wait to be compressed are in rings, for each
    page of windows (`c4_state`) or for each request (`c128_state`). The window pool follows `swa_full_tokens_ratio`
    (1/10 here), unless the requests are limited and the ratio is not given: it is then as large as they need, and four
    cached prefixes of each. `page_size` must be a multiple of 128.
    """

    @classmethod
    def applies(cls, model: ModelSpec, runtime: RuntimeSpec) -> bool:
        """Whether a layer keeps compressed entries."""
        del runtime
        return model.has_compressed_entries

    @classmethod
    def window_rule(cls, runtime: RuntimeSpec) -> WindowRule:
        """How windows are pooled: by the ratio, or by the requests where only they are given."""
        if runtime.swa_full_tokens_ratio is not None:
            return "ratio", runtime.swa_full_tokens_ratio
        if runtime.bounds_requests:
            return "request_cap", 0 if runtime.disable_radix_cache else _PREFIX_TAILS
        return "ratio", _DEFAULT_RATIO

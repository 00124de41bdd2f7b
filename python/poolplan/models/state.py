"""Everything that a layer can keep, as one type. The classes themselves are in Rust (`rust/python/src`)."""

from __future__ import annotations

from typing import TypeAlias, Union

from poolplan._core import (
    Attention,
    CompressedLatent,
    CompressorState,
    IndexKey,
    LatentAttention,
    RecurrentState,
)

State: TypeAlias = Union[  # noqa: UP007 - a type that 3.10 can show
    Attention, LatentAttention, IndexKey, CompressedLatent, CompressorState, RecurrentState
]

"""The forms of recurrent state: the tensors that one layer keeps for a request.

Sources: SGLang 0.5.23, `srt/configs/mamba_utils.py` (its shapes keep `kernel - 1` columns of a convolution's inputs),
and the classes named beside the others. Which layers keep a state is in `mamba.py` and `linear.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolplan._core import RecurrentState, StateTensor

if TYPE_CHECKING:
    from poolplan.models.config import ConfigReader


def mamba1(inner: int, state_size: int, kernel: int) -> RecurrentState:
    """Mamba: the last inputs and a row of the state for each channel."""
    return RecurrentState(tensors=[*_inputs(inner, 1, kernel), StateTensor(num_heads=inner, head_elements=state_size)])


def mamba2(config: ConfigReader, inner: int, shape: tuple[int, int, int], groups: int, kernel: int) -> RecurrentState:
    """Mamba 2: a state for each of (heads, head dim, state size), inputs of the heads and of B and C for each group."""
    heads, dim, state_size = shape
    if heads * dim != inner:
        raise config.error(
            "mamba_n_heads", f"{heads} heads of {dim} are not the {inner} channels that the convolution has"
        )
    return RecurrentState(
        tensors=[
            *_inputs(heads, dim, kernel),
            *_inputs(groups, 2 * state_size, kernel, sharding="groups"),
            StateTensor(num_heads=heads, head_elements=dim * state_size),
        ]
    )


def plamo2(shape: tuple[int, int, int], kernel: int) -> RecurrentState:
    """PLaMo 2: as Mamba 2, but only the heads pass through the convolution."""
    heads, dim, state_size = shape
    return RecurrentState(
        tensors=[*_inputs(heads, dim, kernel), StateTensor(num_heads=heads, head_elements=dim * state_size)]
    )


def gated_delta_net(keys: tuple[int, int], values: tuple[int, int], kernel: int) -> RecurrentState:
    """GDN: inputs of queries, keys and values, and a matrix for each value head."""
    (key_heads, key_dim), (value_heads, value_dim) = keys, values
    return RecurrentState(
        tensors=[
            *_inputs(key_heads, 2 * key_dim, kernel),
            *_inputs(value_heads, value_dim, kernel),
            StateTensor(num_heads=value_heads, head_elements=value_dim * key_dim),
        ]
    )


def delta_attention(heads: int, dim: int, kernel: int) -> RecurrentState:
    """KDA: inputs of queries, keys and values, and a matrix for each head."""
    return RecurrentState(
        tensors=[*_inputs(heads, 3 * dim, kernel), StateTensor(num_heads=heads, head_elements=dim * dim)]
    )


def linear_attention(heads: int, key_dim: int, value_dim: int) -> RecurrentState:
    """Lightning attention and GLA: a matrix for each head, and no convolution."""
    return RecurrentState(tensors=[StateTensor(num_heads=heads, head_elements=key_dim * value_dim)])


def short_convolution(channels: int, kernel: int) -> RecurrentState:
    """LFM2: the last inputs, and no state beside them."""
    return RecurrentState(tensors=_inputs(channels, 1, kernel))


def rg_lru(channels: int, kernel: int) -> RecurrentState:
    """RecurrentGemma: the last inputs, and a number for each channel."""
    return RecurrentState(tensors=[*_inputs(channels, 1, kernel), StateTensor(num_heads=channels, head_elements=1)])


def rwkv4(width: int, attention_width: int) -> RecurrentState:
    """RWKV 4: the last row of each block, and numerator, denominator and maximum (transformers 5.24.0, `RwkvModel`)."""
    return RecurrentState(
        tensors=[_shifts(width), StateTensor(num_heads=3, head_elements=attention_width, sharding="whole")]
    )


def rwkv5(config: ConfigReader, width: int) -> RecurrentState:
    """RWKV 5: the last row of each block, and a matrix for each head of 64."""
    if width % 64:
        raise config.error("hidden_size", f"hidden_size={width} is not made of heads of 64")
    return RecurrentState(tensors=[_shifts(width), StateTensor(num_heads=width // 64, head_elements=64 * 64)])


def mlstm(heads: int, key_dim: int, value_dim: int) -> RecurrentState:
    """XLSTM: a matrix, a vector and a number for each head."""
    return RecurrentState(tensors=[StateTensor(num_heads=heads, head_elements=key_dim * value_dim + key_dim + 1)])


def head_share(config: ConfigReader, inner: int, heads: int, key: str) -> int:
    """Return the elements of a head when all heads together have the share of the width that `key` says.

    Raises:
        UnsupportedModelError: The share is no number, or not of whole heads in multiples of 64 (it is rounded to them).
    """
    factor = config.get(key)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 64:
        raise config.error(key, f"{key}={factor!r} is not a share of the width")
    numerator, denominator = factor.as_integer_ratio()
    wide, rest = divmod(inner * numerator, denominator)
    if rest or wide % 64 or wide % heads:
        raise config.error(key, f"{key}={factor!r} of {inner} is not {heads} heads in multiples of 64")
    return wide // heads


def _inputs(parts: int, channels: int, kernel: int, *, sharding: str = "heads") -> list[StateTensor]:
    """The last `kernel - 1` inputs of each channel; none of a convolution over one."""
    if kernel == 1:
        return []
    return [StateTensor(num_heads=parts, head_elements=channels * (kernel - 1), role="conv", sharding=sharding)]


def _shifts(width: int) -> StateTensor:
    return StateTensor(num_heads=2, head_elements=width, role="conv", sharding="whole")

"""The bytes of a slot of everything that a layer keeps, each formula written once and plainly.

Sources: SGLang 0.5.23 (`pool_configurator.py`, `memory_pool.py`, `mamba_utils.py`), vLLM 0.33.0 (scales a row), OCP
Microscaling Formats 1.0 for blocks of scales.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from reference.options import Options

Span = tuple[Literal["full", "window", "chunk", "compressed", "encoder", "request"], "int | None"]
# ("heads", KV heads, elements of a key, elements of a value, span), ("latent" or "sparse", rank, rotary elements, span):
# sparse latents are those of DSA; ("index", elements, bits, span): the key that sparse attention searches;
# ("compressed", elements, rotary elements, span): key and value at once; ("ring", tokens of an entry, elements, span):
# rows that wait to be compressed; ("recurrent", tensors, span): each (heads, elements, role, sharding).
Heads = tuple[Literal["heads"], int, int, int, Span]
Latent = tuple[Literal["latent"], int, int, Span]
Sparse = tuple[Literal["sparse"], int, int, Span]
Index = tuple[Literal["index"], int, int, Span]
Compressed = tuple[Literal["compressed"], int, int, Span]
Ring = tuple[Literal["ring"], int, int, Span]
Tensor = tuple[int, int, Literal["conv", "temporal"], Literal["heads", "groups", "whole"]]
Recurrent = tuple[Literal["recurrent"], tuple[Tensor, ...], Span]
State = Heads | Latent | Sparse | Index | Compressed | Ring | Recurrent
Layer = tuple[State, ...]

# Bits of an element, the elements that share one scale byte, and the scale bytes of a row.
DTYPES: dict[str, tuple[int, int | None, int]] = {
    "float32": (32, None, 0),
    "float16": (16, None, 0),
    "bfloat16": (16, None, 0),
    "fp8_e4m3": (8, None, 0),
    "fp8_e5m2": (8, None, 0),
    "mxfp8": (8, 32, 0),
    "mxfp4": (4, 32, 0),
    "nvfp4": (4, 16, 0),
    "fp4_mx_block16": (4, 16, 0),
    "int8": (8, None, 4),
    "fp8_per_token_head": (8, None, 4),
    "int4": (4, None, 4),
}


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """No plan: the option that is wrong, or the bytes that the least plan takes."""

    def __init__(self, option: str | None, required_bytes: int | None = None) -> None:
        super().__init__(option, required_bytes)
        self.option = option
        self.required_bytes = required_bytes


class Formats(NamedTuple):
    """How what layers keep is stored, and on how many ranks."""

    dtype: str = "bfloat16"
    ranks: int = 1
    v_dtype: str | None = None
    raw: bool = False
    dcp: int = 1
    conv_dtype: str = "bfloat16"
    ssm_dtype: str = "float32"

    @classmethod
    def of(cls, options: Options) -> Formats:
        """The formats of a runtime."""
        prefill, decode = options.dsa_prefill_backend, options.dsa_decode_backend
        role = {"null": (prefill, decode), "prefill": (prefill,), "decode": (decode,)}
        return cls(
            options.dtype,
            options.ranks,
            options.v_cache_dtype,
            "trtllm" in role[options.disaggregation_mode],
            options.dcp_size,
            options.mamba_conv_dtype,
            options.mamba_ssm_dtype,
        )


def cell_bytes(state: State, formats: Formats) -> int:
    """Bytes of one slot of `state` on one rank."""
    dtype = formats.dtype
    if formats.ranks % formats.dcp:
        raise Refusal("dcp_size")
    match state:
        case ("heads", heads, key, value, _):
            on_rank = _shared_heads(heads, formats.ranks // formats.dcp)
            return on_rank * (_row_bytes(key, dtype) + _row_bytes(value, formats.v_dtype or dtype))
        case ("latent", rank, rope, _):
            # Scales of a row are kept for key and value each, also where both are one row.
            return _row_bytes(rank + rope, dtype) + DTYPES[dtype][2]
        case ("sparse", rank, rope, _):
            return _sparse_row_bytes(rank, rope, dtype, formats.raw)
        case ("index", elements, bits, _):
            return (elements * bits // 8 + (elements // 128 * 4 if bits == 8 else 0)) * formats.dcp
        case ("compressed", nope, rope, _):
            sizes = {"fp8_e4m3": nope + 2 * rope + 8, "bfloat16": 2 * (nope + rope), "float16": 2 * (nope + rope)}
            if dtype not in sizes:
                raise Refusal("kv_cache_dtype")
            return sizes[dtype]
        case ("ring", _, elements, _):
            return 4 * elements
        case ("recurrent", tensors, _):
            return sum(_tensor_bytes(tensor, formats) for tensor in tensors)


def _tensor_bytes(tensor: Tensor, formats: Formats) -> int:
    heads, elements, role, sharding = tensor
    if sharding == "heads" and heads % formats.ranks:
        raise Refusal("tp_size")
    on_rank = {
        "heads": heads // formats.ranks,
        "groups": _shared_heads(heads, formats.ranks) if sharding == "groups" else 0,
        "whole": heads,
    }[sharding]
    return on_rank * _row_bytes(elements, formats.conv_dtype if role == "conv" else formats.ssm_dtype)


def _shared_heads(heads: int, ranks: int) -> int:
    if heads % ranks and ranks % heads:
        raise Refusal("tp_size")
    return max(1, heads // ranks)


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
    bits, block, scales = DTYPES[dtype]
    data = -(-elements * bits // 8)
    if block is None:
        return data + scales
    if elements % block:
        raise Refusal("kv_cache_dtype")
    return data + elements // block

"""Compressed attention: DeepSeek V4 keeps a window in every layer, and entries of 4 or 128 tokens in most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolplan._core import CompressedLatent, CompressorState, IndexKey, Layer, Span
from poolplan.models.registry import register_model

if TYPE_CHECKING:
    from poolplan.models.config import ConfigReader
    from poolplan.models.state import State

# What waits to be compressed, in rows of the head's dimension: keys and weights, and for entries of 4 also those of the
# entry before, as they overlap (SGLang 0.5.23, `CompressStatePool`).
_ROW_HEADS = {4: 4, 128: 2}


@register_model(
    "deepseek_v4",
    "deepseek_ref",
    "DeepseekV4ForCausalLM",
    reads=("compress_ratios", "index_head_dim", "index_n_heads", "index_topk", "sliding_window"),
)
def deepseek_v4(config: ConfigReader) -> list[Layer]:
    """Return layers of DeepSeek V4: one row a token in a window, and what `compress_ratios` says of all tokens.

    A ratio of 4 keeps an entry and an index key for every 4 tokens, 128 an entry for every 128, 0 nothing more. The
    list goes on with the MTP layers.
    """
    return [_layer(config, ratio) for ratio in _ratios(config)[: config.num_layers]]


def mtp_layers(config: ConfigReader, count: int) -> list[Layer]:
    """Return what MTP layers keep: the ratios after those of the layers, or windows only."""
    ratios = _ratios(config)[config.num_layers :][:count]
    return [_layer(config, ratio) for ratio in ratios + [0] * (count - len(ratios))]


def _ratios(config: ConfigReader) -> list[Any]:
    ratios = config.sequence("compress_ratios") or []
    if len(ratios) < config.num_layers:
        raise config.error(
            "compress_ratios", f"compress_ratios has {len(ratios)} entries for {config.num_layers} layers"
        )
    return ratios


def _layer(config: ConfigReader, ratio: object) -> Layer:
    ratio = config.whole("compress_ratios", ratio, low=0)
    head_dim, rope = config.integer("head_dim"), config.integer("qk_rope_head_dim")
    if rope >= head_dim:
        raise config.error("qk_rope_head_dim", f"qk_rope_head_dim={rope} is not below head_dim={head_dim}")

    def latent(span: Span) -> CompressedLatent:
        return CompressedLatent(qk_nope_head_dim=head_dim - rope, qk_rope_head_dim=rope, span=span)

    states: list[State] = [latent(Span.window(config.integer("sliding_window")))]
    if ratio:
        if ratio not in _ROW_HEADS:
            raise config.error("compress_ratios", f"compress_ratios has {ratio}, which is not planned yet")
        states += [latent(Span.compressed(ratio)), _compressor(ratio, head_dim)]
    if ratio == 4:
        index_dim = config.integer("index_head_dim")
        states += [IndexKey(head_dim=index_dim, span=Span.compressed(ratio)), _compressor(ratio, index_dim)]
    return Layer(states=states)


def _compressor(ratio: int, head_dim: int) -> CompressorState:
    return CompressorState(compress_ratio=ratio, row_elements=_ROW_HEADS[ratio] * head_dim)

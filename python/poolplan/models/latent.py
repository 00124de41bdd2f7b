"""MLA: one latent row a token for all heads. The indexer of DSA models, which keep more, is not here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolplan._core import LatentAttention, Layer
from poolplan.models.decoder import plain_decoder
from poolplan.models.registry import register_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolplan.models.config import ConfigReader


@register_model(
    "axk1",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe_lite",
    "kimi_k2",
    "minicpm3",
    "MiniCPM3ForCausalLM",
    "mistral4",
    "sarvam_mla",
    "youtu",
    reads=["kv_lora_rank"],
)
def latent_decoder(config: ConfigReader) -> Sequence[Layer]:
    """Return layers that each keep one latent row; the expanded heads that such files also name are not cached."""
    if config.get("kv_lora_rank") is None:
        # DeepSeek-VL2-Tiny and its kin switch the latent off.
        return plain_decoder(config)
    return [Layer(states=[_latent(config)])] * config.num_layers


@register_model("longcat_flash", "LongcatFlashForCausalLM", reads=["kv_lora_rank"])
def longcat_flash(config: ConfigReader) -> list[Layer]:
    """Return layers that each hold two attention blocks."""
    return [Layer(states=[_latent(config)] * 2)] * config.num_layers


def _latent(config: ConfigReader) -> LatentAttention:
    return LatentAttention(
        kv_lora_rank=config.integer("kv_lora_rank"),
        qk_rope_head_dim=config.integer("qk_rope_head_dim", low=0),
    )

"""Architectures that keep a state that is not known exactly: refused, as their files look like plain decoders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolplan.models.registry import register_model

if TYPE_CHECKING:
    from poolplan._core import Layer
    from poolplan.models.config import ConfigReader

# Zaya: SGLang 0.5.23 and transformers 5.24.0 count its layers differently. The last line is in SGLang, and is not read
# here yet. The others are in neither of them, nor in vLLM 0.33.0: there is no runtime to hold their states against.
_REFUSED = """
delta_net gated_deltanet gated_deltaproduct gsa hgrn hgrn2 kda lightnet linear_attn mesa_net retnet
rwkv6 rwkv7 yuan YuanForCausalLM zaya ZayaForCausalLM
gigachat3_5 inkling inkling_model inkling_mm_model jet_nemotron jet_vlm lfm3 minicpm_sala
""".split()


@register_model(*_REFUSED)
def refused(config: ConfigReader) -> list[Layer]:
    """Refuse a model whose layers keep a state that is not known exactly."""
    raise config.error(
        "model_type", f"{config.model_type or 'the model'} keeps a state for each request, which is not planned yet"
    )

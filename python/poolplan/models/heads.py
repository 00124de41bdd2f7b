"""KV heads and head dimensions of a layer, under every name that they have. Which layers there are is the families'."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poolplan._core import Attention, Span

if TYPE_CHECKING:
    from poolplan.models.config import ConfigReader

_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_WIDTH = ("hidden_size", "n_embd", "n_embed", "d_model")
# SGLang 0.5.23, `ModelConfig.get_total_num_kv_heads`, in its order; then Falcon Perception's name.
_KV_HEADS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
    "n_kv_heads",
)
# An explicit dimension wins over a division: Qwen3-0.6B has 128 where 1024 / 16 is 64.
_HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim", "hidden_size_per_head")


def attention(config: ConfigReader, span: Span | None = None) -> Attention:
    """Return the state of a layer whose heads are all alike."""
    dim = head_dim(config)
    return Attention(
        num_kv_heads=num_kv_heads(config),
        head_dim=dim,
        v_head_dim=config.optional_integer("v_head_dim", low=0) or dim,
        span=span,
    )


def attention_heads(config: ConfigReader) -> int:
    """Return the query heads of a layer."""
    return config.integer(*_HEADS)


def width(config: ConfigReader) -> int:
    """Return the elements of a row between layers."""
    return config.integer(*_WIDTH)


def num_kv_heads(config: ConfigReader) -> int:
    """Return the KV heads of a layer, before tensor parallelism."""
    if config.model_type == "falcon" and not config.flag("new_decoder_architecture"):
        # Its class default of num_kv_heads is 71, and is not used: falcon-7b is MQA, falcon-rw-1b is MHA.
        return 1 if config.flag("multi_query") else config.integer(*_HEADS)
    if config.model_type != "RefinedWeb" and config.flag("multi_query") and not config.flag("new_decoder_architecture"):
        return 1
    if config.model_type == "chatglm" and not config.flag("multi_query_attention"):
        return config.integer(*_HEADS)
    if config.model_type in {"mpt", "dbrx"}:
        return _nested_kv_heads(config)
    heads = config.optional_integer(*_KV_HEADS)
    return config.integer(*_HEADS) if heads is None else heads


def head_dim(config: ConfigReader) -> int:
    """Return the elements of one head's key."""
    explicit = config.optional_integer(*_HEAD_DIM, low=0)
    if explicit:
        return explicit
    width, heads = config.integer(*_WIDTH), config.integer(*_HEADS)
    if width % heads:
        raise config.error("head_dim", f"head_dim is missing, and {heads} heads do not divide a width of {width}")
    return width // heads


def _nested_kv_heads(config: ConfigReader) -> int:
    """MPT and DBRX keep the number in `attn_config`; only MPT has a default, which is MHA."""
    settings = config.mapping("attn_config")
    if settings.get("attn_type") == "multiquery_attention":
        return 1
    heads = settings.get("kv_n_heads")
    if heads is None and config.model_type == "dbrx":
        raise config.error("attn_config", "attn_config.kv_n_heads is missing")
    return config.integer(*_HEADS) if heads is None else config.whole("attn_config.kv_n_heads", heads)

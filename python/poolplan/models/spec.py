"""`ModelSpec`: the facts of one checkpoint, one entry a layer. How a runtime serves it is `RuntimeSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from poolplan._core import kinds_of
from poolplan.errors import InvalidOptionError, UnsupportedModelError
from poolplan.models.config import ConfigReader
from poolplan.models.mtp import read_mtp_layers
from poolplan.models.registry import read_layers

if TYPE_CHECKING:
    import os

    from poolplan._core import Layer
    from poolplan.configurators import RuntimeSpec

# Runtimes serve 32-bit checkpoints in 16 bits, and so do they with files that name no type.
_SIXTEEN_BITS = ("bfloat16", "float16")

# What `kinds_of` says of layers.
_WINDOWS = frozenset({"window", "chunk"})
_ALL_TOKENS = frozenset({"full", "compressed"})
_COMPRESSED = frozenset({"compressed_latent", "compressor"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """What a model keeps for the tokens it has seen.

    Attributes:
        name: What the model is called.
        model_type: The `model_type` of its `config.json`.
        layers: What each decoder layer keeps. MTP layers are not among them.
        context_length: Tokens of the longest request that it was made for.
        dtype: Element type of its weights, as the file names it.
        kv_cache_dtype: Element type of its cache under `auto`.
        mamba_ssm_dtype: Element type of its recurrent state under `auto`.
        mamba_conv_dtype: Element type of what its convolutions keep under `auto`.
        mtp_layers: What its own MTP layers keep, which draft tokens when speculation is on.
        draft_layers: What the layers of draft models beside it keep; see `with_draft`.
    """

    name: str
    model_type: str
    layers: tuple[Layer, ...]
    context_length: int
    dtype: str
    kv_cache_dtype: str
    mamba_ssm_dtype: str = "float32"
    mamba_conv_dtype: str = "bfloat16"
    mtp_layers: tuple[Layer, ...] = ()
    draft_layers: tuple[Layer, ...] = ()
    _kinds: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Keep the layers as tuples, so that the spec can be hashed, and those that are equal as one object."""
        shared: dict[Layer, Layer] = {}
        for name in ("layers", "mtp_layers", "draft_layers"):
            layers = tuple(shared.setdefault(layer, layer) for layer in getattr(self, name))
            object.__setattr__(self, name, layers)
        object.__setattr__(self, "_kinds", kinds_of(self.layers))

    @classmethod
    def from_pretrained(
        cls, source: str | os.PathLike[str] | Mapping[str, Any], *, revision: str | None = None
    ) -> ModelSpec:
        """Read the model that `source` names.

        Args:
            source: A folder with a `config.json`, the file itself, its contents as a dict, a name of the catalog that
                comes with the package (with or without its organisation), or, with the extra `hub`, a Hub id.
            revision: A branch, tag or commit on the Hub; the catalog is then not looked at.

        Raises:
            UnsupportedModelError: There is no such model, it cannot be read, or it keeps something that is not known.
        """
        if isinstance(source, Mapping):
            return cls.from_config(source)
        from poolplan.models.pretrained import read_config

        config, name = read_config(source, revision)
        return cls.from_config(config, name=name)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, name: str | None = None) -> ModelSpec:
        """Read a `config.json` that has been parsed already.

        Raises:
            UnsupportedModelError: A key is missing or wrong, or the model keeps something that is not known.
        """
        if not isinstance(config, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - what users pass is not typed
            raise UnsupportedModelError(f"{name or 'the config'} is not a JSON object", None)
        reader = ConfigReader(config, name or str(config.get("_name_or_path") or config.get("model_type") or "model"))
        layers = read_layers(reader)
        dtype = _dtype(reader)
        own_cache_dtype = dtype if dtype in _SIXTEEN_BITS else "bfloat16"
        if "compressed_latent" in kinds_of(layers):
            # SGLang 0.5.23 keeps the rows of DeepSeek V4 in FP8 unless told otherwise.
            own_cache_dtype = "fp8_e4m3"
        return cls(
            name=reader.name,
            model_type=reader.model_type,
            layers=layers,
            context_length=reader.context_length,
            dtype=dtype,
            kv_cache_dtype=_declared_cache_dtype(reader) or own_cache_dtype,
            mamba_ssm_dtype=_ssm_dtype(reader),
            mtp_layers=read_mtp_layers(reader, layers),
        )

    def with_draft(self, draft: ModelSpec) -> ModelSpec:
        """Return the model with one more draft model beside it, whose layers keep the same tokens."""
        return replace(self, draft_layers=(*self.draft_layers, *draft.layers))

    def drafts_for(self, runtime: RuntimeSpec) -> tuple[Layer, ...]:
        """Return the layers that draft tokens under `runtime`: of draft models, or else the checkpoint's own.

        Raises:
            InvalidOptionError: The algorithm drafts with a model, and there is none.
        """
        algorithm = runtime.speculative_algorithm
        if self.draft_layers or algorithm in (None, "NGRAM"):
            return self.draft_layers
        if not self.mtp_layers or algorithm in ("DFLASH", "STANDALONE"):
            has = "has no MTP layers" if not self.mtp_layers else "drafts with a model of its own"
            raise InvalidOptionError(
                "speculative_algorithm", algorithm, f"{self.name} {has}: pass a draft model (--draft, with_draft)"
            )
        return self.mtp_layers

    @property
    def has_windows(self) -> bool:
        """Whether a layer keeps only the tokens of a window or chunk."""
        return not _WINDOWS.isdisjoint(self._kinds)

    @property
    def has_full_attention(self) -> bool:
        """Whether a layer keeps every token, or entries of all of them."""
        return not _ALL_TOKENS.isdisjoint(self._kinds)

    @property
    def has_compressed_entries(self) -> bool:
        """Whether a layer keeps rows that are key and value at once, or rows that wait to be compressed."""
        return not _COMPRESSED.isdisjoint(self._kinds)

    @property
    def has_recurrent_state(self) -> bool:
        """Whether a layer keeps a state for each request."""
        return "recurrent" in self._kinds


def _ssm_dtype(config: ConfigReader) -> str:
    """SGLang 0.5.23, `mamba_utils`: 32 bits unless `mamba_ssm_dtype` says otherwise (and no other key)."""
    value = config.text.get("mamba_ssm_dtype")
    if value is None:
        return "float32"
    if not isinstance(value, str):
        raise config.error("mamba_ssm_dtype", f"mamba_ssm_dtype={value!r} is not the name of a dtype")
    return value.removeprefix("torch.")


def _dtype(config: ConfigReader) -> str:
    for part in (config.text, config.root):
        for key in ("dtype", "torch_dtype"):
            value = part.get(key)
            if value is not None:
                if not isinstance(value, str):
                    raise config.error(key, f"{key}={value!r} is not the name of a dtype")
                return value.removeprefix("torch.")
    return "bfloat16"


def _declared_cache_dtype(config: ConfigReader) -> str | None:
    """The cache dtype that the checkpoint itself asks for, with scales trained for it; None where it asks for none.

    compressed-tensors and ModelOpt write `kv_cache_scheme`, ModelOpt also `kv_cache_quant_algo`, there or in a file
    `hf_quant_config.json` beside the config.
    """
    parts = (config.root.get("quantization_config"), config.text.get("quantization_config"))
    beside = config.root.get("hf_quant_config")
    parts = (*parts, cast("dict[str, Any]", beside).get("quantization") if isinstance(beside, dict) else None)
    for part in parts:
        if not isinstance(part, dict):
            continue
        part = cast("dict[str, Any]", part)
        scheme = part.get("kv_cache_scheme") or part.get("kv_cache_quant_algo")
        if isinstance(scheme, dict):
            scheme = cast("dict[str, Any]", scheme)
            scheme = {"float": "fp"}.get(str(scheme.get("type")), str(scheme.get("type"))) + str(scheme.get("num_bits"))
        if scheme:
            name = str(scheme).lower()
            # A name that no cache here has is refused by the configurator, unless the operator names another.
            return {"fp8": "fp8_e4m3"}.get(name, name)
    return None

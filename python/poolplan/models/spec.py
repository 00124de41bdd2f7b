"""`ModelSpec`: the facts of one checkpoint, one entry a layer. How a runtime serves it is `RuntimeSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from poolplan.errors import UnsupportedModelError
from poolplan.models.config import ConfigReader
from poolplan.models.registry import read_layers

if TYPE_CHECKING:
    import os

    from poolplan._core import Layer

# Runtimes serve 32-bit checkpoints in 16 bits, and so do they with files that name no type.
_SIXTEEN_BITS = ("bfloat16", "float16")


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
    """

    name: str
    model_type: str
    layers: tuple[Layer, ...]
    context_length: int
    dtype: str
    kv_cache_dtype: str

    def __post_init__(self) -> None:
        """Keep the layers as a tuple, so that the spec can be hashed."""
        object.__setattr__(self, "layers", tuple(self.layers))

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
        return cls(
            name=reader.name,
            model_type=reader.model_type,
            layers=layers,
            context_length=reader.context_length,
            dtype=dtype,
            kv_cache_dtype=_declared_cache_dtype(reader) or (dtype if dtype in _SIXTEEN_BITS else "bfloat16"),
        )

    @property
    def has_windows(self) -> bool:
        """Whether a layer keeps only the tokens of a window or chunk."""
        return any(state.span.tokens is not None for layer in self.layers for state in layer.states)

    @property
    def has_full_attention(self) -> bool:
        """Whether a layer keeps every token."""
        return any(state.span.tokens is None for layer in self.layers for state in layer.states)


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

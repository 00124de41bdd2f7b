"""Typed reading of the keys of a `config.json`. Which keys a family reads is in the family's module."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from poolplan.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

# The keys under which wrappers keep the part that describes the decoder: SGLang 0.5.23's order, then what it lacks.
_TEXT_PARTS = ("thinker_config", "llm_config", "language_config", "text_config", "llm_cfg", "decoder_config")

# No checkpoint comes near; what passes it is no number of anything.
_MAX_NUMBER = 2**31 - 1
_MAX_LAYERS = 100_000

# SGLang 0.5.23, `get_context_length`, in its order; then the names of GPT-2 and its kin.
_CONTEXT_KEYS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
    "n_positions",
    "max_target_positions",
    "context_length",
)
# T5 has relative positions and no limit: the lengths that its kin were trained with (see `encoder.py`). States hold any
# number of tokens: SGLang 0.5.23 serves 2,048 where a file does not say.
_STATES_ONLY = ("mamba", "mamba2", "falcon_mamba", "mamba_ssm", "recurrent_gemma", "rwkv", "rwkv5", "xlstm")
_CONTEXT_DEFAULTS = {"t5": 512, "mt5": 1024, **dict.fromkeys(_STATES_ONLY, 2048)}
# Their positions are already those after scaling (vLLM makes the same exception).
_SCALED_ALREADY = frozenset({"gemma3", "gemma3_text"})
_LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


class ConfigReader:
    """The part of a `config.json` that describes the decoder, with typed access to its keys.

    A key that the file leaves out has the default of its `model_type`'s config class, as in transformers; a key that is
    null is null. Numbers are whole: a bool, a float or text in their place is an error that names the key.

    Attributes:
        name: What the model is called, for messages.
        root: The whole file.
        text: The part that describes the decoder; the root where nothing is nested.
        model_type: The type of the text part.
        architectures: The classes that the file names.
    """

    def __init__(self, root: Mapping[str, Any], name: str) -> None:
        self.name = name
        self.root = root
        self.text = _text_part(root)
        self.model_type = self._model_type()
        named = root.get("architectures")
        self.architectures = tuple(str(entry) for entry in cast("list[Any]", named)) if isinstance(named, list) else ()
        self._defaults = _class_defaults(self.model_type)

    def _model_type(self) -> str:
        value = self.text.get("model_type") or self.root.get("model_type") or ""
        if not value and "ssm_cfg" in self.root:
            # The mamba package writes neither a type nor an architecture.
            return "mamba_ssm"
        if not isinstance(value, str):
            raise self.error("model_type", f"model_type is a {type(value).__name__} and not text")
        return value

    def get(self, *keys: str) -> Any:
        """Return the value under the first of `keys` that has one, or its default; None where it is null."""
        return self._find(*keys)[1]

    def integer(self, *keys: str, low: int = 1) -> int:
        """Return the whole number under the first of `keys` that has one.

        Raises:
            UnsupportedModelError: None has one, or it is not a whole number from `low` to 2^31 - 1.
        """
        value = self.optional_integer(*keys, low=low)
        if value is None:
            raise self.error(keys[0], f"{' or '.join(keys)} is missing")
        return value

    def optional_integer(self, *keys: str, low: int = 1) -> int | None:
        """Return the whole number under the first of `keys` that has one, or None."""
        key, value = self._find(*keys)
        return None if value is None else self.whole(key, value, low=low)

    def _find(self, *keys: str) -> tuple[str, Any]:
        """The first of `keys` that has a value, and the value."""
        for values in (self.text, {} if any(key in self.text for key in keys) else self._defaults):
            for key in keys:
                if values.get(key) is not None:
                    return key, values[key]
        return keys[0], None

    def whole(self, key: str, value: object, *, low: int = 1) -> int:
        """Return `value`, found under `key`, as a whole number."""
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _MAX_NUMBER:
            raise self.error(key, f"{key}={value!r} is not a whole number from {low} to {_MAX_NUMBER}")
        return value

    def layer_flags(self, key: str, value: object, layers: int) -> list[bool]:
        """Return whether there is a 1 for each layer in a list of 0 and 1, found under `key`; it may be longer."""
        flags = cast("list[Any]", value) if isinstance(value, list) else []
        if len(flags) < layers or any(flag not in (0, 1) for flag in flags):
            raise self.error(key, f"{key} does not have a 0 or 1 for each of {layers} layers")
        return [flag == 1 for flag in flags[:layers]]

    def flag(self, key: str) -> bool:
        """Return the bool under `key`; False when it is null or missing."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, f"{key}={value!r} is neither true nor false")
        return bool(value)

    def sequence(self, key: str) -> list[Any] | None:
        """Return the list under `key`, or None."""
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            raise self.error(key, f"{key} is not a list")
        return cast("list[Any] | None", value)

    def mapping(self, key: str) -> dict[str, Any]:
        """Return the object under `key`; an empty one when it is null or missing."""
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.error(key, f"{key} is not an object")
        return cast("dict[str, Any]", value or {})

    def error(self, key: str, message: str) -> UnsupportedModelError:
        """Return the error that names the model and the key to blame."""
        return UnsupportedModelError(f"{self.name}: {message}", key)

    @property
    def num_layers(self) -> int:
        """Decoder layers of the model; MTP layers are not among them."""
        return self.layer_count(*_LAYER_KEYS)

    def layer_count(self, *keys: str) -> int:
        """Return the number of layers under the first of `keys` that has one."""
        layers = self.integer(*keys)
        if layers > _MAX_LAYERS:
            raise self.error(keys[0], f"{keys[0]}={layers} is more than {_MAX_LAYERS}")
        return layers

    @property
    def context_length(self) -> int:
        """Tokens of the longest request that the model was made for.

        SGLang 0.5.23, `get_context_length`: the trained positions, times the factor of a rope scaling that does not say
        itself how many positions it starts from.
        """
        positions = self.optional_integer(*_CONTEXT_KEYS) or _CONTEXT_DEFAULTS.get(self.model_type)
        if positions is None:
            raise self.error("max_position_embeddings", f"{' or '.join(_CONTEXT_KEYS)} is missing")
        scaling = self.get("rope_scaling") or self.get("rope_parameters")
        if not isinstance(scaling, dict):
            return positions
        scaling = cast("dict[str, Any]", scaling)
        kind = scaling.get("rope_type", scaling.get("type"))
        if "original_max_position_embeddings" in scaling or kind == "llama3" or self.model_type in _SCALED_ALREADY:
            return positions
        factor = scaling.get("factor", 1)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < _MAX_NUMBER:
            raise self.error("rope_scaling", f"rope_scaling.factor={factor!r} is not a number above 0")
        numerator, denominator = factor.as_integer_ratio()
        scaled = positions * numerator // denominator
        if not 1 <= scaled <= _MAX_NUMBER:
            raise self.error("rope_scaling", f"rope_scaling.factor={factor!r} makes {scaled} of {positions} positions")
        return scaled


def _text_part(root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that describes the decoder. Vision and audio parts carry the same keys, so nothing is searched for."""
    for key in _TEXT_PARTS:
        part = root.get(key)
        if isinstance(part, dict):
            part = cast("dict[str, Any]", part)
            nested = part.get("text_config")
            return cast("dict[str, Any]", nested) if key == "thinker_config" and isinstance(nested, dict) else part
    return root


def _class_defaults(model_type: str) -> dict[str, Any]:
    defaults = _read_defaults()
    # Old files of multimodal models have the keys of the text part at the top.
    return defaults.get(model_type) or defaults.get(f"{model_type}_text") or {}


@cache
def _read_defaults() -> dict[str, dict[str, Any]]:
    """The defaults of the config classes by `model_type`."""
    return json.loads((Path(__file__).parent / "defaults.json").read_text())["model_types"]

"""From what a user types to a parsed `config.json`: folder, file, catalog, Hub. Its keys are read in `config.py`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from poolplan.errors import UnsupportedModelError

if TYPE_CHECKING:
    import os

_CONFIG = "config.json"
_QUANTIZATION = "hf_quant_config.json"


def read_config(source: str | os.PathLike[str], revision: str | None) -> tuple[dict[str, Any], str]:
    """Return the parsed `config.json` that `source` names, and the model's name.

    Raises:
        UnsupportedModelError: There is no such model, or its file cannot be read.
    """
    path, text = Path(source), str(source)
    if path.is_dir():
        return _read_folder(path), path.resolve().name
    if path.is_file():
        return _read_json(path), path.resolve().parent.name if path.name == _CONFIG else path.stem
    if revision is None:
        for name, entry in catalog().items():
            if text.lower() in (name.lower(), name.lower().rpartition("/")[2]):
                return entry["config"], name
    if text.count("/") == 1 and not text.startswith((".", "/", "~")):
        return _read_hub(text, revision), text
    raise _unknown(text)


@cache
def catalog() -> dict[str, Any]:
    """Return the facts of well-known checkpoints by Hub id: `source`, and the keys of `config` that a planner reads."""
    return json.loads((Path(__file__).parent / "catalog.json").read_text())


def _read_folder(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    if not path.is_file():
        raise UnsupportedModelError(f"the folder {folder} has no {_CONFIG}", None)
    config = _read_json(path)
    quantization = folder / _QUANTIZATION
    return {**config, "hf_quant_config": _read_json(quantization)} if quantization.is_file() else config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        config: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedModelError(f"{path} cannot be read as JSON: {error}", None) from error
    if not isinstance(config, dict):
        raise UnsupportedModelError(f"{path} is not a JSON object", None)
    return cast("dict[str, Any]", config)


def _read_hub(model: str, revision: str | None) -> dict[str, Any]:
    try:
        from huggingface_hub import hf_hub_download  # pyright: ignore[reportUnknownVariableType]
        from huggingface_hub.errors import EntryNotFoundError
    except ImportError:
        message = f"{_unknown(model)}; to read it from the Hub, install poolplan[hub]"
        raise UnsupportedModelError(message, model) from None
    try:
        config = _read_json(Path(hf_hub_download(model, _CONFIG, revision=revision)))
    except UnsupportedModelError:
        raise
    except Exception as error:  # the client raises its own, requests' and the system's errors
        reason = " ".join(str(error).split())
        raise UnsupportedModelError(f"{model} cannot be read from the Hub: {reason}", model) from error
    try:
        quantization = _read_json(Path(hf_hub_download(model, _QUANTIZATION, revision=revision)))
    except EntryNotFoundError:
        return config
    except UnsupportedModelError:
        raise
    except Exception as error:  # as above: what is there and cannot be read must not be left out silently
        reason = " ".join(str(error).split())
        raise UnsupportedModelError(f"{model}: {_QUANTIZATION} cannot be read from the Hub: {reason}", model) from error
    return {**config, "hf_quant_config": quantization}


def _unknown(name: str) -> UnsupportedModelError:
    from difflib import get_close_matches

    names = {alias.lower(): full for full in catalog() for alias in (full, full.rpartition("/")[2])}
    near = [names[match] for match in get_close_matches(name.lower(), names, n=3, cutoff=0.5)]
    known = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else f"the catalog has {len(catalog())} models"
    return UnsupportedModelError(
        f"{name} is no folder, no config.json and no name in the catalog; {known} A folder, a file or a Hub id will do",
        name,
    )

"""Write `models.md`: each `model_type`, what its layers keep, and the configurator that plans it, as the code answers.

    python docs/generate_models.py

What a model keeps is read from a real checkpoint's file (`tests/facts/configs`) where there is one, else from the
defaults of the config class, else from the keys of a plain decoder.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolplan import ModelSpec, RuntimeSpec, UnknownModelWarning, UnsupportedModelError, create_memory_pool_configurator
from poolplan.models import registered_models
from poolplan.models.config import ConfigReader
from poolplan.models.registry import registered_family
from poolplan.models.unplanned import refused

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
OUTPUT = Path(__file__).parent / "models.md"
HEAD = """# Models

Every architecture that is read, what its layers keep, and the class that plans it. Printed by
`python docs/generate_models.py` and compared by a test. A window or chunk is pooled apart unless
`disable_hybrid_swa_memory` is set, and by `SWARequestCapPoolConfigurator` where requests are limited.

A `model_type` that is not here is planned with a warning if its keys describe a plain decoder, and refused with the key
that says otherwise if they do not. A vision or audio part adds nothing to the cache: the part that describes the
decoder is found by its name (`text_config`, `llm_config`, `thinker_config.text_config`, …).

"""
TAIL = """
## Your own architecture

Register a function that returns what each layer keeps, for the names that its `config.json` has in `architectures` or
`model_type`; say in `reads` which of the keys that hint at special state it reads, as any other such key is an error.

```python
from poolplan import Attention, Layer, ModelSpec, RecurrentState, Span, StateTensor, register_model
from poolplan.models import ConfigReader


@register_model("my_hybrid", reads=["sliding_window", "state_size"])
def my_hybrid(config: ConfigReader) -> list[Layer]:
    heads, dim = config.integer("num_attention_heads"), config.integer("head_dim")
    window = Attention(num_kv_heads=heads, head_dim=dim, span=Span.window(config.integer("sliding_window")))
    state = RecurrentState(tensors=[StateTensor(num_heads=heads, head_elements=dim * config.integer("state_size"))])
    return [Layer(states=[window]) if index % 4 == 3 else Layer(states=[state]) for index in range(config.num_layers)]


model = ModelSpec.from_config(
    {
        "model_type": "my_hybrid",
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "head_dim": 64,
        "state_size": 128,
        "sliding_window": 512,
        "max_position_embeddings": 8192,
    }
)
assert model.has_windows and model.has_recurrent_state
```
"""
KINDS = {
    "Attention": "heads",
    "LatentAttention": "latent",
    "IndexKey": "index key",
    "CompressedLatent": "key-and-value row",
    "CompressorState": "compressor ring",
    "RecurrentState": "recurrent state",
}
PLAIN = {
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}


def table() -> str:
    """Return the page."""
    examples = dict(_examples())
    rows = ["| model_type or architecture | each layer keeps | planned by |", "|---|---|---|"]
    rows += [f"| `{name}` | {' | '.join(_answer(name, examples))} |" for name in registered_models()]
    return HEAD + "\n".join(rows) + "\n" + TAIL


def _answer(name: str, examples: dict[str, dict[str, Any]]) -> tuple[str, str]:
    # An architecture is looked up before a model_type.
    bare = {"architectures": [name]} if name[0].isupper() else {"model_type": name}
    family = registered_family(name)
    of_kin = [examples[other] for other in (name, *sorted(family.names)) if other in examples]
    for config in (*of_kin[:1], bare, PLAIN | bare, *of_kin):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnknownModelWarning)
                model = ModelSpec.from_config(config)
        except UnsupportedModelError:
            continue
        page = 256 if model.has_compressed_entries else 64
        configurator = create_memory_pool_configurator(model, RuntimeSpec(page_size=page))
        return _kinds(model), f"`{type(configurator).__name__}`"
    if family.layers_of is refused:
        return "a state that is not known exactly", "refused"
    summary = (family.layers_of.__doc__ or "").strip().split("\n")[0].removeprefix("Return ").rstrip(".")
    return summary, "as its file says"


def _kinds(model: ModelSpec) -> str:
    """Every kind of state with its span, and how many layers keep it."""
    counts: dict[str, int] = {}
    for layer in model.layers:
        kinds = {f"{KINDS[type(state).__name__]}{_span(state.span.kind)}" for state in layer.states} or {"nothing"}
        for kind in kinds:
            counts[kind] = counts.get(kind, 0) + 1
    layers = len(model.layers)
    return ", ".join(
        kind if count == layers else f"{kind} ({count} of {layers})" for kind, count in sorted(counts.items())
    )


def _span(kind: str) -> str:
    names = {"window": " in a window", "chunk": " in a chunk", "encoder": " of an encoder", "compressed": " of entries"}
    return names.get(kind, "")


def _examples() -> Iterator[tuple[str, dict[str, Any]]]:
    """A real file for each name that one has; the first in order of the alphabet."""
    files = sorted((ROOT / "tests" / "facts" / "configs").glob("*.json"), reverse=True)
    for path in files:
        config = json.loads(path.read_text(encoding="utf-8"))
        reader = ConfigReader(config, path.stem)
        for name in (*reader.architectures, str(config.get("model_type")), reader.model_type):
            yield name, config


if __name__ == "__main__":
    OUTPUT.write_text(table(), encoding="utf-8")

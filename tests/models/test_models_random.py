"""Files that are wrong in random ways: each gives a plan that fits, or one of our errors, and never anything else."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolplan import ModelSpec, PoolPlanError, RuntimeSpec, UnknownModelWarning, create_memory_pool_configurator
from poolplan.models import registered_models
from poolplan.models.registry import HINTS

CONFIGS: list[dict[str, Any]] = [
    json.loads(path.read_text()) for path in sorted((Path(__file__).parents[1] / "facts" / "configs").glob("*.json"))
]
PLAIN = {
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
BARE: list[dict[str, Any]] = [{"model_type": name} for name in registered_models()]
FILES = CONFIGS + BARE + [PLAIN | file for file in BARE]
KEYS = sorted({*HINTS, *(key for config in CONFIGS for key in (*config, *config.get("text_config", {})))})
NUMBERS = [0, -1, 1, 2, 3, 1.5, -0.5, float("nan"), float("inf"), 1e300, 2**31 - 1, 2**31, 10**30]
WORDS = ["", "x", "mamba", "M*-E", "full_attention", "auto", None, True, False, b"x"]
LISTS = [[], [None], [1], [0, 1], [[1]], [{"a": 1}], ["mamba"] * 4, ["hybrid"] * 3, [1, 0] * 50]
OBJECTS = [{}, {"a": 1}, {"num_heads": 2}, {"layer": "Mamba2"}, {"0": {"head_dim": 7}}]


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    """A real file, or what a class fills in, with up to three keys that are gone, new or something else."""
    config = copy.deepcopy(draw(st.sampled_from(FILES)))
    for _ in range(draw(st.integers(1, 3))):
        nested = config.get("text_config")
        part = cast("dict[str, Any]", nested) if isinstance(nested, dict) and draw(st.booleans()) else config
        key = draw(st.sampled_from([*part, *KEYS]) if draw(st.booleans()) else st.sampled_from([*part] or KEYS))
        value = copy.deepcopy(draw(st.sampled_from([*NUMBERS, *WORDS, *LISTS, *OBJECTS, ...])))
        if value is ...:
            part.pop(key, None)
        else:
            part[key] = value
    return config


# With HYPOTHESIS_PROFILE=slow 100,000 examples.
@pytest.mark.slow
@given(files(), st.sampled_from([None, "NGRAM", "NEXTN"]))
def test_a_file_that_is_wrong_gives_a_plan_or_one_of_our_errors(config: dict[str, Any], algorithm: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownModelWarning)
        try:
            model = ModelSpec.from_config(config)
            runtime = RuntimeSpec(page_size=256, speculative_algorithm=algorithm)
            configurator = create_memory_pool_configurator(model, runtime)
            plan = configurator.calculate_pool_sizes(60 << 30)
        except PoolPlanError:
            return
    assert plan.total_bytes <= 60 << 30

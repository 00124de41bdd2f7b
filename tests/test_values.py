"""What all value classes share: repr, equality, hash, pickling, copies, patterns. Their meaning is tested elsewhere."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest

import poolplan
from poolplan import (
    Attention,
    CompressedLatent,
    CompressorState,
    IndexKey,
    InvalidOptionError,
    LatentAttention,
    Layer,
    MemoryPoolConfig,
    ModelSpec,
    PoolSize,
    RecurrentState,
    RuntimeSpec,
    Span,
    StateTensor,
    create_memory_pool_configurator,
)

POOL = PoolSize(name="full", slots=64, padding_slots=1, page_size=1, cell_bytes=4096, bytes=266240, layers=range(32))
STATE = RecurrentState(
    tensors=[
        StateTensor(num_heads=32, head_elements=384, role="conv", sharding="whole"),
        StateTensor(num_heads=32, head_elements=16384),
    ]
)
MODEL = ModelSpec(
    name="two layers",
    model_type="llama",
    layers=(
        Layer(states=[Attention(num_kv_heads=8, head_dim=128)]),
        Layer(states=[Attention(num_kv_heads=8, head_dim=128, v_head_dim=64, span=Span.window(128)), STATE]),
    ),
    context_length=4096,
    dtype="bfloat16",
    kv_cache_dtype="bfloat16",
)

VALUES: dict[str, tuple[Any, dict[str, Any]]] = {
    "Span": (Span.window(128), {"tokens": 256}),
    "Attention": (Attention(num_kv_heads=8, head_dim=192, v_head_dim=128, span=Span.chunk(8192)), {"head_dim": 64}),
    "LatentAttention": (LatentAttention(kv_lora_rank=512, qk_rope_head_dim=64), {"qk_rope_head_dim": 0}),
    "IndexKey": (IndexKey(head_dim=128), {"format": "bfloat16"}),
    "pooled IndexKey": (IndexKey(head_dim=128, span=Span.compressed(4)), {"span": Span.full()}),
    "CompressedLatent": (
        CompressedLatent(qk_nope_head_dim=448, qk_rope_head_dim=64, span=Span.compressed(4)),
        {"span": Span.window(128)},
    ),
    "CompressorState": (CompressorState(compress_ratio=4, row_elements=2048), {"compress_ratio": 128}),
    "StateTensor": (STATE.tensors[0], {"sharding": "groups"}),
    "RecurrentState": (STATE, {"tensors": STATE.tensors[:1]}),
    "encoder Span": (Span.encoder(1500), {"tokens": 1}),
    "sparse LatentAttention": (LatentAttention(kv_lora_rank=512, qk_rope_head_dim=64, sparse=True), {"sparse": False}),
    "Layer": (MODEL.layers[1], {"states": ()}),
    "PoolSize": (POOL, {"slots": 65}),
    "MemoryPoolConfig": (
        MemoryPoolConfig(
            max_total_num_tokens=64,
            max_running_requests=32,
            full_max_total_num_tokens=64,
            available_bytes=300000,
            total_bytes=266240,
            pools=[POOL],
        ),
        {"max_running_requests": 16},
    ),
    "planned MemoryPoolConfig": (
        create_memory_pool_configurator(MODEL, RuntimeSpec(page_size=16)).calculate_pool_sizes(1 << 30),
        {"max_running_requests": 16},
    ),
    "RuntimeSpec": (RuntimeSpec(page_size=64, swa_full_tokens_ratio=0.7), {"tp_size": 8}),
}
each_value = pytest.mark.parametrize(("value", "changes"), VALUES.values(), ids=VALUES.keys())


@each_value
def test_repr_evaluates_back_to_an_equal_value(value: Any, changes: dict[str, Any]) -> None:
    names = vars(poolplan) | {"Fraction": Fraction}
    assert eval(repr(value), names) == value


@each_value
def test_equal_values_have_equal_hashes_and_survive_pickling_and_copying(value: Any, changes: dict[str, Any]) -> None:
    for twin in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert twin == value
        assert hash(twin) == hash(value)
        assert type(twin) is type(value)


@each_value
def test_replace_changes_the_named_fields_only(value: Any, changes: dict[str, Any]) -> None:
    replace = copy.replace if sys.version_info >= (3, 13) else _dunder_replace
    changed = replace(value, **changes)
    assert changed != value
    assert replace(changed, **{name: getattr(value, name) for name in changes}) == value
    with pytest.raises(TypeError):
        replace(value, no_such_field=1)


def _dunder_replace(value: Any, **changes: Any) -> Any:
    return dataclasses.replace(value, **changes) if isinstance(value, RuntimeSpec) else value.__replace__(**changes)


@each_value
def test_values_are_frozen_and_differ_from_everything_else(value: Any, changes: dict[str, Any]) -> None:
    assert value != "text"
    assert value != None  # noqa: E711 - the operator is what is tested
    with pytest.raises((AttributeError, TypeError)):
        setattr(value, next(iter(changes)), 1)


def test_a_pattern_matches_the_fields() -> None:
    match Attention(num_kv_heads=8, head_dim=128, span=Span.window(512)):
        case Attention(num_kv_heads=heads, span=Span("window", tokens)):
            assert (heads, tokens) == (8, 512)
        case _:
            pytest.fail("the pattern does not match")


def test_the_public_classes_name_the_public_module() -> None:
    assert {type(value).__module__ for value, _ in VALUES.values()} <= {"poolplan", "poolplan.configurators.runtime"}


def test_a_configurator_survives_pickling() -> None:
    configurator = create_memory_pool_configurator(MODEL, RuntimeSpec(page_size=16))
    twin = pickle.loads(pickle.dumps(configurator))
    assert twin == configurator
    assert hash(twin) == hash(configurator)
    assert twin != create_memory_pool_configurator(MODEL, RuntimeSpec())
    assert twin.calculate_pool_sizes(1 << 30) == configurator.calculate_pool_sizes(1 << 30)
    assert repr(configurator).startswith("MambaPoolConfigurator(model=ModelSpec(")


def test_threads_share_a_configurator() -> None:
    configurator = create_memory_pool_configurator(MODEL, RuntimeSpec(page_size=16))
    budgets = [(1 << 28) + i * 12345 for i in range(400)]
    alone = [configurator.calculate_pool_sizes(budget) for budget in budgets]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(configurator.calculate_pool_sizes, budgets)) == alone


@pytest.mark.parametrize(
    "number", [True, 1.0, "8", None, -1, 0, 2**24 + 1, 2**32, 2**64, np.float64(8), float("nan")], ids=repr
)
def test_a_dimension_is_a_whole_number_from_1_to_2_24(number: Any) -> None:
    with pytest.raises(InvalidOptionError, match="head_dim"):
        Attention(num_kv_heads=8, head_dim=number)


def test_numpy_integers_are_numbers() -> None:
    assert Attention(num_kv_heads=np.int64(8), head_dim=np.uint8(128)) == Attention(num_kv_heads=8, head_dim=128)
    configurator = create_memory_pool_configurator(MODEL, RuntimeSpec(page_size=cast("Any", np.int32(16))))
    assert configurator.calculate_pool_sizes(np.uint64(1 << 30)) == configurator.calculate_pool_sizes(1 << 30)


@pytest.mark.parametrize(
    ("kind", "tokens"), [("full", 8), ("window", None), ("chunk", None), ("sliding", 8), ("window", 0), ("window", -1)]
)
def test_a_span_has_tokens_exactly_when_it_is_bounded(kind: str, tokens: int | None) -> None:
    with pytest.raises(InvalidOptionError):
        Span(kind=kind, tokens=tokens)


def test_a_layer_keeps_states_only() -> None:
    with pytest.raises(TypeError, match=r"poolplan\.State, not 'attention'"):
        Layer(states=["attention"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]

"""Plans of a whole grid of options and budgets, as columns for pandas, Polars or Arrow.

What one configurator plans at once is in Rust; here is the cross product of the options. NumPy is imported on use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, Literal, cast

from poolplan.configurators import RuntimeSpec, create_memory_pool_configurator
from poolplan.errors import InvalidOptionError, PoolPlanError

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray

    from poolplan._core import MemoryPoolConfigurator
    from poolplan.models import ModelSpec

Columns = dict[str, "NDArray[Any]"]

_BUDGETS = "available_bytes"
# An option with the name of a result.
_RENAMED = {"max_running_requests": "option_max_running_requests"}


def sweep(model: ModelSpec, grid: Mapping[str, Any], *, errors: Literal["raise", "zero"] = "raise") -> Columns:
    """Return the plans of `model` for every combination of the options and budgets in `grid`.

        >>> from poolplan import ModelSpec
        >>> model = ModelSpec.from_pretrained("openai/gpt-oss-120b")
        >>> budgets = [size << 30 for size in (20, 40, 60)]
        >>> plans = sweep(model, {"tp_size": [1, 2, 4], "page_size": 64, "available_bytes": budgets})
        >>> plans["max_total_num_tokens"].reshape(3, 3)[0].tolist()
        [307328, 627776, 941760]

    Args:
        model: What is served.
        grid: Options of `RuntimeSpec` by name, each as one value or several, and `available_bytes`: budgets, bytes.
        errors: What becomes of a combination that is refused: an error, or rows of 0.

    Returns:
        Arrays of one length by name: the options as they were given, `available_bytes`, and what
        `calculate_pool_sizes_batch` returns. As that has `max_running_requests` too, which are served, those that are
        asked for are in `option_max_running_requests`. Rows are in the order of nested loops over the grid, budgets
        innermost. A pool that a combination does not have has 0 slots; all numbers of a budget that is too small are 0.

    Raises:
        InvalidOptionError: An option that there is not, or a value that is not allowed.
        PoolPlanError: What `create_memory_pool_configurator` raises, if `errors` says so.
    """
    (columns,) = iter_sweep(model, grid, chunk_rows=None, errors=errors)
    return columns


def iter_sweep(
    model: ModelSpec,
    grid: Mapping[str, Any],
    *,
    chunk_rows: int | None = 1 << 20,
    errors: Literal["raise", "zero"] = "raise",
) -> Iterator[Columns]:
    """Yield what `sweep` returns in chunks of at most `chunk_rows` rows, for grids that do not fit memory.

    All chunks have the same columns. Every combination is looked at twice, first for the pools that it has.

    Args:
        model: As for `sweep`.
        grid: As for `sweep`.
        chunk_rows: The most rows of a chunk; None for one chunk.
        errors: As for `sweep`.

    Raises:
        PoolPlanError: As `sweep`, before the first chunk.
    """
    if errors not in ("raise", "zero"):
        raise InvalidOptionError("errors", repr(errors), "pass 'raise' or 'zero'")
    if chunk_rows is not None and chunk_rows < 1:
        raise InvalidOptionError("chunk_rows", chunk_rows, "pass a whole number of at least 1")
    options, budgets = _axes(grid)
    names: dict[str, None] = {}
    for configurator in _configurators(model, options, errors):
        names |= dict.fromkeys(_plans(configurator, budgets[:1]))
    most = len(budgets) if chunk_rows is None else chunk_rows
    pending: list[_Part] = []
    rows = 0
    for index, configurator in enumerate(_configurators(model, options, errors)):
        for start in range(0, len(budgets), max(1, most)):
            part = budgets[start : start + most]
            if chunk_rows is not None and rows + len(part) > chunk_rows:
                yield _chunk(pending, options, names)
                pending, rows = [], 0
            pending.append((index, part, _plans(configurator, part)))
            rows += len(part)
    if pending or chunk_rows is None:
        yield _chunk(pending, options, names)


# The combination, its budgets, and what was planned for them.
_Part = tuple[int, "NDArray[Any]", "dict[str, NDArray[int64]]"]


def _axes(grid: Mapping[str, Any]) -> tuple[dict[str, tuple[Any, ...]], NDArray[Any]]:
    """The options with their values, and the budgets."""
    import numpy as np

    options = {name: _values(value) for name, value in grid.items() if name != _BUDGETS}
    known = {option.name for option in fields(RuntimeSpec)}
    for name, values in options.items():
        if name not in known:
            raise InvalidOptionError(name, repr(values), "pass options of RuntimeSpec, and available_bytes")
    if _BUDGETS not in grid:
        raise InvalidOptionError(_BUDGETS, "None", "pass the budgets to plan")
    return options, np.atleast_1d(np.asarray(grid[_BUDGETS])).ravel()


def _plans(configurator: MemoryPoolConfigurator | None, budgets: NDArray[Any]) -> dict[str, NDArray[int64]]:
    return {} if configurator is None else configurator.calculate_pool_sizes_batch(budgets)


def _values(value: Any) -> tuple[Any, ...]:
    """One value or several as several."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return (value,)
    values = cast("Any", value)
    return tuple(values.tolist() if hasattr(values, "tolist") else values)


def _configurators(
    model: ModelSpec, options: Mapping[str, tuple[Any, ...]], errors: str
) -> Iterator[MemoryPoolConfigurator | None]:
    """The configurator of each combination; None for one that is refused."""
    for combination in product(*options.values()):
        yield _configurator(model, dict(zip(options, combination, strict=True)), errors)


def _configurator(model: ModelSpec, options: dict[str, Any], errors: str) -> MemoryPoolConfigurator | None:
    try:
        return create_memory_pool_configurator(model, RuntimeSpec(**options))
    except PoolPlanError:
        if errors == "raise":
            raise
        return None


def _chunk(parts: list[_Part], options: Mapping[str, tuple[Any, ...]], names: Iterable[str]) -> Columns:
    import numpy as np

    lengths = np.array([len(budgets) for _, budgets, _ in parts], dtype=np.int64)
    combinations = np.array([index for index, _, _ in parts], dtype=np.int64)
    columns: Columns = {}
    # The index of a combination has a digit for each option, the last option's lowest.
    place = prod(len(values) for values in options.values())
    for name, values in options.items():
        place //= max(1, len(values))
        digits = combinations // max(1, place) % max(1, len(values))
        columns[_RENAMED.get(name, name)] = np.repeat(_labels(values)[digits], lengths)
    columns[_BUDGETS] = _joined([budgets for _, budgets, _ in parts])
    for name in names:
        columns[name] = _joined([planned.get(name, np.zeros(len(part), np.int64)) for _, part, planned in parts])
    return columns


def _labels(values: tuple[Any, ...]) -> NDArray[Any]:
    """The values as an array: of their own type where all have one that NumPy has too, else of objects."""
    import numpy as np

    kinds: set[type] = set(map(type, values))
    if len(kinds) == 1 and kinds <= {bool, int, float, str}:
        return np.array(values)
    labels = np.empty(len(values), dtype=object)
    labels[:] = values
    return labels


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    import numpy as np

    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)

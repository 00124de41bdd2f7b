"""Reports as tables for people. What is in a report is decided in `report.py`."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from poolplan.cli.size import format_size


def print_plan(report: dict[str, Any]) -> None:
    """Print every pool, the total, what is left and why, and what that means for requests."""
    console = Console()
    budget = report["available_bytes"]
    console.print(Text(f"{report['model']} · {report['configurator']} · {report['kv_cache_dtype']} cache", style="bold"))
    table = Table(*["pool", "layers"])
    for column in ("cell", "slots", "padding", "bytes", "", "share"):
        table.add_column(column, justify="right")
    for pool in report["pools"]:
        table.add_row(
            pool["name"],
            _ranges(pool["layers"]),
            f"{pool['cell_bytes']:,} B",
            f"{pool['slots']:,}",
            f"{pool['padding_slots']:,}",
            *_amount(pool["bytes"], budget),
        )
    table.add_section()
    table.add_row("total", "", "", "", "", *_amount(report["total_bytes"], budget), style="bold")
    table.add_row("unused", "", "", "", "", *_amount(report["unused_bytes"], budget))
    table.add_row("budget", "", "", "", "", *_amount(budget, budget))
    console.print(table)
    fit = report["concurrent_requests"]
    held = sum(report["request_bytes"].values())
    lines = {
        "max_total_num_tokens": f"{report['max_total_num_tokens']:,}",
        "max_running_requests": f"{report['max_running_requests']:,}",
        "unused because": report["unused_because"],
        "requests at once": f"{fit['requests']:,} of {fit['request_tokens']:,} tokens, bound by the {fit['bound_by']} pool; "
        f"each holds {format_size(held)}",
    }
    for name, value in lines.items():
        console.print(Text.assemble((f"{name}: ", "bold"), value), highlight=False)
    for note in report["notes"]:
        console.print(Text.assemble(("note: ", "yellow"), note), highlight=False)


def print_layers(report: dict[str, Any]) -> None:
    """Print what each layer keeps; equal layers in a row take one line."""
    console = Console()
    title = f"{report['model']} ({report['model_type']}) · {report['kv_cache_dtype']} cache · tp {report['tp_size']}"
    console.print(Text(title, style="bold"))
    table = Table("layers", "state", "span")
    table.add_column("cell", justify="right")
    for _, run in groupby(report["layers"], key=lambda layer: layer["states"]):
        layers = list(run)
        ranges = _ranges([layer["layer"] for layer in layers])
        for state in layers[0]["states"] or [None]:
            table.add_row(ranges, *(_state_cells(state) if state else ("none", "", "0 B")))
            ranges = ""
    console.print(table)
    for span, cell in report["cell_bytes"].items():
        if cell:
            console.print(f"all {span} states: {cell:,} bytes a slot on each rank", highlight=False)


def _state_cells(state: dict[str, Any]) -> tuple[str, str, str]:
    span, tokens = state["span"]["kind"], state["span"]["tokens"]
    if state["kind"] == "latent":
        shape = f"latent {state['kv_lora_rank']} + {state['qk_rope_head_dim']}"
    else:
        value = "" if state["v_head_dim"] == state["head_dim"] else f" + {state['v_head_dim']}"
        shape = f"{state['num_kv_heads']} KV heads of {state['head_dim']}{value}"
    return shape, span if tokens is None else f"{span} of {tokens:,}", f"{state['cell_bytes']:,} B"


def _amount(number: int, budget: int) -> tuple[str, str, str]:
    """Exact bytes, the same for the eye, and tenths of a percent of the budget, rounded down."""
    tenths = number * 1000 // max(budget, 1)
    return f"{number:,}", format_size(number), f"{tenths // 10}.{tenths % 10}%"


def _ranges(numbers: list[int]) -> str:
    """Return `0-4, 6` for [0, 1, 2, 3, 4, 6], and only the count of what takes more than three ranges."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    if len(runs) > 3:  # noqa: PLR2004 - a column's width
        return f"{len(numbers)} layers"
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)

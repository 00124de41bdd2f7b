"""Reports as tables for people. What is in a report is decided in `report.py`."""

from __future__ import annotations

import sys
from fractions import Fraction
from itertools import groupby, pairwise
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from poolplan.cli.size import format_size

_MOST_RANGES = 3  # what a column has room for
_FILE_WIDTH = 120
_WIDE = 96  # what all columns of a plan need


def print_memory(report: dict[str, Any]) -> None:
    """Print each number that was read of the device and of the host, and in one line what binds."""
    console = _console()
    shown: dict[str, dict[str, Any] | None] = {"device": report["device"], "host": report["host"]}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("memory", "what"):
        table.add_column(column)
    for column in ("bytes", ""):
        table.add_column(column, justify="right", no_wrap=True)
    for name, values in shown.items():
        for key, value in (values or {}).items():
            if key.endswith("_bytes") and value is not None:
                table.add_row(name, key.removesuffix("_bytes").replace("_", " "), f"{value:,}", format_size(value))
                name = ""
        table.add_section()
    console.print(table)
    for name, values in shown.items():
        binding = values["source"] if values else f"none: {report['why_no_device']}"
        console.print(Text.assemble((f"{name}: ", "bold"), binding))
    console.print(Text.assemble(("host pools: ", "bold"), f"{report['host']['budget_bytes']:,} bytes for one rank"))


def print_plan(report: dict[str, Any]) -> None:
    """Print every pool, the total, what is left and why, and what that means for requests."""
    console = _console()
    _print_pools(console, _title(report), report)
    if report["host"]:
        title = f"host tier · {_decimal(report['host']['hicache_ratio'])} slots for each device slot"
        _print_pools(console, Text(title, "bold"), report["host"])
    fit, costs = report["concurrent_requests"], (report["bytes_per_token"], report["bytes_per_request"])
    lines = {
        "max_total_num_tokens": f"{report['max_total_num_tokens']:,}",
        "max_running_requests": f"{report['max_running_requests']:,}",
        "requests at once": (
            f"{fit['requests']:,} of {fit['request_tokens']:,} tokens, bound by the {fit['bound_by']} pool"
        ),
        "costs": f"{costs[0]:,} bytes a token, and {costs[1]:,} bytes a request besides",
        "unused because": report["unused_because"],
    }
    for work in report["workloads"]:
        lines[f"requests of {work['input_tokens']:,}+{work['output_tokens']:,}"] = (
            f"{work['requests']:,} at once, bound by the {work['bound_by']} pool "
            f"({work['prompts']:,} by their prompts alone)"
        )
    for name, value in lines.items():
        console.print(Text.assemble((f"{name}: ", "bold"), value))
    for note in report["notes"]:
        console.print(Text.assemble(("note: ", "yellow"), note))


def _print_pools(console: Console, title: Text, plan: dict[str, Any]) -> None:
    budget = plan["available_bytes"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for column in ("pool", "layers"):
        table.add_column(column)
    columns = ("cell", "slots", "padding", "bytes", "", "share")
    shown = [column for column in columns if console.width >= _WIDE or column not in ("padding", "")]
    for column in shown:
        table.add_column(column, justify="right", no_wrap=True)

    def add_row(name: str, layers: str, cells: tuple[str, ...], style: str | None = None) -> None:
        cells = tuple(cell for column, cell in zip(columns, cells, strict=True) if column in shown)
        table.add_row(name, layers, *cells, style=style)

    for pool in plan["pools"]:
        counts = tuple(f"{pool[key]:,}" for key in ("cell_bytes", "slots", "padding_slots"))
        add_row(pool["name"], _ranges(pool["layers"]), counts + _amount(pool["bytes"], budget))
    table.add_section()
    for name in ("total", "unused", "available"):
        amounts = _amount(plan[f"{name}_bytes"], budget)
        add_row(name, "", ("", "", "", *amounts), "bold" if name == "total" else None)
    console.print(table)


def print_layers(report: dict[str, Any]) -> None:
    """Print what each layer keeps; equal layers in a row take one line."""
    console = _console()
    table = Table(
        "layers", "state", "span", box=box.SIMPLE_HEAD, pad_edge=False, title=_title(report), title_justify="left"
    )
    table.add_column("cell", justify="right", no_wrap=True)
    for _, run in groupby(report["layers"], key=lambda layer: layer["states"]):
        layers = list(run)
        ranges = _ranges([layer["layer"] for layer in layers])
        for state in layers[0]["states"] or [None]:
            table.add_row(ranges, *(_state_cells(state) if state else ("none", "", "0")))
            ranges = ""
    console.print(table)
    for span, cell in report["cell_bytes"].items():
        if cell:
            console.print(f"all {span} states: {cell:,} bytes a slot on each rank")


def _state_cells(state: dict[str, Any]) -> tuple[str, str, str]:
    span, tokens = state["span"]["kind"], state["span"]["tokens"]
    shape = _shape(state)
    return shape, span if tokens is None else f"{span} of {tokens:,}", f"{state['cell_bytes']:,}"


def _shape(state: dict[str, Any]) -> str:
    """What one state is, in a few words."""
    if state["kind"] == "latent":
        return f"{'sparse ' if state['sparse'] else ''}latent {state['kv_lora_rank']} + {state['qk_rope_head_dim']}"
    if state["kind"] == "index_key":
        return f"index key of {state['head_dim']} ({state['format']})"
    if state["kind"] == "compressed_latent":
        return f"key and value {state['qk_nope_head_dim']} + {state['qk_rope_head_dim']}"
    if state["kind"] == "compressor":
        return f"ring of {state['row_elements']:,} elements a row, for entries of {state['compress_ratio']}"
    if state["kind"] == "recurrent":
        tensors = (f"{t['role']} {t['num_heads']:,} x {t['head_elements']:,}" for t in state["tensors"])
        return f"state: {', '.join(tensors)}"
    value = "" if state["v_head_dim"] == state["head_dim"] else f" + {state['v_head_dim']}"
    return f"{state['num_kv_heads']} KV heads of {state['head_dim']}{value}"


def _amount(number: int, budget: int) -> tuple[str, str, str]:
    """Exact bytes, the same for the eye, and tenths of a percent of the budget, rounded down."""
    tenths = number * 1000 // max(budget, 1)
    return f"{number:,}", format_size(number), f"{tenths // 10}.{tenths % 10}%"


def _decimal(ratio: str) -> str:
    """An exact ratio to three digits, rounded down."""
    thousandths = int(Fraction(ratio) * 1000)
    return f"{thousandths // 1000}.{thousandths % 1000:03d}"


def _ranges(numbers: list[int]) -> str:
    """Return `0-4, 6` for [0, 1, 2, 3, 4, 6], `1-9 by 2` for even steps, and a count of what takes more words."""
    steps = {b - a for a, b in pairwise(numbers)}
    if len(steps) == 1 and steps != {1}:
        return f"{numbers[0]}-{numbers[-1]} by {steps.pop()}"
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    if len(runs) > _MOST_RANGES:
        return f"{len(numbers)} layers"
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _title(report: dict[str, Any]) -> Text:
    planned_by = report.get("configurator", report["model_type"])
    return Text(f"{report['model']} · {planned_by} · {report['kv_cache_dtype']} cache · tp {report['tp_size']}", "bold")


def _console() -> Console:
    """A console that colours no numbers, and does not fold lines that go to a file or another program."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _FILE_WIDTH)

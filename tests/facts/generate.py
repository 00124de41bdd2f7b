"""Write `sglang_plans.csv` from the answers of SGLang 0.5.23, kept as JSON lines.

The answers come from the SGLang 0.5.23 wheel on PyPI: its own `ModelConfig`, `KVCacheConfigurator` and pool configurators,
run on a CPU for each config, TP size, cache dtype, page size and budget. Kept are the models that poolplan reads (no
`refused_key` in `models.csv`); numbers stay as they were printed.

    python tests/facts/generate.py FOLDER_OF_ANSWERS
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

FACTS = Path(__file__).parent
BUDGETS = {"8GiB": 8 << 30, "20GiB": 20 << 30, "60GiB": 60 << 30}
# Column to key of an answer.
COLUMNS = {
    "config": "config",
    "tp_size": "tp",
    "kv_cache_dtype": "kv_cache_dtype",
    "page_size": "page_size",
    "class": "class",
    "context_length": "context_len",
    "cell_bytes": "cell_size",
    "full_cell_bytes": "full_per_token",
    "swa_cell_bytes": "swa_per_token",
}
PLAN = (
    "available_bytes",
    "max_total_num_tokens",
    "full_max_total_num_tokens",
    "swa_max_total_num_tokens",
    "max_running_requests",
    "max_mamba_cache_size",
)


def main() -> None:
    """Write the file beside this one."""
    parser = argparse.ArgumentParser(description="Write sglang_plans.csv.")
    parser.add_argument("folder", type=Path, help="folder with sglang-0.5.23.jsonl")
    lines = (parser.parse_args().folder / "sglang-0.5.23.jsonl").read_text(encoding="utf-8").splitlines()
    models = csv.DictReader((FACTS / "models.csv").read_text(encoding="utf-8").splitlines())
    read = {model["config"] for model in models if not model["refused_key"]}
    rows = [row for row in map(row_of, lines) if row["config"] in read]
    with (FACTS / "sglang_plans.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*COLUMNS, "state_bytes", *BUDGETS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def row_of(line: str) -> dict[str, str]:
    """Return one answer as a row."""
    answer: dict[str, Any] = json.loads(line)
    row = {column: str(answer.get(key, "")) for column, key in COLUMNS.items()}
    row["config"] = row["config"].removesuffix(".json")
    row["state_bytes"] = str(answer.get("mamba", {}).get("bytes_per_request", ""))
    plans: dict[int, dict[str, Any]] = {plan["available_bytes"]: plan for plan in answer["plans"]}
    for column, budget in BUDGETS.items():
        row[column] = ":".join(str(plans[budget].get(key, "")) for key in PLAN)
    return row


if __name__ == "__main__":
    main()

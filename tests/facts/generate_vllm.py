"""Write `vllm_layers.csv` from the answers of vLLM 0.33.0, kept as JSON lines.

The answers come from the vLLM 0.33.0 wheel on PyPI: its own model class of each config, built without weights on a CPU
for one rank, in bfloat16 and without the file's quantization; each layer's `KVCacheSpec` is what that class returned. A
row is one kind of layer of a config. `bytes_per_token` and `state_bytes` are empty where the page is padded.

    python tests/facts/generate_vllm.py FOLDER_OF_ANSWERS
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FACTS = Path(__file__).parent
COLUMNS: tuple[str, ...] = (
    "config",
    "kind",
    "layers",
    "block_size",
    "page_bytes",
    "bytes_per_token",
    "state_bytes",
    "window",
    "num_kv_heads",
    "head_size",
    "head_size_v",
    "shapes",
)


def main() -> None:
    """Write the file beside this one."""
    parser = argparse.ArgumentParser(description="Write vllm_layers.csv.")
    parser.add_argument("folder", type=Path, help="folder with vllm-0.33.0.jsonl")
    lines = (parser.parse_args().folder / "vllm-0.33.0.jsonl").read_text(encoding="utf-8").splitlines()
    with (FACTS / "vllm_layers.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for line in lines:
            writer.writerows(rows_of(json.loads(line)))


def rows_of(answer: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Return one row for each kind of layer in an answer."""
    if "error" in answer:
        raise SystemExit(f"{answer['config']}: {answer['error']}")
    for layer in answer["layers"]:
        page_bytes, block_size = layer["page_bytes"], layer["block_size"]
        shapes: list[list[int]] = layer.get("shapes", [])
        padded = "page_size_padded" in layer
        per_token, rest = divmod(page_bytes, block_size)
        if not padded and not shapes and rest:
            raise SystemExit(f"{answer['config']}: {page_bytes} bytes are no whole number for each of {block_size}")
        row = {
            "config": answer["config"].removesuffix(".json"),
            "kind": layer["kind"],
            "layers": layer["count"],
            "block_size": block_size,
            "page_bytes": page_bytes,
            "bytes_per_token": "" if padded or shapes else per_token,
            "state_bytes": page_bytes if shapes and not padded else "",
            "window": layer.get("sliding_window", layer.get("attention_chunk_size", "")),
            **{key: layer.get(key, "") for key in ("num_kv_heads", "head_size", "head_size_v")},
            "shapes": ";".join("x".join(map(str, shape)) for shape in shapes),
        }
        yield {column: str(value) for column, value in row.items()}


if __name__ == "__main__":
    main()

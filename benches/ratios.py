"""Run the benchmarks of `test_plan.py` once and print their ratios, which carry over from machine to machine, as a table."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "benchmarks.json"
        command = [sys.executable, "-m", "pytest", "-q", "--benchmark-enable", f"--benchmark-json={path}"]
        subprocess.run([*command, str(Path(__file__).parent)], check=True, stdout=subprocess.DEVNULL)
        benchmarks = json.loads(path.read_text())["benchmarks"]
    median = {benchmark["name"]: benchmark["stats"]["median"] for benchmark in benchmarks}
    floor = median["test_floor_an_empty_call_that_returns_a_small_object"]
    print("| what | against an empty call | the pure-Python reference against ours |")
    print("|---|---|---|")
    for case in ("default", "hybrid", "request cap"):
        ours, reference = median[f"test_ours[{case}]"], median[f"test_reference[{case}]"]
        print(f"| one plan, {case} | {ours / floor:.1f}× | {reference / ours:.0f}× |")
    build, reference = median["test_build_ours"], median["test_build_reference"]
    print(f"| a configurator of 62 layers | {build / floor:.0f}× | {reference / build:.0f}× |")
    read = median["test_read_a_config_json"]
    print(f"| reading a config.json of 62 layers | {read / floor:.0f}× | |")
    one, every, arrays = (median[f"test_batch_{how}"] for how in ("on_one_core", "on_all_cores", "in_numpy"))
    print(f"\n100,000 plans at once, a plan on one core: {one / floor / 100_000:.2f} of an empty call.")
    print(
        f"NumPy on whole arrays takes {arrays / one:.1f} times as long; all cores are {one / every:.1f} times as fast."
    )
    bare, ours, numpy = (import_seconds(code) for code in ("pass", "import poolplan", "import numpy"))
    print(f"\n`import poolplan` takes {(ours - bare) / (numpy - bare):.2f} of the time of `import numpy`.")


def import_seconds(code: str) -> float:
    """Median seconds of a fresh interpreter that runs `code`."""

    def once() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    return statistics.median(once() for _ in range(11))


if __name__ == "__main__":
    main()

"""The answers of poolplan in plain Python, from the published rules alone: what the Rust core is held against.

`cells.py` has the bytes of a slot, `options.py` and `pools.py` what a
runtime and a pool are, `world.py` the other rules: requests, what must fit. `scan.py` finds the plan by trying every page;
`closed_form.py` bounds it as a good Python programmer would, and is what the benchmarks compare with.
"""

from reference.cells import Refusal
from reference.closed_form import ClosedForm
from reference.options import Options
from reference.scan import plan_by_scan
from reference.world import Answer, World

__all__ = ["Answer", "ClosedForm", "Options", "Refusal", "World", "plan_by_scan"]

"""The answers of poolplan in plain Python, from the published rules alone: what the Rust core is held against.

`world.py` states the rules: cells, pools, requests, what must fit. `scan.py` finds the plan by trying every page;
`closed_form.py` bounds it as a good Python programmer would, and is what the benchmarks compare with.
"""

from reference.closed_form import ClosedForm
from reference.scan import plan_by_scan
from reference.world import Answer, Options, Refusal, World

__all__ = ["Answer", "ClosedForm", "Options", "Refusal", "World", "plan_by_scan"]

"""How hypothesis runs: `HYPOTHESIS_PROFILE=slow` for the sweeps, else few examples that are the same each time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("ci", max_examples=400, deadline=None, derandomize=True, database=None)
settings.register_profile(
    "slow", max_examples=100_000, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

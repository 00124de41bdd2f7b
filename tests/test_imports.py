"""What an import brings along: a runtime links this, and a command starts with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("click", "difflib", "huggingface_hub", "importlib.resources", "matplotlib", "numpy", "rich", "torch")


def loaded(code: str) -> set[str]:
    """The heavy modules that `code` loads in a fresh interpreter."""
    script = f'{code}\nimport sys\nprint("\\n", *(name for name in {HEAVY!r} if name in sys.modules))'
    command = [sys.executable, "-c", script]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1].split())


def test_import_poolplan_loads_nothing_heavy() -> None:
    assert loaded("import poolplan") == set()


def test_a_plan_of_a_catalog_model_loads_nothing_heavy() -> None:
    code = (
        "from poolplan import *\n"
        "model = ModelSpec.from_pretrained('openai/gpt-oss-120b')\n"
        "create_memory_pool_configurator(model, RuntimeSpec()).calculate_pool_sizes(1 << 36)\n"
    )
    assert loaded(code) == set()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["plan", "gpt-oss-120b", "--available", "60GiB", "--json"]], ids=repr
)
def test_the_command_line_loads_only_what_it_shows(arguments: list[str]) -> None:
    assert loaded(f"from poolplan.cli.commands import run\nrun({arguments!r})") <= {"click", "difflib"}

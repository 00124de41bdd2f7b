"""The README as a new user reads it: its outputs are what the commands print, and its Python runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OUTPUTS: list[tuple[str, str]] = re.findall(r"<!-- output: poolplan (.*?) -->\n```text\n(.*?)```", README, re.DOTALL)


def printed(command: str) -> str:
    """What a command prints, errors included, without the spaces that end a line; of it, what `grep` lets through."""
    command, _, pattern = command.partition(" | grep ")
    arguments = [sys.executable, "-m", "poolplan", *command.split()]
    run = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", check=False)
    lines = run.stdout.splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines if re.search(pattern or "", line))


@pytest.mark.parametrize(("command", "output"), OUTPUTS, ids=[command for command, _ in OUTPUTS])
def test_an_output_is_what_the_command_prints(command: str, output: str) -> None:
    assert output == printed(command)


def test_the_outputs_are_found() -> None:
    assert len(OUTPUTS) == 8


def test_the_python_runs() -> None:
    blocks: list[str] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2
    subprocess.run([sys.executable, "-W", "error", "-c", "\n".join(blocks)], check=True)


def test_the_first_command_plans_what_is_shown() -> None:
    first = re.search(r"poolplan plan (.*)", README)
    assert first is not None
    assert f"plan {first[1]}" == OUTPUTS[0][0]


def test_the_tests_are_the_makefiles() -> None:
    assert "```sh\nmake test\n```" in README
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def update() -> None:
    """Write what the commands print into the README: `PYTHONPATH=tests python -m test_readme`."""
    text = README
    for command, output in OUTPUTS:
        block = f"<!-- output: poolplan {command} -->\n```text\n"
        text = text.replace(f"{block}{output}```", f"{block}{printed(command)}```")
    (ROOT / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    update()

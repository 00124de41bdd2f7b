"""The documentation that a user meets first: `help()` of every public name, the same as in the stub, and its examples."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import poolplan
from poolplan import _core

DOCS = Path(__file__).parent.parent / "docs"
STUB = ast.parse((Path(poolplan.__file__).parent / "_core.pyi").read_text(encoding="utf-8"))
STUBBED = [
    node for node in STUB.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
]


@pytest.mark.parametrize("name", [name for name in poolplan.__all__ if name not in ("State", "__version__")])
def test_every_public_name_is_documented(name: str) -> None:
    documentation = inspect.getdoc(getattr(poolplan, name))
    assert documentation
    assert documentation.splitlines()[0].endswith((".", ":"))


@pytest.mark.parametrize("node", STUBBED, ids=lambda node: node.name)
def test_the_stub_says_what_help_says(node: ast.ClassDef | ast.FunctionDef) -> None:
    built = getattr(_core, node.name)
    assert inspect.cleandoc(ast.get_docstring(node) or "") == inspect.getdoc(built)
    for method in node.body if isinstance(node, ast.ClassDef) else []:
        if isinstance(method, ast.FunctionDef) and ast.get_docstring(method):
            assert ast.get_docstring(method) == inspect.getdoc(getattr(built, method.name)), method.name


PACKAGE = Path(poolplan.__file__).parent
WITH_EXAMPLES = [path for path in sorted(PACKAGE.rglob("*.py")) if re.search(r"^ *>>> ", path.read_text("utf-8"), re.M)]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_examples_run(path: Path) -> None:
    name = ".".join(("poolplan", *path.relative_to(PACKAGE).with_suffix("").parts))
    module = poolplan if path.stem == "__init__" else importlib.import_module(name)
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


def test_the_table_of_models_is_what_the_code_answers() -> None:
    """`python docs/generate_models.py` writes it again. Tests here register models, so another process answers."""
    code = "import runpy, sys; sys.stdout.write(runpy.run_path(sys.argv[1])['table']())"
    command = [sys.executable, "-X", "utf8", "-c", code, str(DOCS / "generate_models.py")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8").stdout
    assert (DOCS / "models.md").read_text(encoding="utf-8") == printed


def test_the_docs_show_how_to_register_an_architecture() -> None:
    page = (DOCS / "models.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(example, {})

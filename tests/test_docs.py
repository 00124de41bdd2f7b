"""The documentation that a user meets first: `help()` of every public name, the same as in the stub, and its examples."""

from __future__ import annotations

import ast
import doctest
import inspect
from pathlib import Path

import pytest

import poolplan
from poolplan import _core
from poolplan.models import registry

STUB = ast.parse((Path(poolplan.__file__).parent / "_core.pyi").read_text(encoding="utf-8"))
STUBBED = [
    node for node in STUB.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
]


@pytest.mark.parametrize("name", [name for name in poolplan.__all__ if name != "__version__"])
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


@pytest.mark.parametrize("module", [poolplan, registry], ids=lambda module: module.__name__)
def test_examples_run(module: object) -> None:
    results = doctest.testmod(module)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert results.attempted > 0
    assert results.failed == 0

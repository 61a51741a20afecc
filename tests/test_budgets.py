"""Sizes that keep modules and functions readable (design, section 4); complexity is ruff's."""

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("api", "kubeletplugin", "driver", "mps", "controller", "cli", "e2e", "bench")
MODULE_LINES, MEDIAN_LINES, FUNCTION_LINES = 400, 150, 60


def modules() -> list[Path]:
    found = (path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
    return [path for path in found if "_pb2" not in path.name]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_modules_are_short():
    lengths = {str(path.relative_to(ROOT)): length(path) for path in modules()}
    assert {name: lines for name, lines in lengths.items() if lines > MODULE_LINES} == {}
    assert statistics.median(lengths.values()) <= MEDIAN_LINES


def test_functions_are_short():
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in modules()
        for node in functions(path)
        if (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES
    ]
    assert long == []


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME", "NotImplemented" + "Error"])
def test_nothing_is_marked_unfinished(word):
    assert [str(path) for path in modules() if word in path.read_text()] == []

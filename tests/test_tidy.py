"""Tests of the source tree: tests for every folder, small files, no torch in the core."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
PACKAGES = {"smbox": ROOT, "memnode": ROOT, "smbox_torch": ROOT / "clients"}
FILE_LINES_MAX = 300
FUNCTION_LINES_MAX = 60
SUITES = {"contracts", "faults", "integration"}  # they test several packages
CODE = ("smbox", "memnode", "clients", "tests", "examples", "benchmarks")

WALK = """
import importlib, sys
from pkgutil import walk_packages
for package in ("smbox", "memnode"):
    for found in walk_packages(importlib.import_module(package).__path__, package + "."):
        name = found.name.rpartition(".")[2]
        if name != "__main__" and name.isidentifier():  # smbox/native holds a plain library
            importlib.import_module(found.name)
print(sorted(name for name in ("torch", "smbox_torch", *EXTRA) if name in sys.modules))
"""


def python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def shown(paths: Iterator[Path] | list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@functools.cache
def functions(path: Path) -> list[tuple[str, int]]:
    return [
        (node.name, (node.end_lineno or 0) - node.lineno + 1)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_every_folder_of_sources_has_tests():
    folders = {
        source.parent.relative_to(home)
        for package, home in PACKAGES.items()
        for source in (home / package).rglob("*.py")
        if source.name not in {"__init__.py", "__main__.py"}
    }
    assert len(folders) > len(PACKAGES)
    untested = [
        each
        for each in sorted(folders)
        if not any((TESTS / each).glob("test_*.py"))
        and not any(TESTS.rglob(f"test_{each.name}.py"))
    ]
    assert untested == []


def test_every_folder_of_tests_has_sources():
    tested = {test.parent.relative_to(TESTS) for test in TESTS.rglob("test_*.py")}
    homes = [ROOT, *PACKAGES.values()]
    orphans = [
        each
        for each in sorted(tested)
        if each.parts
        and each.parts[0] not in SUITES
        and not any((home / each).is_dir() for home in homes)
    ]
    assert orphans == []


def test_every_test_file_holds_a_test():
    empty = [
        path
        for path in python_files("tests")
        if path.name.startswith("test_")
        and not any(name.startswith("test_") for name, _ in functions(path))
        and "TestCase" not in path.read_text()
    ]
    assert shown(empty) == []


def test_tests_have_no_packages():
    assert shown(list((ROOT / "tests").rglob("__init__.py"))) == []


def test_files_are_small():
    long = {
        str(path.relative_to(ROOT)): count
        for path in python_files(*CODE)
        if (count := len(path.read_text().splitlines())) > FILE_LINES_MAX
    }
    assert long == {}


def test_functions_are_small():
    long = [
        f"{path.relative_to(ROOT)}:{name}: {count} lines"
        for path in python_files(*CODE)
        for name, count in functions(path)
        if count > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_the_tour_names_every_source_file():
    tour = (ROOT / "docs" / "architecture.md").read_text()
    sources = [
        source
        for package, home in PACKAGES.items()
        for source in sorted((home / package).rglob("*.py"))
        if source.name != "__init__.py" or source.parent == home / package
    ]
    assert [name for name in shown(sources) if f"`{name}`" not in tour] == []


def test_the_tour_names_no_file_that_is_gone():
    tour = (ROOT / "docs" / "architecture.md").read_text()
    named = {word for word in tour.split("`")[1::2] if word.endswith(".py") and "/" in word}
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def test_the_tour_says_of_a_file_what_the_file_says():
    tour = (ROOT / "docs" / "architecture.md").read_text()
    told = re.findall(r"^- `(\S+\.py)` - (.*)$", tour, re.MULTILINE)
    assert told
    assert [
        name for name, line in told if first_line(ROOT / name).replace("``", "`") != line
    ] == []


def imported(extra: str = "()") -> str:
    code = WALK.replace("EXTRA", extra)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_core_never_imports_torch():
    assert imported() == "[]"


def test_the_check_for_torch_can_fail():
    assert imported('("numpy",)') == "['numpy']"


def test_programs_are_not_looked_up_in_the_current_folder():
    """A file smbox.py or torch.py there would be imported in place of the package."""
    started = {"-P": 0, "": 0}
    for path in python_files("smbox", "memnode", "clients"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.List | ast.Tuple):
                words = [getattr(each, "value", None) for each in node.elts]
                for before, word in zip(["", *words], words, strict=False):
                    if word == "-m":
                        started["-P" if before == "-P" else ""] += 1
    assert started["-P"] > 5
    assert started[""] == 0


@pytest.mark.parametrize("word", ["utils", "helpers", "common", "misc"])
def test_no_module_is_a_drawer(word: str):
    assert shown([path for path in python_files(*CODE) if path.stem == word]) == []

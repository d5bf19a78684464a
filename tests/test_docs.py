"""Tests that the documents are true: links and names exist, nothing is missing."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import memnode.cli
import smbox_torch
from smbox import errors
from smbox.cli import main
from smbox.wire.ops import Op, Status

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"(?<!\!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
TEST = re.compile(r"\btests/[\w/]+\.py(?:::\w+)?")
SETTING = re.compile(r"\bSMBOX_(?!BUILD_)[A-Z_]+\b")  # SMBOX_BUILD_ are macros in C
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
PATH = re.compile(r"(?<![\w/-])(?:examples|benchmarks|docs|clients/smbox_torch)/\w[\w./-]*\w")
NAME = re.compile(r"\b(?:smbox|smbox_torch|memnode)(?:\.[A-Za-z_]\w*)+")
NO_NAMES = {"smbox.yaml", "smbox.commands"}  # a file, a group of entry points
COMMAND = re.compile(r"\bsmbox ([a-z]+)\b([^|`\n]*)")
DEFAULTS = re.compile(r"^- \*\*Defaults\.\*\*(.*?)(?=^- \*\*|^$)", re.MULTILINE | re.DOTALL)
DEFAULT = re.compile(r"`(\w+)`(?: \w =)? ([\d.e-]*\d)(?! ?/)")  # `period` 4
PRESENT = [page for page in PAGES if page.name != "CHANGELOG.md"]


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def words_of(*pages: Path) -> set[str]:
    return set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", "\n".join(p.read_text() for p in pages)))


def anchors(page: Path) -> set[str]:
    titles = HEADING.findall(prose(page))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    broken = []
    for found in LINK.finditer(prose(page)):
        target, _, anchor = found["target"].partition("#")
        if "://" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(found["target"])
    assert broken == []


def named_tests() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for found in sorted(set(TEST.findall(page.read_text()))):
            yield page.name, found


@functools.cache
def functions_of(path: Path) -> set[str]:
    tree = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in tree if isinstance(node, ast.FunctionDef)}


def test_tests_that_documents_name_exist():
    gone = []
    for page, named in named_tests():
        file, _, function = named.partition("::")
        path = ROOT / file
        if not path.is_file() or (function and function not in functions_of(path)):
            gone.append(f"{page}: {named}")
    assert gone == []


def test_checks_that_documents_name_exist():
    known = words_of(*ROOT.glob("smbox/testing/contract_*.py"))
    named = {word for page in PAGES for word in re.findall(r"`(check_\w+)`", page.read_text())}
    assert "check_elastic" in named
    assert sorted(named - known) == []


@pytest.mark.parametrize("page", ["memory_model.md", "failure.md", "many_nodes.md"])
def test_every_row_of_a_promise_names_its_test(page: str):
    lines = (ROOT / "docs" / page).read_text().splitlines()
    tables = [index for index, line in enumerate(lines) if line.rstrip().endswith("| test |")]
    assert tables
    unproven = []
    for start in tables:
        for line in lines[start + 2 :]:
            if not line.startswith("|"):
                break
            if not TEST.search(line):
                unproven.append(line)
    assert unproven == []


def test_every_error_is_explained():
    assert [
        name
        for name in vars(errors)
        if name.endswith("Error") and name not in words_of(ROOT / "docs/failure.md")
    ] == []


@pytest.mark.parametrize("table", [Op, Status])
def test_every_number_of_the_wire_is_specified(table):
    known = words_of(ROOT / "docs/protocol.md")
    assert [member.name for member in table if member.name not in known] == []


def flags() -> set[str]:
    """Return every option of `smbox`, its plug-ins and `memnode`."""
    found = {
        option for action in memnode.cli.parser()._actions for option in action.option_strings
    }
    commands = [typer.main.get_command(main.build([]))]
    while commands:
        command = commands.pop()
        commands.extend(getattr(command, "commands", {}).values())
        found.update(
            option
            for parameter in command.params
            for option in [*parameter.opts, *parameter.secondary_opts]
            if option.startswith("-")
        )
    return found


def test_every_flag_is_documented():
    text = (ROOT / "docs/cli.md").read_text()
    known = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))
    used = flags()
    assert {"--json", "--bind", "-a"} <= used
    assert sorted(used - known - {"-h"}) == []


def test_every_variable_is_documented():
    sources = [
        p for folder in ("smbox", "memnode", "clients") for p in ROOT.glob(f"{folder}/**/*.py")
    ]
    used = {name for p in sources for name in SETTING.findall(p.read_text())}
    assert "SMBOX_ADDRESS" in used
    assert sorted(used - words_of(*PAGES)) == []


def test_every_benchmark_row_is_documented():
    text = (ROOT / "docs/benchmarks.md").read_text()
    assert [name for name in main.bench.ROWS if f"`{name}`" not in text] == []


def code_in(page: Path) -> str:
    """Return the Python blocks, the indented lines and the words between backticks."""
    text = page.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    words = re.findall(r"^    .*$|`[^`\n]+`", text, re.MULTILINE)
    return "\n".join([*blocks, *words])


def is_there(name: str) -> bool:
    """Return True if a dotted name is a module or an attribute of one.

    The test is skipped if the module needs a package that is not installed.
    """
    if is_module(name):
        return True
    parent, _, last = name.rpartition(".")
    if is_module(parent):
        pytest.importorskip(parent, exc_type=ImportError)
    return bool(parent) and is_there(parent) and hasattr(pkgutil.resolve_name(parent), last)


def is_module(name: str) -> bool:
    """Return True if a dotted name is a module."""
    with contextlib.suppress(ModuleNotFoundError):  # the parent is not a package
        return bool(name) and importlib.util.find_spec(name) is not None
    return False


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.name)
def test_names_and_files_that_a_page_has_exist(page: Path):
    code = code_in(page)
    names = set(NAME.findall(code)) - NO_NAMES
    files = set(PATH.findall(prose(page)))
    assert [name for name in sorted(names) if not is_there(name)] == []
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []


@functools.cache
def commands() -> dict[str, dict[str, Any]]:
    """Return the options of each command of `smbox`, with their defaults."""
    made = typer.main.get_command(main.build([]))
    return {
        name: {"--help": None} | {o: p.default for p in command.params for o in p.opts}
        for name, command in vars(made)["commands"].items()
    }


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.name)
def test_options_that_a_page_shows_exist(page: Path):
    known, gone = commands(), []
    for command, words in COMMAND.findall(code_in(page)):
        if command not in known:
            continue
        own = re.split(r"\s(?:\S+\.py|-m|torchrun)\b", words)[0] if command == "run" else words
        used = re.findall(r"(?<!\S)--[a-z][\w-]*", own)
        gone += [f"{command} {option}" for option in used if option not in known[command]]
    assert gone == []


def options_with_defaults() -> Iterator[tuple[str, str, Any]]:
    for section in ("run", "demo", "plan"):
        for option, default in commands()[section].items():
            if option.startswith("-") and default not in (None, False):
                yield f"smbox {section}", option, getattr(default, "value", default)
    for action in memnode.cli.parser()._actions:
        if action.default not in (None, False, "==SUPPRESS=="):
            yield "memnode", action.option_strings[0], action.default
    yield "memnode", "--bind", memnode.cli.DEFAULT_BIND


def test_every_default_of_the_command_line_is_told():
    text = (ROOT / "docs/cli.md").read_text()
    sections = dict(re.findall(r"^##+ (.*?)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    untold = []
    for section, option, default in options_with_defaults():
        told = f"{default:g}" if isinstance(default, float) else str(default)
        line = rf"^\| [^|]*`{option}[ `][^\n]*default `?{re.escape(told)}\b"
        if not re.search(line, sections[section], re.MULTILINE):
            untold.append(f"{section} {option}: {told}")
    assert untold == []


def test_defaults_of_algorithms_are_those_of_their_signatures():
    seen, wrong = 0, []
    for page in sorted((ROOT / "docs/algorithms").glob("*.md")):
        title = page.read_text().removeprefix("# ").replace("HogWild++", "HogwildPP")
        name = re.findall(r"\w+", title)[0]
        for told in DEFAULTS.findall(page.read_text()):
            parameters = inspect.signature(getattr(smbox_torch, name)).parameters
            for word, value in DEFAULT.findall(told):
                seen += 1
                if word not in parameters or parameters[word].default not in (
                    None,
                    float(value),
                ):
                    wrong.append(f"{page.name}: {word} {value}")
    assert seen > 15
    assert wrong == []

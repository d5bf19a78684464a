"""The documents are true: code runs, links lead somewhere, and nothing is left unsaid."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import memnode.cli
from smbox import errors
from smbox.cli import main
from smbox.wire.ops import Op
from smbox.wire.status import Status

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
WITH_CODE = ("README.md", "docs/quickstart.md")
NOT_RUN = "<!-- not run"
BLOCK = re.compile(r"(?P<before>[^\n]*)\n+```python\n(?P<code>.*?)\n```", re.DOTALL)
LINK = re.compile(r"(?<!\!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
TEST = re.compile(r"\btests/[\w/]+\.py(?:::\w+)?")
SETTING = re.compile(r"\bSMBOX_(?!BUILD_)[A-Z_]+\b")  # SMBOX_BUILD_ are macros in C
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def words_of(*pages: Path) -> set[str]:
    return set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", "\n".join(p.read_text() for p in pages)))


def code_of(page: str) -> str:
    blocks = BLOCK.finditer((ROOT / page).read_text())
    return "\n\n".join(b["code"] for b in blocks if not b["before"].startswith(NOT_RUN))


def anchors(page: Path) -> set[str]:
    titles = HEADING.findall(prose(page))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", WITH_CODE)
def test_code_runs(preloaded: str, page: str, tmp_path: Path):
    script = tmp_path / "page.py"
    script.write_text(code_of(page))
    environment = {name: os.environ[name] for name in os.environ if "SMBOX_" not in name}
    done = subprocess.run(
        [preloaded, script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


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


def test_tests_that_documents_name_exist():
    gone = []
    for page, named in named_tests():
        file, _, function = named.partition("::")
        path = ROOT / file
        names = set()
        if path.is_file():
            tree = ast.walk(ast.parse(path.read_text()))
            names = {node.name for node in tree if isinstance(node, ast.FunctionDef)}
        if not path.is_file() or (function and function not in names):
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
    """Every option of `smbox`, its plug-ins and `memnode`."""
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
    assert {"--json", "--bind", "-a"} <= flags()
    assert sorted(flags() - known - {"-h"}) == []


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

"""Every example runs and prints the expected result, and the code of pages runs.

That of some pages runs after the lines that they leave out.
"""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAYS = {
    "hello.py": "[11.0, 21.0, 31.0] version",
    "workers.py": "every element is 250 : True",
    "stencil.py": "equal to the sequential result, bit for bit : True",
    "pipeline.py": "equal to one process, bit for bit : True",
    "publish.py": "every reader has version 5",
    "sparse_svm.py": "two reach the objective of one within 10 % : True",
    "sandblaster_lbfgs.py": "within 0.1 % of torch's minimum : True",
    "easgd.py": "center [2.0, -3.0, 1.0] true [2.0, -3.0, 1.0]",
}
ENTIRE = ("README.md", "docs/quickstart.md")
"""Pages whose code is one script."""
NOT_RUN = "<!-- not run"
BLOCK = re.compile(r"(?P<before>[^\n]*)\n+```python\n(?P<code>.*?)\n```", re.DOTALL)
LEFT_OUT = {
    "failure.md": """
        region, x = box.create("sums", (4,)), np.ones(4, np.float32)
    """,
    "locks.md": """
        region, x, entry = box.create("guarded", (4,)), np.ones(4, np.float32), "entry"
        log = types.SimpleNamespace(write=lambda fence, entry: None)
    """,
    "membership.md": """
        steps = 3
    """,
    "pgas.md": """
        region, halo = box.create("region", (4,)), box.create("halo", (4,))
        row, entry, step = np.ones(4, np.float32), np.ones(1, np.int64), 0
        arrived, log = box.counter("arrived"), box.create("log", (9,), "int64")
        box.counter("mine").add()
    """,
}
PROGRAM = """
import asyncio
import types

import numpy as np

import smbox


async def page():
{body}


asyncio.run(page())
"""
RUN_ALL = """
import runpy

import smbox

with smbox.local(memory="64MiB") as box:
    for page in {pages}:
        runpy.run_path(page, {{"box": box}})
"""


def code_of(page: str) -> str:
    blocks = BLOCK.finditer((ROOT / page).read_text())
    return "\n\n".join(b["code"] for b in blocks if not b["before"].startswith(NOT_RUN))


def program_of(page: str) -> str:
    code = code_of(f"docs/{page}")
    assert code
    body = textwrap.dedent(LEFT_OUT[page]) + code
    return PROGRAM.format(body=textwrap.indent(body, "    "))


def printed(python: str, script: Path, folder: Path) -> str:
    """Run a program, which has to succeed and to print no error; return what it prints."""
    done = subprocess.run(
        [python, script],
        cwd=folder,
        env={name: os.environ[name] for name in os.environ if "SMBOX_" not in name},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_every_example_is_run():
    """This file runs it, or another test file names it."""
    others = [p for p in ROOT.glob("tests/**/test_*.py") if p != Path(__file__).resolve()]
    text = "\n".join(path.read_text() for path in others)
    examples = {path.name for path in ROOT.glob("examples/*.py")}
    assert set(SAYS) <= examples
    assert [name for name in sorted(examples - set(SAYS)) if name not in text] == []


@pytest.mark.parametrize("name", SAYS)
def test_example(name: str, frameworks: str, tmp_path: Path):
    assert SAYS[name] in printed(frameworks, ROOT / "examples" / name, tmp_path)


@pytest.mark.parametrize("wrong", [["--processes", "0"], ["--processes", "4", "--rows", "5"]])
def test_the_stencil_refuses_processes_without_a_row(preloaded: str, wrong: list[str]):
    done = subprocess.run(
        [preloaded, ROOT / "examples" / "stencil.py", *wrong],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 2
    assert "each process needs a row" in done.stderr


@pytest.mark.parametrize("name", SAYS)
def test_an_example_says_how_to_run_it(name: str):
    assert f"python examples/{name}" in (ROOT / "examples" / name).read_text()


@pytest.mark.parametrize("page", ENTIRE)
def test_the_code_of_a_page_runs(preloaded: str, page: str, tmp_path: Path):
    script = tmp_path / "page.py"
    script.write_text(code_of(page))
    printed(preloaded, script, tmp_path)


def test_fragments_of_pages_run(preloaded: str, tmp_path: Path):
    for page in LEFT_OUT:
        (tmp_path / page).write_text(program_of(page))
    script = tmp_path / "all.py"
    script.write_text(RUN_ALL.format(pages=list(LEFT_OUT)))
    printed(preloaded, script, tmp_path)

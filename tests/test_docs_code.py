"""The code of pages runs; that of some after the lines that they leave out."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
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


def runs_silently(python: str, folder: Path, code: str) -> None:
    script = folder / "script.py"
    script.write_text(code)
    environment = {name: os.environ[name] for name in os.environ if "SMBOX_" not in name}
    done = subprocess.run(
        [python, script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("page", ENTIRE)
def test_the_code_of_a_page_runs(preloaded: str, page: str, tmp_path: Path):
    runs_silently(preloaded, tmp_path, code_of(page))


def test_fragments_of_pages_run(preloaded: str, tmp_path: Path):
    for page in LEFT_OUT:
        (tmp_path / page).write_text(program_of(page))
    runs_silently(preloaded, tmp_path, RUN_ALL.format(pages=list(LEFT_OUT)))

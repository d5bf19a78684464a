"""The fragments of code on some pages run, after the lines that they leave out."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
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


def program_of(page: str) -> str:
    blocks = BLOCK.findall((DOCS / page).read_text())
    assert blocks
    body = "\n".join([textwrap.dedent(LEFT_OUT[page]), *blocks])
    return PROGRAM.format(body=textwrap.indent(body, "    "))


def test_fragments_of_pages_run(preloaded: str, tmp_path: Path):
    for page in LEFT_OUT:
        (tmp_path / page).write_text(program_of(page))
    script = tmp_path / "all.py"
    script.write_text(RUN_ALL.format(pages=list(LEFT_OUT)))
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

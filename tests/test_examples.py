"""Tests that every example runs and prints the expected result."""

from __future__ import annotations

import os
import subprocess
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


def test_every_example_is_run():
    """This file runs it, or another test file names it."""
    others = [p for p in ROOT.glob("tests/**/test_*.py") if p != Path(__file__).resolve()]
    text = "\n".join(path.read_text() for path in others)
    examples = {path.name for path in ROOT.glob("examples/*.py")}
    assert set(SAYS) <= examples
    assert [name for name in sorted(examples - set(SAYS)) if name not in text] == []


@pytest.mark.parametrize("name", SAYS)
def test_example(name: str, frameworks: str, tmp_path: Path):
    environment = {key: os.environ[key] for key in os.environ if "SMBOX_" not in key}
    done = subprocess.run(
        [frameworks, ROOT / "examples" / name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
    assert done.stderr == ""


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

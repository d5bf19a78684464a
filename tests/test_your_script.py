"""Tests that a training script needs few changes: examples/train.py and its variants."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "your_script.md"
VARIANTS = {
    "train_easgd.py": ("--per-node", "2", "--on-failure", "continue"),
    "train_hybrid.py": ("--nodes", "2", "--per-node", "2"),
    "train_hogwild.py": ("--per-node", "2", "--on-failure", "continue"),
}
LINES_MAX = 4
SMBOX = "from smbox.cli.main import main; main()"
TIMEOUT_S = 280
ACCURACY = re.compile(r"accuracy (\d+\.\d)%")


def code(name: str) -> list[str]:
    """Return the lines of an example after its docstring."""
    return (EXAMPLES / name).read_text().split('"""', 2)[2].strip().splitlines()


def diff(variant: str) -> list[str]:
    """Return the diff from train.py to a variant, with one line of context."""
    lines = difflib.unified_diff(
        code("train.py"),
        code(variant),
        "examples/train.py",
        f"examples/{variant}",
        n=1,
        lineterm="",
    )
    return ["@@" if line.startswith("@@") else line for line in lines]


def changed(variant: str) -> list[str]:
    """Return the lines that a variant adds or removes, without blank lines."""
    return [line for line in diff(variant)[2:] if re.match(r"[+-]\s*\S", line)]


def run(*words: str, cwd: Path) -> str:
    environment = {key: os.environ[key] for key in os.environ if "SMBOX_" not in key}
    done = subprocess.run(
        words,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def accuracies(said: str) -> list[float]:
    return [float(found) for found in ACCURACY.findall(said)]


@pytest.mark.timeout(300)
def test_the_ordinary_script_runs(frameworks: str, tmp_path: Path):
    found = accuracies(
        run(frameworks, str(EXAMPLES / "train.py"), "--epochs", "1", cwd=tmp_path)
    )
    assert len(found) == 1
    assert found[0] > 50


@pytest.mark.timeout(300)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_runs_on_several_workers(frameworks: str, variant: str, tmp_path: Path):
    program = (frameworks, str(EXAMPLES / variant), "--epochs", "1")
    options = VARIANTS[variant]
    said = run(frameworks, "-c", SMBOX, "run", *options, *program, cwd=tmp_path)
    found = accuracies(said)
    assert len(found) == (4 if "--nodes" in options else 2)
    assert max(found) > 50


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_changes_few_lines(variant: str):
    lines = changed(variant)
    assert lines
    assert len(lines) <= LINES_MAX


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_says_how_to_run_it(variant: str):
    words = " ".join(["smbox run", *VARIANTS[variant], f"examples/{variant}"])
    assert words in (EXAMPLES / variant).read_text()
    assert words in PAGE.read_text()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_page_shows_the_difference(variant: str):
    shown = re.findall(r"```diff\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    assert "\n".join(diff(variant)) in shown

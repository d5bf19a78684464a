"""The study of one machine, with a tiny network: ways of training, table and picture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "benchmarks" / "local_parallelism"
PAGE = ROOT / "docs" / "experiments" / "local_parallelism.md"
ROWS = ("alexnet-sequential", "alexnet-processes-2", "alexnet-pipeline-2x1")


def run(*words: object) -> str:
    environment = {name: os.environ[name] for name in os.environ if "SMBOX_" not in name}
    command = [sys.executable, STUDY / "measure.py", *map(str, words)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)  # processes start one after the other, and import torch
def test_rows_become_a_table_and_are_not_repeated(tmp_path: Path):
    told = ("--tiny", "--out", tmp_path / "rows", "--alexnet-batch", 8, "--alexnet-batches", 2)
    for name in ROWS:
        assert "images/s" in run(*told, "--only", name)
        row = json.loads((tmp_path / "rows" / f"{name}.json").read_text())
        assert min(row["images_per_s"], row["cpu_s_per_image"], row["pss_mib"]) > 0.0
        assert len(row["processes"]) == (1 if name == ROWS[0] else 2)
        assert row["batch"] == 8
    assert "images/s" not in run(*told, "--only", ",".join(ROWS))

    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    run("--page", page, "--out", tmp_path / "rows")
    text = page.read_text()
    assert "| one process, 1 thread |" in text
    assert "| Pipeline, 2 stages of 1 thread |" in text
    assert "Not measured yet." not in text
    assert page.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_page_without_rows_says_so(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    run("--page", page, "--out", tmp_path)
    assert "Not measured yet." in page.read_text()

"""The study of one machine, with a tiny network: ways of training, table and picture."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "benchmarks" / "local_parallelism" / "measure.py"
PAGE = ROOT / "docs" / "experiments" / "local_parallelism.md"
ROWS = ("alexnet-sequential", "alexnet-processes-2", "alexnet-pipeline-2x1")


@pytest.mark.timeout(300)  # processes start one after the other, and import torch
def test_rows_become_a_table_and_are_not_repeated(tmp_path: Path, program, frameworks: str):
    program = functools.partial(program, python=frameworks)  # with scikit-learn imported
    told = ("--tiny", "--out", tmp_path / "rows", "--alexnet-batch", 8, "--alexnet-batches", 2)
    for name in ROWS:
        assert "images/s" in program(PROGRAM, *told, "--only", name)
        row = json.loads((tmp_path / "rows" / f"{name}.json").read_text())
        assert min(row["images_per_s"], row["cpu_s_per_image"], row["pss_mib"]) > 0.0
        assert len(row["processes"]) == (1 if name == ROWS[0] else 2)
        assert row["batch"] == 8
    assert "images/s" not in program(PROGRAM, *told, "--only", ",".join(ROWS))

    page = tmp_path / PAGE.name
    page.write_text(PAGE.read_text())
    program(PROGRAM, "--page", "--docs", tmp_path, "--out", tmp_path / "rows")
    text = page.read_text()
    assert "| one process, 1 thread |" in text
    assert "| Pipeline, 2 stages of 1 thread |" in text
    assert "Not measured yet." not in text
    assert page.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_page_without_rows_says_so(tmp_path: Path, program):
    page = tmp_path / PAGE.name
    page.write_text(PAGE.read_text())
    program(PROGRAM, "--page", "--docs", tmp_path, "--out", tmp_path)
    assert "Not measured yet." in page.read_text()

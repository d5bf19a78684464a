from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import result_files


@dataclass(frozen=True)
class Run:
    """Settings of a run that this file pretends."""

    row: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.row} {self.seed}"

    @property
    def file_name(self) -> str:
        return f"{self.row}-{self.seed}.json"


RUNS = [Run(row, seed) for seed in (0, 1) for row in ("a", "b")]


def test_results_are_found_again_by_their_runs(tmp_path: Path):
    folder = tmp_path / "new" / "folder"
    for run in (RUNS[2], RUNS[0], Run("other", 0)):
        result_files.store(folder / run.file_name, {"seed": run.seed})
    assert list(result_files.load(folder, RUNS)) == [
        (RUNS[0], {"seed": 0}),
        (RUNS[2], {"seed": 1}),
    ]
    assert result_files.grouped(folder, RUNS, lambda run: run.row) == {
        "a": [{"seed": 0}, {"seed": 1}]
    }
    assert result_files.missing(folder, RUNS) == [RUNS[1], RUNS[3]]


def test_without_a_folder_all_runs_are_missing(tmp_path: Path):
    assert result_files.missing(tmp_path / "nowhere", RUNS) == RUNS
    assert list(result_files.load(tmp_path / "nowhere", RUNS)) == []


def test_a_file_is_complete_or_not_there(tmp_path: Path):
    path = tmp_path / "one.json"
    result_files.store(path, {"figure": 1})
    result_files.store(path, {"figure": 2})
    with pytest.raises(TypeError):
        result_files.store(path, {"figure": object()})
    assert json.loads(path.read_text()) == {"figure": 2}
    assert list(tmp_path.iterdir()) == [path]


def test_keys_are_those_of_the_files_that_are_there():
    """The names of stored results hold such keys: with other keys all runs would be missing."""
    assert result_files.key({"seed": 0, "row": {"lr": 0.1}}) == "8702c004a458"
    assert result_files.key({"row": {"lr": 0.1}, "seed": 0}, digits=10) == "8702c004a458"[:10]
    assert result_files.key({"seed": 1, "row": {"lr": 0.1}}) != result_files.key(
        {"seed": 0, "row": {"lr": 0.1}}
    )

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import result_files
from estimator import Estimator, duration
from pending_runs import PendingRuns, Tick


@dataclass(frozen=True)
class Run:
    """Settings of a run that this file pretends."""

    name: str

    @property
    def file_name(self) -> str:
        return f"{self.name}.json"


RUNS = [Run("a"), Run("b"), Run("c")]


class LostError(Exception):
    """A run failed."""


def do(run: Run, tick: Tick) -> dict:
    tick(0.5)
    if run.name == "b":
        raise LostError("[worker] 1 is lost")
    return {"name": run.name, "took_s": 60.0}


def shown(run: Run, result: dict) -> str:
    return f"{run.name} is {result['name']}"


@pytest.fixture
def estimator() -> Estimator[Run]:
    return Estimator(lambda _: 100.0, alike=lambda run: run)


def go(folder: Path, estimator: Estimator[Run], *, budget_s: float = math.inf) -> list[str]:
    missing = PendingRuns(RUNS, folder, estimator)
    missing.report()
    return missing.run(do, shown, budget_s=budget_s, failures=(LostError,))


def test_runs_are_done_once_and_a_failed_one_again(tmp_path: Path, estimator, capsys):
    assert go(tmp_path, estimator) == ["b"]
    assert dict(result_files.load(tmp_path, RUNS)) == {
        run: {"name": run.name, "took_s": 60.0} for run in (RUNS[0], RUNS[2])
    }
    told = capsys.readouterr().out
    assert "3 of 3 runs are missing: some 0 h 05 min" in told
    assert "a is a" in told
    assert "b: failed: [worker] 1 is lost" in told
    assert go(tmp_path, estimator) == ["b"]
    told = capsys.readouterr().out
    assert "1 of 3 runs are missing: some 60 s" in told  # as long as the others took
    assert "a is a" not in told


def test_another_error_ends_it_and_finished_runs_stay(tmp_path: Path, estimator):
    missing = PendingRuns(RUNS, tmp_path, estimator)
    with pytest.raises(LostError):
        missing.run(do, shown)
    assert [run for run, _ in result_files.load(tmp_path, RUNS)] == [RUNS[0]]


def test_no_run_starts_that_would_end_behind_the_budget(tmp_path: Path, estimator, capsys):
    assert go(tmp_path, estimator, budget_s=99.0) == []
    assert not list(tmp_path.iterdir())
    assert "the budget ends before run 1" in capsys.readouterr().out


def test_finished_runs_correct_the_estimate():
    estimator = Estimator(len, alike=lambda name: name[0])
    assert estimator.seconds("abc") == 3.0
    estimator.learn("ab", 8.0)
    assert estimator.seconds("abc") == 8.0  # one alike
    assert estimator.seconds("b") == 4.0  # by the ratio of the others
    estimator.learn("a", 2.0)
    assert estimator.seconds("a") == 5.0
    assert estimator.seconds("bb") == 6.0


def test_times_are_worded_in_minutes_or_seconds():
    assert duration(7.4) == "7 s"
    assert duration(3720) == "1 h 02 min"

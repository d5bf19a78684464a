"""Tests of benchmarks/table.py, which makes a table of the JSON of `smbox bench --json`."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from smbox.cli.bench.result import Result, at_least, figure_at_most

Run = Callable[..., subprocess.CompletedProcess[str]]
TABLE = Path(__file__).resolve().parent.parent / "benchmarks" / "table.py"


@pytest.fixture
def run(preloaded: str) -> Run:
    """Return a function that makes the table of reports."""

    def make(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [preloaded, TABLE, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return make


def local_get(figure: float) -> Result:
    return Result("local get", "1 MiB", figure, "GB/s", at_least(0.95), 10.0, "np.copyto", 0.25)


def tcp_get(figure: float, stream: str) -> Result:
    return Result("tcp", "get", figure, "GB/s", at_least(0.5), 5.0, f"raw TCP, {stream} calls")


def crowd(figure: float, best: int) -> Result:
    limit_name = f"best of 1 to 4: {best}"
    return Result("crowd", "8 clients", figure, "GB/s", at_least(0.8), 2.0, limit_name)


def growth(figure: float) -> Result:
    return Result("node growth", "8 clients", figure, "MiB", figure_at_most(32.0))


@pytest.fixture
def report(tmp_path: Path):
    """Return a function that writes a report and returns its path."""
    names = (tmp_path / f"bench-{index}.json" for index in itertools.count())

    def write(*results: Result, cores: int = 2, quick: bool = False) -> Path:
        path = next(names)
        machine = {"cpu": "a cpu", "cores": cores}
        rows = [result.as_dict() for result in results]
        path.write_text(json.dumps({"machine": machine, "quick": quick, "results": rows}))
        return path

    return write


def rows_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[4:]


def test_every_result_is_a_row(run: Run, report):
    done = run(report(local_get(9.0), tcp_get(2.5, "256K"), growth(3.0)))
    assert done.stdout.splitlines()[0] == "cpu a cpu, cores 2; full run."
    local, tcp, held = rows_of(done)
    assert local == (
        "| local get | 1 MiB | 9.00 GB/s | 10.00 GB/s (np.copyto) | 0.90 "
        "| ratio >= 0.95 | **missed** | 0.25 |"
    )
    assert "(raw TCP, 256K calls) | 0.50 | ratio >= 0.5 | met |" in tcp
    assert held == "| node growth | 8 clients | 3.00 MiB |  |  | figure <= 32 | met |  |"


def test_of_several_runs_it_shows_medians_and_their_range(run: Run, report):
    runs = [
        report(local_get(local), tcp_get(tcp, stream), crowd(many, best), growth(held))
        for local, tcp, stream, many, best, held in (
            (9.0, 4.0, "256K", 1.5, 2, 40.0),
            (9.6, 2.0, "1024K", 1.6, 4, 50.0),
            (9.8, 3.0, "256K", 1.7, 2, 3.0),
        )
    ]
    done = run(*runs)
    assert done.stdout.splitlines()[0] == "cpu a cpu, cores 2; full runs, medians of 3."
    local, tcp, many, held = rows_of(done)
    assert local == (
        "| local get | 1 MiB | 9.60 GB/s | 10.00 GB/s (np.copyto) | 0.96 | 0.90 to 0.98 "
        "| ratio >= 0.95 | met | 0.25 |"
    )
    assert tcp == (
        "| tcp | get | 3.00 GB/s | 5.00 GB/s (raw TCP) | 0.60 | 0.40 to 0.80 "
        "| ratio >= 0.5 | met |  |"
    )
    assert "(best of 1 to 4) | 0.80 | 0.75 to 0.85 | ratio >= 0.8 | met |" in many
    assert held == (
        "| node growth | 8 clients | 40.00 MiB |  |  | 3.00 to 50.00 MiB "
        "| figure <= 32 | **missed** |  |"
    )


def test_a_median_on_its_bound_meets_the_goal(run: Run, report):
    done = run(report(growth(32.0)), report(growth(31.0)), report(growth(33.0)))
    assert "| met |" in rows_of(done)[0]


def test_a_run_without_a_limit_meets_no_goal_about_the_ratio(run: Run, report):
    unlimited = Result("tcp", "get", 3.0, "GB/s", at_least(0.5))
    for runs in ((tcp_get(4.0, "256K"), unlimited), (unlimited, tcp_get(4.0, "256K"))):
        (row,) = rows_of(run(*map(report, runs)))
        assert row == "| tcp | get | 3.50 GB/s |  |  |  | ratio >= 0.5 | **missed** |  |"


def test_a_quick_run_is_not_judged(run: Run, report):
    (row,) = rows_of(run(report(growth(40.0), quick=True)))
    assert row == "| node growth | 8 clients | 40.00 MiB |  |  | figure <= 32 |  |  |"


def test_runs_that_cannot_be_compared_are_refused(run: Run, report):
    other_unit = Result("node growth", "8 clients", 3.0, "KiB", figure_at_most(32.0))
    other_goal = Result("node growth", "8 clients", 3.0, "MiB", figure_at_most(33.0))
    other_case = Result("node growth", "9 clients", 3.0, "MiB", figure_at_most(32.0))
    mine = report(growth(3.0))
    for other in (
        report(growth(4.0), cores=4),
        report(growth(4.0), quick=True),
        report(growth(4.0), growth(4.0)),
        report(other_unit),
        report(other_goal),
        report(other_case),
    ):
        done = run(mine, other)
        assert done.returncode == 1
        assert "not of the same machine, size and rows" in done.stderr


def test_a_run_counts_once(run: Run, report):
    mine, other = report(growth(3.0)), report(growth(4.0))
    done = run(mine, other, mine)
    assert done.returncode == 1
    assert "twice" in done.stderr


def test_without_a_report_it_says_what_it_takes(run: Run):
    done = run()
    assert done.returncode == 1
    assert "REPORT.json" in done.stderr


def test_a_report_that_is_missing_is_named(run: Run):
    done = run("/nowhere/bench.json")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "/nowhere/bench.json" in done.stderr

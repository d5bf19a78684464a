"""The table of benchmark results, from the JSON that `smbox bench --json` prints."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from smbox.cli.bench.result import Result, at_least, figure_at_most

TABLE = Path(__file__).resolve().parent.parent / "benchmarks" / "table.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, TABLE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def local_get(figure: float) -> Result:
    return Result("local get", "1 MiB", figure, "GB/s", at_least(0.95), 10.0, "np.copyto", 0.25)


def tcp_get(figure: float, stream: str) -> Result:
    return Result("tcp", "get", figure, "GB/s", at_least(0.5), 5.0, f"raw TCP, {stream} calls")


def growth(figure: float) -> Result:
    return Result("node growth", "8 clients", figure, "MiB", figure_at_most(32.0))


@pytest.fixture
def report(tmp_path: Path):
    """Write a report of results, and return its path."""
    names = (tmp_path / f"bench-{index}.json" for index in itertools.count())

    def write(*results: Result, cores: int = 2) -> Path:
        path = next(names)
        machine = {"cpu": "a cpu", "cores": cores}
        rows = [result.as_dict() for result in results]
        path.write_text(json.dumps({"machine": machine, "quick": False, "results": rows}))
        return path

    return write


def test_every_result_is_a_row(report):
    done = run(report(local_get(9.0), growth(3.0)))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "cpu a cpu, cores 2; full run."
    first, second = lines[4:]
    assert first == (
        "| local get | 1 MiB | 9.00 GB/s | 10.00 GB/s (np.copyto) | 0.90 "
        "| ratio >= 0.95 | **missed** | 0.25 |"
    )
    assert second == "| node growth | 8 clients | 3.00 MiB |  |  | figure <= 32 | met |  |"


def test_of_several_runs_it_shows_medians_and_between_what_they_lie(report):
    runs = [
        report(local_get(local), tcp_get(tcp, stream), growth(held))
        for local, tcp, stream, held in (
            (9.0, 4.0, "256K", 40.0),
            (9.6, 2.0, "1024K", 50.0),
            (9.8, 3.0, "256K", 3.0),
        )
    ]
    done = run(*runs)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "cpu a cpu, cores 2; full runs, medians of 3."
    assert lines[4:] == [
        (
            "| local get | 1 MiB | 9.60 GB/s | 10.00 GB/s (np.copyto) | 0.96 | 0.90 to 0.98 "
            "| ratio >= 0.95 | met | 0.25 |"
        ),
        (
            "| tcp | get | 3.00 GB/s | 5.00 GB/s (raw TCP) | 0.60 | 0.40 to 0.80 "
            "| ratio >= 0.5 | met |  |"
        ),
        (
            "| node growth | 8 clients | 40.00 MiB |  |  | 3.00 to 50.00 "
            "| figure <= 32 | **missed** |  |"
        ),
    ]


def test_runs_that_cannot_be_compared_are_refused(report):
    for other in (report(local_get(9.0), growth(3.0), cores=4), report(local_get(9.0))):
        done = run(report(local_get(9.0), growth(3.0)), other)
        assert done.returncode == 1
        assert "not of the same machine, size and rows" in done.stderr


def test_without_a_report_it_says_what_it_takes():
    done = run()
    assert done.returncode == 1
    assert "REPORT.json" in done.stderr

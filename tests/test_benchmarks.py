"""The table of benchmark results, from the JSON that `smbox bench --json` prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from smbox.cli.bench.result import Result, at_least, figure_at_most

TABLE = Path(__file__).resolve().parent.parent / "benchmarks" / "table.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, TABLE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_every_result_is_a_row(tmp_path: Path):
    results = [
        Result("local get", "1 MiB", 9.0, "GB/s", at_least(0.95), 10.0, "np.copyto", 0.25),
        Result("node growth", "8 clients", 3.0, "MiB", figure_at_most(32.0)),
    ]
    report = tmp_path / "bench.json"
    report.write_text(
        json.dumps(
            {
                "machine": {"cpu": "a cpu", "cores": 2},
                "quick": False,
                "results": [result.as_dict() for result in results],
            }
        )
    )
    done = run(report)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "cpu a cpu, cores 2; full run."
    first, second = lines[4:]
    assert first == (
        "| local get | 1 MiB | 9.00 GB/s | 10.00 GB/s (np.copyto) | 0.90 "
        "| ratio >= 0.95 | **missed** | 0.25 |"
    )
    assert second == "| node growth | 8 clients | 3.00 MiB |  |  | figure <= 32 | met |  |"


def test_without_a_report_it_says_what_it_takes():
    done = run()
    assert done.returncode == 1
    assert "REPORT.json" in done.stderr

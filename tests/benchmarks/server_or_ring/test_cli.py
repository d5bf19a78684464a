from __future__ import annotations

import json
from pathlib import Path

import pytest
from server_or_ring import cli, compute, running
from server_or_ring.rows import Row

MEASURED = {
    "batch": 8,
    "cores": 4,
    "torch": "2.0",
    "seconds": {"resnet50": 4.0, "alexnet": 0.5, "vgg16": 6.0, "vgg19": 7.0, "resnet152": 11.0},
}


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Rows that were run, by a laboratory that takes no time and cannot hold rings."""
    rows: list[Row] = []

    def run(row: Row) -> dict:
        rows.append(row)
        if row.way == "ring":
            raise running.RowFailedError("rank 1 failed")
        return {"images_per_s": 1.0, "cores": 0.1}

    monkeypatch.setattr(running, "run", run)
    monkeypatch.setattr(cli.needs, "missing", lambda: "")
    monkeypatch.setattr(compute, "measure", lambda: MEASURED)
    return rows


def test_finished_rows_are_kept_and_not_repeated(ran: list[Row], tmp_path: Path):
    words = ["--out", str(tmp_path), "--only", "resnet50-2-*"]
    assert cli.main(words) == 1  # the ring has failed
    assert len(ran) == 7
    kept = list(tmp_path.glob("resnet50-2-*.json"))
    assert len(kept) == 6
    assert json.loads(kept[0].read_text())["took_s"] >= 0
    ran.clear()
    assert cli.main(words) == 1
    assert [row.way for row in ran] == ["ring"]


def test_the_computation_is_measured_once(ran: list[Row], tmp_path: Path, monkeypatch):
    words = ["--out", str(tmp_path), "--budget-hours", "0"]
    assert cli.main(words) == 0
    monkeypatch.setattr(compute, "measure", lambda: pytest.fail("measured again"))
    assert cli.main(words) == 0
    assert ran == []


def test_a_budget_and_a_dry_run_start_nothing(
    ran: list[Row], tmp_path: Path, monkeypatch, capsys
):
    with monkeypatch.context() as patch:
        patch.setattr(compute, "measure", lambda: pytest.fail("a dry run measured"))
        assert cli.main(["--out", str(tmp_path), "--dry-run"]) == 0
    assert "63 of 63 runs are missing" in capsys.readouterr().out
    assert cli.main(["--out", str(tmp_path), "--budget-hours", "0.001"]) == 0
    assert ran == []


def test_without_a_laboratory_it_says_why(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(cli.needs, "missing", lambda: "no namespaces")
    assert cli.main(["--out", str(tmp_path)]) == 2
    assert "no namespaces" in capsys.readouterr().err


def test_no_page_is_written_before_anything_was_measured(tmp_path: Path, capsys):
    assert cli.main(["--out", str(tmp_path), "--page"]) == 2
    assert "nothing was measured" in capsys.readouterr().err

from __future__ import annotations

import json
from pathlib import Path

import pytest
import report


@pytest.fixture
def folder(tmp_path: Path, made) -> Path:
    results = [
        made("one", 0, 0.70),
        made("one", 1, 0.72),
        made("easgd-10", 0, 0.70),
        made("easgd-10", 1, 0.70),
        made("hybrid", 1, 0.60),
        made("seasgd-16", 0, 0.1, loss=None),
    ]
    for run in results:
        path = tmp_path / "runs" / f"{run['way']['name']}-{run['seed']}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(run))
    return tmp_path / "runs"


def test_the_page_says_for_which_runs_it_stands(folder: Path):
    page = report.page(report.load(folder))
    assert "2 epochs over 50% of the training set (50,000 pictures in all), seeds 0, 1" in page
    assert "Runs still missing: {'hybrid': 1, 'seasgd-16': 1}" in page
    assert "Ways not run: sync, ddp, easgd-1, " in page
    assert "--epochs 2" in page
    assert "out/convergence/epochs-2-share-0.5" in page


def test_means_spread_and_differences(folder: Path):
    page = report.page(report.load(folder))
    assert "| one process | 71.0 % | 70.0 to 72.0 |  | 0.02 | 20 | 16 |" in page
    assert "| EASGD x 4, period 10 | 70.0 % | 70.0 to 70.0 | -1.0 |" in page
    assert "period 10: +1.0 points behind one process (goal: at most 1.5), met" in page
    assert "period 10: +11.0 points behind one process (goal: at most 1.5), **missed**" in page
    assert "seed 0: loss in the end no number, center 10.0 %" in page


def test_bytes_staleness_and_hidden_share(folder: Path):
    page = report.page(report.load(folder))
    assert "| EASGD x 4, period 10 | 8 | 4 | 84 | 2.25 | 25% |" in page
    assert "| HybridSGD 2 x 2, period 10: inside the nodes | 8 | 4 | 84 |  | 25% |" in page
    assert "| EASGD x 4, period 10 | 25% | 0% | 75% | 0% | 0% | 3 |" in page


def test_without_one_process_there_is_no_page(folder: Path):
    for path in folder.glob("one-*.json"):
        path.unlink()
    with pytest.raises(SystemExit, match="nothing to compare"):
        report.load(folder)


def test_page_and_picture_are_written(folder: Path, tmp_path: Path):
    report.main([str(folder), "--docs", str(tmp_path)])
    assert (tmp_path / "convergence.md").read_text().startswith("# Convergence")
    assert (tmp_path / "convergence.png").read_bytes().startswith(b"\x89PNG")

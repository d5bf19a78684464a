from __future__ import annotations

from pathlib import Path

import pytest
import report
from catalog import ROWS
from claims import CLAIMED, UNDECIDED
from result_files import store
from rows import Settings


@pytest.fixture
def folder(tmp_path: Path, made) -> Path:
    for name, seed, accuracy in (
        ("one", 0, 0.70),
        ("one", 1, 0.72),
        ("easgd", 0, 0.69),
        ("easgd", 1, 0.71),
        ("hybrid", 1, 0.60),
    ):
        settings = Settings(ROWS[name], seed)
        store(tmp_path / "runs" / settings.file_name, made(name, seed, accuracy))
    return tmp_path / "runs"


RUNS = len(ROWS) + len(CLAIMED) + 5 * len(UNDECIDED)


def written(folder: Path, docs: Path) -> str:
    report.main([str(folder), "--docs", str(docs), "--seeds", "0,1", "--note", "Quiet."])
    return (docs / "convergence.md").read_text()


def test_the_page_says_what_it_stands_for_and_what_is_missing(folder: Path, tmp_path: Path):
    page = written(folder, tmp_path)
    assert (
        f"5 of {RUNS}, with 6 epochs of 100% of the training pictures and seeds 0, 1, 5" in page
    )
    assert "; 2 cores of a cpu, torch 2.0. Rows without a run: one-plain, ddp, " in page
    assert "Missing seeds by row: easgd (5, 6, 7, 8, 9), hybrid (0). Quiet." in page
    assert (tmp_path / "convergence.png").read_bytes().startswith(b"\x89PNG")


def test_goals_have_verdicts(folder: Path, tmp_path: Path):
    page = written(folder, tmp_path)
    assert "EASGD, defaults, behind one process by at most 1.5: +1.0 ± 0.0 points" in page
    assert "by at most 1.5: +12.0 ± ? points behind; **undecided**" in page
    assert "SyncGroup, defaults, behind one process by at most 1.5: **no runs**" in page


def test_published_results_stand_beside_ours(folder: Path, tmp_path: Path):
    page = written(folder, tmp_path)
    assert "| ShmCaffe (ICDCS 2018) | 4 workers in groups of 2 are 0.9 points behind" in page
    assert "HybridSGD 2 x 2, defaults behind one process: +12.0 ± ?" in page
    assert "not measured" in page


def test_a_report_can_be_made_of_nothing(tmp_path: Path):
    page = written(tmp_path / "nowhere", tmp_path)
    assert f"**Runs:** 0 of {RUNS}, with" in page
    assert "| one process | 1 x 32 |  | 0.9 | 0.02 |  | not run |" in page
    assert "convergence.png" not in page
    assert not (tmp_path / "convergence.png").exists()

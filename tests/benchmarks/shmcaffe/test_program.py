"""The experiment's short form: real runs of a few workers, and the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pages
import pytest
import sweep
import task
import torch
from rows import Settings
from shmcaffe import cli, digits_set
from shmcaffe.catalog import ROWS, SETS


@pytest.fixture(scope="module")
def digits_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    digits_set.decode(folder)
    return folder


def test_digits_become_pictures_of_the_convergence_runs(digits_cache: Path):
    train, validation = task.load(digits_cache, 1.0)
    assert len(train) == SETS["digits"].training_pictures
    assert (len(validation), len(task.load_test(digits_cache))) == (144, 360)
    assert train.x.shape[1:] == (32, 32, 3)
    assert (train.x.dtype, int(train.x.max()), int(train.x.min())) == (torch.uint8, 255, 0)
    squares = train.x.unfold(1, 4, 4).unfold(2, 4, 4).flatten(3)
    assert torch.equal(squares.amin(-1), squares.amax(-1))
    assert len(train.y.unique()) == 10
    before = (digits_cache / "train-x.npy").stat().st_mtime_ns
    digits_set.decode(digits_cache)
    assert (digits_cache / "train-x.npy").stat().st_mtime_ns == before


def run(name: str, cache: Path, workers: int, nodes: int) -> dict:
    row = replace(ROWS[name], workers=workers, nodes=nodes)
    settings = Settings(row, 0, epochs=0.15, looks=0)
    return sweep.run(settings, cache, lambda done: None, timeout_s=240.0)


@pytest.mark.timeout(500)
@pytest.mark.usefixtures("forking")
def test_groups_move_fewer_bytes_by_their_size_over_equal_samples(digits_cache: Path):
    apart = run("a16-seasgd", digits_cache, workers=4, nodes=4)
    groups = run("h4x4-seasgd", digits_cache, workers=4, nodes=2)
    assert apart["samples"] == groups["samples"] == 4 * 8 * 6
    assert apart["stats"]["exchanges"] == 4 * 6
    assert apart["stats"]["nbytes"] == 2 * groups["stats"]["nbytes"] > 0
    # Of the roots; counted before the last add of each, which may be hidden still.
    assert 2 * 5 <= sum(groups["staleness"].values()) <= 2 * 6
    assert groups["group"]["exchanges"] == 4 * 6


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("forking")
def test_the_command_line_runs_what_is_missing_and_writes_the_page(
    tmp_path: Path, digits_cache: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["--only", "one", "--seeds", "5", "--epochs", "0.1", "--out", str(tmp_path)]
    cli.main([*words, "--cache", str(digits_cache)])
    (kept,) = (tmp_path / "digits").glob("one-5-*.json")
    assert json.loads(kept.read_text())["samples"] == 128
    cli.main([*words, "--cache", str(digits_cache), "--dry-run"])
    assert "0 of 1 runs are missing" in capsys.readouterr().out
    page = pages.DOCS / "shmcaffe.md"
    (tmp_path / "shmcaffe.md").write_text(page.read_text())
    cli.main([*words, "--page", "--docs", str(tmp_path)])
    written = (tmp_path / "shmcaffe.md").read_text()
    assert "### Scikit-learn's digits" in written
    assert "| one process |" in written
    assert (tmp_path / "shmcaffe.png").stat().st_size > 0


def test_seeds_run_row_by_row_and_unknown_rows_are_refused(
    capsys: pytest.CaptureFixture[str],
):
    runs = cli.wanted(cli.arguments([]), "digits")
    assert [(each.row.name, each.seed) for each in runs] == [
        (name, seed) for seed in range(3) for name in ROWS
    ]
    assert {each.epochs for each in cli.wanted(cli.arguments([]), "cifar10")} == {1.5}
    with pytest.raises(SystemExit):
        cli.arguments(["--only", "walking*"])
    assert "walking*" in capsys.readouterr().err

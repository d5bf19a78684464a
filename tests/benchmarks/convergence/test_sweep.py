from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import sweep
from catalog import ROWS
from claims import CLAIMED, UNDECIDED
from cluster import RunFailedError
from rows import Settings


def test_all_rows_run_with_a_seed_before_any_runs_with_the_next():
    runs = sweep.wanted(sweep.arguments([]), list(ROWS))
    assert [each.seed for each in runs] == sorted(each.seed for each in runs)
    assert [each.row.name for each in runs if each.seed == 0] == list(ROWS)
    for seed in (1, 2, 3, 4):  # what decides nothing runs once
        assert {each.row.name for each in runs if each.seed == seed} == CLAIMED
    for seed in (5, 6, 7, 8, 9):  # what was left undecided runs once more
        assert {each.row.name for each in runs if each.seed == seed} == UNDECIDED
    assert {"easgd", "one", "one-plain"} <= CLAIMED
    assert "mdownpour" not in CLAIMED


def test_globs_and_seeds_choose_runs(capsys: pytest.CaptureFixture[str]):
    read = sweep.arguments(["--only", "one,easgd-plain-*", "--seeds", "7"])
    runs = sweep.wanted(read, read.only)
    names = {each.row.name for each in runs}
    assert {"one", "easgd-plain-64", "easgd-plain-4-of-8"} <= names
    assert {"easgd", "one-plain"}.isdisjoint(names)
    assert {each.seed for each in runs} == {7}
    easgd = sweep.arguments(["--only", "easgd", "--seeds", "0", "--more-seeds", "1,2"])
    assert [each.seed for each in sweep.wanted(easgd, easgd.only)] == [0, 1, 2]
    with pytest.raises(SystemExit):
        sweep.arguments(["--only", "walking*"])
    assert "walking*" in capsys.readouterr().err


@pytest.fixture
def pretended(made, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs that take 100 s each, by their own account; ``ssp`` fails."""
    done: list[str] = []

    def run(settings: Settings, cache: Path, told, timeout_s: float) -> dict:
        told(0.5)
        if settings.row.name == "ssp":
            raise RunFailedError("worker 1 failed")
        done.append(f"{settings.row.name} {settings.seed}")
        return made(settings.row.name, settings.seed, 0.5, took_s=100.0)

    monkeypatch.setattr(sweep, "run", run)
    return done


def test_finished_runs_are_not_repeated_and_failed_ones_are(
    tmp_path: Path, pretended: list[str], capsys: pytest.CaptureFixture[str]
):
    words = ["--out", str(tmp_path), "--only", "one,ssp,sync", "--seeds", "0"]
    for _ in range(2):
        with pytest.raises(SystemExit, match="ssp 0"):
            sweep.main(words)
    assert pretended == ["one 0", "sync 0"]
    assert len(list(tmp_path.iterdir())) == 2
    assert "worker 1 failed" in capsys.readouterr().out


def test_a_changed_setting_repeats_only_its_rows(
    tmp_path: Path, pretended: list[str], monkeypatch: pytest.MonkeyPatch
):
    words = ["--out", str(tmp_path), "--only", "one,sync", "--seeds", "0,1"]
    sweep.main(words)
    del pretended[:]
    monkeypatch.setitem(ROWS, "sync", replace(ROWS["sync"], lr=0.5))
    sweep.main(words)
    assert pretended == ["sync 0", "sync 1"]


def test_a_budget_ends_the_sweep_before_a_run_that_is_too_long(
    tmp_path: Path, pretended: list[str], capsys: pytest.CaptureFixture[str]
):
    words = ["--out", str(tmp_path), "--only", "one,ddp", "--budget-hours", "0.03"]
    sweep.main(words)  # 108 s: one process fits by the estimate, DDP does not
    assert pretended == ["one 0"]
    assert "the budget ends before run 2" in capsys.readouterr().out


def test_a_dry_run_tells_how_long_it_will_take(
    tmp_path: Path, pretended: list[str], capsys: pytest.CaptureFixture[str]
):
    sweep.main(["--out", str(tmp_path), "--only", "one,sync", "--dry-run"])
    shown = capsys.readouterr().out
    assert "10 of 10 runs are missing: some 0 h " in shown
    assert "sync" in shown
    assert pretended == []


def run(name: str, cache: Path, **changes) -> dict:
    row = replace(ROWS[name], **changes)
    settings = Settings(row, 0, epochs=8.0, share=1.0, looks=2)
    told: list[float] = []
    result = sweep.run(settings, cache, told.append, timeout_s=240.0)
    assert max(told, default=0.0) <= 1.0
    assert json.loads(json.dumps(result))["settings"]["row"]["name"] == name
    assert 0.0 <= result["accuracy"] <= 1.0
    return result


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("forking")
def test_a_run_of_two_workers(cache: Path):
    result = run("easgd", cache, workers=2, batch=4, part=1.0)
    assert result["samples"] == 232
    assert result["stats"]["exchanges"] == 58  # one at each of 29 steps of both workers
    assert sum(result["staleness"].values()) == 58
    assert [done for done, _, _ in result["curve"]] == [pytest.approx(15 / 29), 1.0]
    assert min(result["cpu_s"], result["wall_s"]) > 0
    assert 0 <= result["node_cpu_s"] < result["took_s"]  # counted in ticks of 10 ms
    assert result["took_s"] > result["wall_s"]
    assert (result["error"], result["ended"]) == ("", 2)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("forking")
def test_a_killed_worker_does_not_end_the_others(cache: Path):
    result = run("easgd-killed", cache, workers=2, batch=4, part=1.0)
    assert (result["error"], result["ended"]) == ("", 1)
    assert result["samples"] == 4 * (44 + 14)  # half of the other's 29, and those in its place


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("forking")
def test_a_worker_joins_half_through(cache: Path):
    result = run("easgd-joining", cache, workers=2, batch=4, part=4.0)
    assert result["ended"] == 2
    assert result["samples"] == 4 * (174 + 58)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("forking")
def test_a_group_that_loses_a_worker_says_how_it_ended(cache: Path):
    result = run("sync-killed", cache, workers=2, batch=4, part=1.0)
    assert result["error"].startswith("WorkerLostError")
    assert result["ended"] == 0
    assert result["cpu_s"] > 0


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("forking")
def test_a_worker_that_fails_is_told(tmp_path: Path, cache: Path):
    row = replace(ROWS["easgd"], workers=1, options={"period": 0})
    settings = Settings(row, 0, epochs=1.0)
    with pytest.raises(RunFailedError, match="period must be at least 1"):
        sweep.run(settings, cache, lambda done: None, timeout_s=240.0)

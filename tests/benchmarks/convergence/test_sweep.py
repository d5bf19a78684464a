from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import sweep
from ways import WAYS
from worker import Settings


def test_every_way_is_run_with_every_seed(tmp_path: Path):
    runs = sweep.todo(sweep.arguments(["--out", str(tmp_path)]))
    assert len(runs) == 3 * len(WAYS)
    assert [path.name for path in runs][:2] == ["one-0.json", "sync-0.json"]
    assert {path.parent.name for path in runs} == {
        f"epochs-{sweep.EPOCHS:g}-share-{sweep.SHARE:g}"
    }


def test_another_rate_has_a_folder_of_its_own(tmp_path: Path):
    words = ["--out", str(tmp_path), "--ways", "one", "--seeds", "99", "--lr", "0.5"]
    ((path, settings),) = sweep.todo(sweep.arguments(words)).items()
    assert path.parent.name == "lr-0.5"
    assert settings.way["lr"] == 0.5


def test_an_unknown_way_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        sweep.arguments(["--ways", "one,walking"])
    assert "walking" in capsys.readouterr().err


def test_finished_runs_are_not_repeated(tmp_path: Path, made, monkeypatch: pytest.MonkeyPatch):
    done: list[str] = []

    def run(settings: Settings, told) -> dict:
        if len(done) == 2:
            raise RuntimeError("a worker failed")
        told({"step": 1, "steps": 2})
        done.append(settings.way["name"])
        return made(settings.way["name"], settings.seed, 0.5)

    monkeypatch.setattr(sweep, "run", run)
    words = ["--out", str(tmp_path), "--ways", "one,sync,ssp", "--seeds", "0"]
    with pytest.raises(RuntimeError):
        sweep.main(words)
    assert done == ["one", "sync"]
    del done[:]
    sweep.main(words)
    sweep.main(words)
    assert done == ["ssp"]
    assert len(list(tmp_path.glob("*/*.json"))) == 3
    assert list(tmp_path.glob("*/*.part")) == []


@pytest.mark.timeout(300)
def test_a_run_of_two_workers(cache: Path):
    way = replace(WAYS["easgd-10"], workers=2, batch=4)
    told: list[dict] = []
    settings = Settings(asdict(way), 0, epochs=4.0, share=1.0, cache=str(cache), looks=2)
    result = sweep.run(settings, told.append)
    assert json.loads(json.dumps(result))["way"]["name"] == "easgd-10"
    assert result["samples"] == 128
    assert result["stats"]["exchanges"] == 4
    assert sum(result["staleness"].values()) == 4
    assert len(result["curve"]) == 2
    assert 0.0 <= result["accuracy"] <= 1.0
    assert min(result["cpu_s"], result["wall_s"], result["node_cpu_s"]) > 0
    assert told[-1]["steps"] == 16


@pytest.mark.timeout(300)
def test_a_worker_that_fails_is_told(tmp_path: Path):
    way = replace(WAYS["one"], name="one")
    settings = Settings(asdict(way), 0, epochs=1.0, share=1.0, cache=str(tmp_path / "none"))
    with pytest.raises(RuntimeError, match=r"train-x\.npy"):
        sweep.run(settings, lambda told: None)

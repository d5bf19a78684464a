from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from catalog import ROWS
from result_files import store
from results import by_seed, gathered, load
from rows import Settings


def test_only_results_of_the_wanted_settings_are_read(tmp_path: Path, made):
    old = Settings(replace(ROWS["easgd"], lr=0.5), 0)
    for settings in (Settings(ROWS["easgd"], 1), Settings(ROWS["easgd"], 0), old):
        store(tmp_path / settings.file_name, made("easgd", settings.seed, 0.7))
    wanted = [Settings(ROWS[name], seed) for name in ("one", "easgd") for seed in range(3)]
    found = load(tmp_path, wanted)
    assert list(found) == ["easgd"]
    assert by_seed(found["easgd"]) == {0: 70.0, 1: 70.0}


def test_figures_of_workers_are_added_up():
    def worker(rank: int, **more) -> dict:
        stats = {"exchanges": 2, "nbytes": 10, "staleness": {"1": 2}, "exchange_ms": 1.0}
        return {
            "accuracy": 0.5 if rank == 0 else None,
            "loss": 0.1,
            "curve": [],
            "error": "",
            "samples": 100,
            "began_s": 10.0 + rank,
            "ended_s": 20.0 + rank,
            "cpu_s": 3.0,
            "stats": stats,
            "group": {},
        } | more

    found = gathered(
        Settings(ROWS["easgd"], 0), [worker(0), worker(1, error="PeerLostError: x")], took_s=9.0
    )
    assert found["samples"] == 200
    assert found["wall_s"] == 11.0
    assert found["stats"]["exchanges"] == 4
    assert found["staleness"] == {1: 4}
    assert (found["error"], found["ended"]) == ("PeerLostError: x", 1)
    assert found["took_s"] == 9.0

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import task
from catalog import ROWS
from rows import Settings
from trainers import KINDS
from worker import PROGRESS, Run

import smbox
from smbox.testing.model_box import ModelBox

pytestmark = pytest.mark.usefixtures("quick_starts")

SINGLE = {
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
}


@pytest.fixture(autouse=True)
def _single(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the only worker of a run."""
    for name, value in SINGLE.items():
        monkeypatch.setenv(name, value)


def settings(name: str, **more) -> Settings:
    options = {"clusters": 1} if name == "hogwild-pp" else ROWS[name].options
    row = replace(ROWS[name], workers=1, nodes=1, batch=4, part=1.0, options=options)
    return replace(Settings(row, 1, epochs=2.0, looks=2), **more)


@pytest.mark.parametrize("name", ["one", "easgd", "eamsgd-1", "downpour-4", "ssp"])
def test_a_worker_trains_and_counts(name: str, cache: Path):
    box = ModelBox().client("w")
    found = Run(settings(name), cache, 0, box).train()
    assert found.samples == 56
    assert found.ended_s > found.began_s
    assert found.cpu_s > 0
    assert 0.0 <= found.accuracy <= 1.0
    assert found.loss > 0
    assert [done for done, _, _ in found.curve] == [pytest.approx(0.5), 1.0]
    assert found.curve[0][1] < found.curve[1][1]
    assert box.counter(PROGRESS).value == 14  # one for each step that ends a hundredth
    if name != "one":
        assert found.stats["exchanges"] == (3 if name == "downpour-4" else 14)


@pytest.mark.timeout(300)
def test_every_algorithm_can_be_trained_and_judged(cache: Path):
    names = [row.name for row in ROWS.values() if not row.options or row.kind == "hogwild_pp"]
    firsts = {ROWS[name].kind: name for name in reversed(names)}
    assert set(firsts) == set(KINDS)
    del firsts["ddp"]  # needs a process group, see the sweep's tests
    with smbox.local(memory="256MiB") as box:
        for kind, name in firsts.items():
            found = Run(settings(name), cache, 0, box).train()
            assert 0.0 <= found.accuracy <= 1.0, kind
            for region in box.regions():
                box.free(region)


def test_the_test_set_is_read_once_and_not_for_tuning(
    cache: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[Path] = []
    load_test = task.load_test
    monkeypatch.setattr(task, "load_test", lambda path: seen.append(path) or load_test(path))
    Run(settings("one", judged_on="validation"), cache, 0, ModelBox().client("w")).train()
    assert seen == []
    Run(settings("one"), cache, 0, ModelBox().client("w")).train()
    assert seen == [cache]


def test_a_loss_that_is_no_number_is_told_as_none(cache: Path):
    wild = settings("one")
    wild = replace(wild, row=replace(wild.row, lr=1e30))
    found = Run(wild, cache, 0, ModelBox().client("w")).train()
    assert found.loss is None


def test_a_failure_that_is_no_scenario_is_raised(cache: Path):
    wrong = settings("easgd")
    wrong = replace(wrong, row=replace(wrong.row, options={"period": 0}))
    with pytest.raises(smbox.ConfigError):
        Run(wrong, cache, 0, ModelBox().client("w")).train()


def test_a_text_among_the_options_may_name_the_rank(cache: Path):
    box, told = ModelBox(), settings("seasgd")
    told = replace(told, row=replace(told.row, options={"increment": "mine-{rank}"}))
    Run(told, cache, 0, box.client("w")).train()
    assert "run.increment.mine-0.0" in box.store.regions

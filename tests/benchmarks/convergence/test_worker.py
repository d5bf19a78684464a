from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from ways import WAYS
from worker import Run, Settings

from smbox.testing.model_box import ModelBox
from smbox_torch.reporter import Reporter
from smbox_torch.world import World


class Told(Reporter):
    def __init__(self) -> None:
        super().__init__()
        self.fields: list[dict] = []

    def report(self, **fields) -> bool:
        self.fields.append(fields)
        return True


def settings(name: str, cache: Path) -> Settings:
    way = replace(WAYS[name], workers=1, nodes=1, batch=4)
    return Settings(asdict(way), seed=1, epochs=2.0, share=1.0, cache=str(cache), looks=2)


@pytest.mark.parametrize("name", ["one", "easgd-10", "eamsgd-1", "downpour-10", "ssp"])
def test_a_worker_trains_and_counts(name: str, cache: Path):
    reporter = Told()
    found = Run(settings(name, cache), World(), ModelBox().client("w")).train(reporter)
    assert found.samples == 64
    assert found.ended_s > found.began_s
    assert found.cpu_s > 0
    assert 0.0 <= found.accuracy <= 1.0
    assert found.loss > 0
    assert [share for share, _ in found.curve] == [0.5, 1.0]
    assert reporter.fields[-1]["step"] == reporter.fields[-1]["steps"] == 16
    if name != "one":
        assert found.stats["exchanges"] == 16 // (10 if "10" in name else 1) + (
            name == "easgd-10"
        )


def test_a_loss_that_is_no_number_is_told_as_none(cache: Path):
    wild = settings("one", cache)
    wild.way["lr"] = 1e30
    found = Run(wild, World(), ModelBox().client("w")).train(Told())
    assert found.loss is None

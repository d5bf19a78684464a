"""A constructor that fails leaves the run: its rank is free, and nobody waits for it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import torch

from smbox import Box, Region
from smbox.errors import OutOfMemoryError, SystemLimitError
from smbox_torch import EASGD, SEASGD, Dogwild, HogwildPP, HybridSGD
from smbox_torch.world import World

pytestmark = pytest.mark.shares

ALONE = World(run_id=uuid.uuid4().hex)


class NoRoom:
    """Makes one of the calls that create regions fail.

    Attributes:
        left: number of calls before it; below 0: none fails.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        for verb in ("create", "counter", "optimizer"):
            monkeypatch.setattr(Box, verb, self._failing(getattr(Box, verb)))

    def _failing(self, verb):
        def call(*args, **settings):
            self.left -= 1
            if self.left == -1:
                raise OutOfMemoryError("no room")
            return verb(*args, **settings)

        return call

    def check(self, open_box: Callable[[], Box], kind: type, **options: Any) -> None:
        """Make each creation fail in turn; every time, the same rank can be taken again."""
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        name = uuid.uuid4().hex

        def make(box: Box) -> None:
            sgd = torch.optim.SGD(model.parameters(), lr=0.1)
            kind(sgd, box, name, model=model, **options).close()

        for number in itertools.count():
            box = open_box()
            self.left = number
            try:
                make(box)
            except OutOfMemoryError:
                self.left = -1
                make(box)
            else:
                assert number > 3
                return


def test_a_constructor_that_fails_leaves_the_run(open_box, centered, monkeypatch):
    NoRoom(monkeypatch).check(open_box, centered, workers=1, rank=0)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SEASGD, {"workers": 1, "rank": 0, "increment": "mine"}),
        (Dogwild, {"workers": 1, "rank": 0}),
        (HybridSGD, {"world": ALONE}),
        (HogwildPP, {"world": ALONE, "clusters": 1, "state": "shared"}),
    ],
)
def test_so_does_one_with_other_regions(open_box, kind, options, monkeypatch):
    NoRoom(monkeypatch).check(open_box, kind, **options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(EASGD, {"workers": 1, "rank": 0}), (HybridSGD, {"world": ALONE})],
)
def test_so_does_one_that_can_start_no_thread(open_box, kind, options, monkeypatch):
    def make():
        sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
        return kind(sgd, open_box(), "run", overlap=True, **options)

    def no_thread(_start):
        raise SystemLimitError("no thread")

    monkeypatch.setattr(Region, "is_local", False)  # an exchange in mapped memory has no thread
    with monkeypatch.context() as patch:
        patch.setattr("smbox_torch.elastic.update_thread.start_thread", no_thread)
        with pytest.raises(SystemLimitError) as caught:
            make()
    make().close()
    del caught  # its traceback kept the first one alive until here

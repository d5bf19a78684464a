"""Leaders of HogWild++ for the tests of this folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from smbox_torch.hogwild.hogwild_pp import HogwildPP
from smbox_torch.world import World

Leaders = tuple[list[torch.nn.Parameter], list[HogwildPP]]


@pytest.fixture
def streamer() -> Callable[[], threading.Thread]:
    """``streamer()``: the thread of the only stream of this process."""

    def find() -> threading.Thread:
        (found,) = (each for each in threading.enumerate() if each.name.endswith("-stream"))
        return found

    return find


@pytest.fixture
def leaders(open_box) -> Iterator[Callable[..., Leaders]]:
    """``leaders(**options)``: parameters and optimizers of two clusters of one worker each."""
    made: list[HogwildPP] = []

    def make(**options: Any) -> Leaders:
        xs = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
        for rank, x in enumerate(xs):
            sgd, world = torch.optim.SGD([x], lr=1.0), World(rank, rank, 2, 2)
            made.append(HogwildPP(sgd, open_box(), "run", clusters=2, world=world, **options))
        return xs, made

    yield make
    for each in made:
        each.close()

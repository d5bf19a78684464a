from __future__ import annotations

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch.elastic.unfused import UnfusedExchange
from smbox_torch.model.flat import FlatParameters


def exchange(box: ModelBox, *, staged: bool) -> tuple[torch.Tensor, UnfusedExchange]:
    x = torch.nn.Parameter(torch.full((3,), 2.0))
    buffer = FlatParameters([x]).buffers[0]
    center = box.create("c", shape=3, init=1.0)
    increments = [box.create("increment", shape=3)] if staged else None
    return x, UnfusedExchange([(buffer, center)], 0.5, increments)


def test_x_gives_what_the_center_gains():
    box = ModelBox()
    x, steps = exchange(box, staged=False)
    steps.read()
    box.attach("c").accumulate(np.full(3, 7, np.float32))
    steps.move()
    steps.add()
    assert x.tolist() == [1.5] * 3
    assert box.attach("c").get().tolist() == [8.5] * 3


def test_a_move_may_go_by_a_region_of_its_own():
    box = ModelBox()
    _, steps = exchange(box, staged=True)
    steps.read()
    steps.move()
    steps.add()
    assert box.attach("increment").get().tolist() == [0.5] * 3
    assert box.attach("c").get().tolist() == [1.5] * 3


class PlainRegion:
    """A region of a memory that cannot add region to region."""


def test_increments_need_a_memory_that_adds_regions():
    x = torch.nn.Parameter(torch.zeros(3))
    buffer = FlatParameters([x]).buffers[0]
    with pytest.raises(ConfigError, match="region to region"):
        UnfusedExchange([(buffer, PlainRegion())], 0.5, [PlainRegion()])

from __future__ import annotations

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch.elastic.easgd_sync import SyncEASGD
from smbox_torch.elastic.seasgd import SEASGD
from smbox_torch.elastic.unfused import UnfusedExchange
from smbox_torch.model.flat import FlatParameters
from smbox_torch.model.precision import Precision


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


def test_x_loses_what_the_center_gets_whatever_the_wire_rounds():
    rng, box = np.random.default_rng(5), ModelBox()
    x, c = (rng.standard_normal(50).astype(np.float32) for _ in range(2))
    parameter = torch.nn.Parameter(torch.from_numpy(x.copy()))
    precision = Precision("float32", "float16")
    buffer = FlatParameters([parameter], precision=precision).buffers[0]
    steps = UnfusedExchange([(buffer, box.create("c", shape=50, init=c))], 0.3)
    rest = np.zeros(50, np.float32)
    for _ in range(9):
        steps.read()
        steps.move()
        steps.add()
        total = rest + np.float32(0.3) * (x - c)
        d = total.astype(np.float16).astype(np.float32)
        rest, x, c = total - d, x - d, c + d
    np.testing.assert_array_equal(box.attach("c").get(), c)
    np.testing.assert_array_equal(parameter.detach().numpy(), x)


@pytest.mark.parametrize("kind", [SEASGD, SyncEASGD])
def test_the_rate_of_an_exchange_is_that_of_the_workers_who_are_there(kind: type):
    box, x = ModelBox(), torch.nn.Parameter(torch.zeros(1))
    opt = kind(torch.optim.SGD([x], lr=0.0), box, "run", workers=2)
    box.attach("run.float32").put(np.ones(1, np.float32))
    opt.team.size = 1  # the other one left
    x.grad = torch.zeros(1)
    opt.step()
    opt.close(exchange=False)
    assert x.item() == pytest.approx(0.9)


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

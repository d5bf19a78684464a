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
from smbox_torch.optimizer.center import Center

CENTER = "c.float32"


def exchange(box: ModelBox, *, staged: bool) -> tuple[torch.Tensor, UnfusedExchange]:
    x = torch.nn.Parameter(torch.full((3,), 2.0))
    center = Center(box, "c", FlatParameters([x]), init=1.0, loads=False)
    increments = [box.create("increment", shape=3)] if staged else None
    return x, UnfusedExchange(center, increments)


def test_x_gives_what_the_center_gains():
    box = ModelBox()
    x, steps = exchange(box, staged=False)
    steps.read()
    box.attach(CENTER).accumulate(np.full(3, 7, np.float32))
    steps.move(0.5)
    steps.add()
    assert x.tolist() == [1.5] * 3
    assert box.attach(CENTER).get().tolist() == [8.5] * 3


def test_x_loses_what_the_center_gets_whatever_the_wire_rounds():
    rng, box = np.random.default_rng(5), ModelBox()
    x, c = (rng.standard_normal(50).astype(np.float32) for _ in range(2))
    parameter = torch.nn.Parameter(torch.from_numpy(x.copy()))
    precision = Precision("float32", "float16")
    flat = FlatParameters([parameter], precision=precision)
    box.create(CENTER, shape=50, init=c)
    steps = UnfusedExchange(Center(box, "c", flat, loads=False))
    rest = np.zeros(50, np.float32)
    for _ in range(9):
        steps.read()
        steps.move(0.3)
        steps.add()
        total = rest + np.float32(0.3) * (x - c)
        d = total.astype(np.float16).astype(np.float32)
        rest, x, c = total - d, x - d, c + d
    np.testing.assert_array_equal(box.attach(CENTER).get(), c)
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
    steps.move(0.5)
    steps.add()
    assert box.attach("increment").get().tolist() == [0.5] * 3
    assert box.attach(CENTER).get().tolist() == [1.5] * 3


def test_each_dtype_has_an_increment_of_its_own():
    box, dtypes = ModelBox(), ("float32", "float64")
    xs = [torch.nn.Parameter(torch.zeros(2, dtype=getattr(torch, each))) for each in dtypes]
    sgd = torch.optim.SGD(xs, lr=1.0)
    one = SEASGD(sgd, box, "run", workers=1, moving_rate=0.25, increment="mine")
    for x, gradient in zip(xs, (-4.0, -8.0), strict=True):
        x.grad = torch.full_like(x, gradient)
    one.step()
    one.close(exchange=False)
    assert [x.tolist() for x in xs] == [[3.0, 3.0], [6.0, 6.0]]
    centers = [box.attach(f"run.{each}").get().tolist() for each in dtypes]
    assert centers == [[1.0, 1.0], [2.0, 2.0]]


class PlainRegion:
    """A region of a memory that cannot add region to region."""


def test_increments_need_a_memory_that_adds_regions():
    center = Center(ModelBox(), "c", FlatParameters([torch.nn.Parameter(torch.zeros(3))]))
    center.regions = (PlainRegion(),)
    with pytest.raises(ConfigError, match="region to region"):
        UnfusedExchange(center, [PlainRegion()])

"""HybridSGD whose groups exchange in SEASGD's three steps, as ShmCaffe-H's do."""

from __future__ import annotations

import dataclasses
import json
import threading
import warnings

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError, WorkerLostError
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, group_gradient, start
from smbox_torch.elastic.seasgd import SEASGD
from smbox_torch.elastic.stability import StabilityWarning
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.world import World

RATE, PERIOD, STEPS, WAIT_S = 0.3, 2, 8, 60.0
SETTINGS = {"steps": STEPS, "lr": LR, "moving_rate": RATE}


def hybrid(world: World, box: ModelBox, **options) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start() + np.float32(world.local_rank)))
    client = box.client(f"w{world.group_rank}") if world.is_group_root else None
    settings = {"period": PERIOD, "moving_rate": RATE, "exchange": "seasgd", "world": world}
    sgd = torch.optim.SGD([x], lr=LR)
    return Descent(world.rank, x, HybridSGD(sgd, client, "run", **settings | options))


def center(box: ModelBox) -> np.ndarray:
    return box.attach("run.float32").get()


@pytest.mark.parametrize("period", [1, PERIOD])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("increment", [None, "mine"])
def test_a_group_of_one_is_seasgd_bit_for_bit(
    worlds, overlap: bool, period: int, increment: str | None
):
    mine, plain = ModelBox(), ModelBox()
    settings = {"period": period, "moving_rate": RATE, "overlap": overlap}
    settings |= {"increment": increment}
    one = hybrid(worlds(1, 1)[0], mine, **settings)
    x = torch.nn.Parameter(torch.from_numpy(start()))
    sgd = torch.optim.SGD([x], lr=LR)
    other = Descent(0, x, SEASGD(sgd, plain, "run", workers=1, **settings))
    for descent in (one, other):
        descent.run(STEPS)
        descent.optimizer.close(exchange=False)
    assert one.values().tobytes() == other.values().tobytes()
    assert center(mine).tobytes() == center(plain).tobytes()
    assert not np.array_equal(center(mine), start())
    assert ("run.increment.mine.0" in mine.store.regions) == (increment == "mine")


@pytest.mark.parametrize("period", [1, PERIOD])
def test_groups_equal_the_replay_of_their_order(worlds, each, period: int):
    """Reads and adds of two groups of two, interleaved as they came, by the oracle."""
    box, made = ModelBox(), threading.Barrier(4)
    began = []

    def work(world: World) -> np.ndarray:
        one = hybrid(world, box, period=period)
        if made.wait(WAIT_S) == 0:  # a group that comes after an exchange begins elsewhere
            began.append(len(box.log))
        made.wait(WAIT_S)
        one.run(STEPS)
        one.optimizer.close(exchange=False)
        return one.values()

    values = each(worlds(2, 2), work)
    assert values[0].tobytes() == values[1].tobytes()
    assert values[2].tobytes() == values[3].tobytes()
    order = [
        entry.client
        for entry in box.log[began[0] :]
        if entry.region == "run.float32" and entry.op in {"get", "accumulate"}
    ]
    assert len(order) == 2 * 2 * STEPS // period
    xs, c = [start(), start()], start()
    runs = {
        f"w{group}": oracles.seasgd(
            xs[group], c, group_gradient(group, 2), period=period, **SETTINGS
        )
        for group in range(2)
    }
    oracles.replay(runs, order)
    np.testing.assert_allclose(values[0], xs[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(values[2], xs[1], rtol=0, atol=1e-6)
    np.testing.assert_allclose(center(box), c, rtol=0, atol=1e-6)


def alone(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """x and center of one group of two."""
    x, c = start(), start()
    settings = SETTINGS | {"steps": steps, "period": PERIOD}
    oracles.run(oracles.seasgd(x, c, group_gradient(0, 2), **settings))
    return x, c


class HookedBox(ModelBox):
    """Calls ``before`` before each add."""

    def __init__(self, before) -> None:
        super().__init__("w0")
        self.before = before

    def client(self, name: str) -> HookedBox:
        return self

    def create(self, *args, **kwargs):
        region = super().create(*args, **kwargs)
        add = region.accumulate

        def accumulate(*values, **named):
            self.before()
            add(*values, **named)

        region.accumulate = accumulate
        return region


def test_the_group_computes_on_while_its_add_is_held(worlds, each):
    """It has moved already: only the add is hidden."""
    gate, looked = threading.Event(), threading.Barrier(2)
    box = HookedBox(lambda: gate.wait(WAIT_S))

    def work(world: World) -> np.ndarray:
        one = hybrid(world, box, overlap=True, period=1)
        one.run()  # returns although the add is held
        before = center(box)
        looked.wait(WAIT_S)
        gate.set()
        one.optimizer.close(exchange=False)
        np.testing.assert_array_equal(before, start())
        return one.values()

    values = each(worlds(1, 2), work)
    x, c = start(), start()
    oracles.run(
        oracles.seasgd(x, c, group_gradient(0, 2), **SETTINGS | {"steps": 1, "period": 1})
    )
    assert values[0].tobytes() == values[1].tobytes()
    np.testing.assert_allclose(values[0], x, rtol=0, atol=1e-6)
    np.testing.assert_allclose(center(box), c, rtol=0, atol=1e-6)


def test_a_group_reads_no_center_that_lacks_its_own_add(worlds):
    box = HookedBox(lambda: threading.Event().wait(0.05))  # longer than a step
    one = hybrid(worlds(1, 1)[0], box, overlap=True, period=1)
    began = len(box.log)
    one.run(3)
    one.optimizer.close(exchange=False)
    ops = [entry.op for entry in box.log[began:] if entry.region == "run.float32"]
    assert ops == ["get", "accumulate"] * 3


def test_a_root_evaluates_a_center_that_has_its_own_add(worlds, evaluated):
    box = HookedBox(lambda: threading.Event().wait(0.05))  # longer than a read
    one = hybrid(worlds(1, 1)[0], box, overlap=True, period=1)
    one.run()
    found = evaluated(one)
    one.optimizer.close(exchange=False)
    np.testing.assert_array_equal(found, center(box))


@pytest.mark.parametrize("overlap", [False, True])
def test_a_run_resumes_exactly_on_all_ranks(worlds, each, overlap: bool):
    box, again, saved = ModelBox(), ModelBox(), {}
    members = worlds(1, 2)

    def whole(world: World) -> np.ndarray:
        one = hybrid(world, box, overlap=overlap)
        one.run(4)  # the last step has exchanged
        if world.is_group_root:
            saved.update(one.optimizer.state_dict())
        one.run(4)
        one.optimizer.close(exchange=False)
        return one.values()

    def rest(world: World) -> np.ndarray:
        one = hybrid(world, again, overlap=overlap)
        one.optimizer.load_state_dict(saved)
        one.t = 4
        one.run(4)
        one.optimizer.close(exchange=False)
        return one.values()

    before = each(members, whole)
    after = each([dataclasses.replace(world, restart=1) for world in members], rest)
    assert saved["extra"]["moves"] is None  # all ranks have moved already
    assert {x.tobytes() for x in before + after} == {before[0].tobytes()}
    assert center(again).tobytes() == center(box).tobytes()
    x, c = alone(STEPS)
    np.testing.assert_allclose(before[0], x, rtol=0, atol=1e-6)
    np.testing.assert_allclose(center(box), c, rtol=0, atol=1e-6)


def test_an_add_that_fails_ends_the_root_and_is_told_to_its_group(worlds, each):
    def fail() -> None:
        raise ConnectionError("the memory is gone")

    box = HookedBox(fail)

    def work(world: World) -> None:
        one = hybrid(world, box, period=1, overlap=True)
        if world.is_group_root:
            with pytest.raises(ConnectionError), one.optimizer:
                one.run(2)
        else:
            with pytest.raises(WorkerLostError, match="rank 0 has left"), one.optimizer:
                one.run(2)

    each(worlds(1, 2), work)


def test_a_rate_beyond_the_bound_of_the_groups_is_warned_of(worlds):
    (world,) = worlds(1, 1)
    with pytest.warns(StabilityWarning, match=r"1\.88"):
        hybrid(world, ModelBox(), groups=16, moving_rate=0.2).optimizer.close(exchange=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world = worlds(1, 1)[0]
        hybrid(world, ModelBox(), groups=4, moving_rate=0.2).optimizer.close(exchange=False)


@pytest.mark.parametrize(
    "wrong", [{"exchange": "walk"}, {"exchange": "elastic", "increment": "mine"}]
)
def test_impossible_arguments_are_refused(worlds, wrong):
    box = ModelBox()
    with pytest.raises(ConfigError):
        hybrid(worlds(1, 1)[0], box, **wrong)
    assert not box.store.regions


def test_the_two_exchanges_do_not_share_a_name_or_a_state(worlds):
    box = ModelBox()
    one = hybrid(worlds(1, 1)[0], box)
    saved = one.optimizer.state_dict()
    one.optimizer.close(exchange=False)
    with pytest.raises(ConfigError, match="another algorithm"):
        hybrid(worlds(1, 1)[0], box, exchange="elastic")
    other = hybrid(worlds(1, 1)[0], ModelBox(), exchange="elastic")
    with pytest.raises(ConfigError, match="another algorithm"):
        other.optimizer.load_state_dict(saved)
    other.optimizer.close(exchange=False)


GROUP = """
import json
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, start
from smbox_torch.hybrid.hybrid import HybridSGD

x = torch.nn.Parameter(torch.from_numpy(start()) + rank)
box = ModelBox() if rank == 0 else None
sgd = torch.optim.SGD([x], lr=LR)
options = {"period": 2, "moving_rate": 0.3, "groups": 1, "exchange": "seasgd"}
optimizer = HybridSGD(sgd, box, "run", group=dist.group.WORLD, **options)
with optimizer:
    one = Descent(rank, x, optimizer)
    one.run(8)
    center = box.attach("run.float32").get().tolist() if box else None
print(json.dumps([one.values().tolist(), center]))
"""


def test_a_process_group_takes_the_place_of_a_host(run_gloo):
    root, member = (json.loads(lines[-1]) for lines in run_gloo(GROUP))
    x, c = alone(STEPS)
    assert root[0] == member[0]
    np.testing.assert_allclose(root[0], x, rtol=0, atol=1e-6)
    np.testing.assert_allclose(root[1], c, rtol=0, atol=1e-6)

from __future__ import annotations

import dataclasses
import json
import threading
from contextlib import suppress

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError, WorkerLostError
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox.testing.model_region import ModelRegion
from smbox.testing.quadratic import LR, Descent, group_gradient, start
from smbox_torch.elastic.easgd import EASGD
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.world import World

RATE, PERIOD, STEPS = 0.3, 2, 8


def hybrid(world: World, box: ModelBox | None, **options) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start() + np.float32(world.local_rank)))
    client = box.client(f"w{world.group_rank}") if box and world.is_group_root else None
    options = {"period": PERIOD, "moving_rate": RATE, "world": world} | options
    sgd = torch.optim.SGD([x], lr=LR)
    return Descent(world.rank, x, HybridSGD(sgd, client, "run", **options))


@pytest.mark.parametrize("period", [1, PERIOD])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_group_of_one_is_easgd_bit_for_bit(worlds, overlap: bool, period: int):
    mine, plain = ModelBox(), ModelBox()
    settings = {"period": period, "moving_rate": RATE, "overlap": overlap}
    (world,) = worlds(1, 1)
    one = hybrid(world, mine, **settings)
    one.run(STEPS)
    one.optimizer.close()
    x = torch.nn.Parameter(torch.from_numpy(start()))
    other = Descent(
        0, x, EASGD(torch.optim.SGD([x], lr=LR), plain, "run", workers=1, **settings)
    )
    other.run(STEPS)
    other.optimizer.close()
    assert one.values().tobytes() == other.values().tobytes()
    assert center(mine).tobytes() == center(plain).tobytes()


def center(box: ModelBox) -> np.ndarray:
    return box.attach("run.float32").get()


def group(number: int, x: np.ndarray, c: np.ndarray, steps: int, period: int):
    """What a group of two does, and shares in the end."""
    settings = {"steps": steps, "lr": LR, "moving_rate": RATE, "period": period}
    steps_of_group = oracles.easgd(x, c, group_gradient(number, 2), **settings)
    return oracles.shared(steps_of_group, x, c, moving_rate=RATE)


def alone(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """x and center of one group of two."""
    x, c = start(), start()
    oracles.run(group(0, x, c, steps, PERIOD))
    return x, c


@pytest.mark.parametrize("period", [1, PERIOD])
@pytest.mark.parametrize("overlap", [False, True])
def test_groups_equal_the_replay_of_their_order(worlds, each, overlap: bool, period: int):
    box, made = ModelBox(), threading.Barrier(4)

    def work(world: World) -> np.ndarray:
        one = hybrid(world, box, overlap=overlap, period=period)
        made.wait(60.0)  # a group that comes after an exchange begins elsewhere
        one.run(STEPS)
        one.optimizer.close()
        return one.values()

    values = each(worlds(2, 2), work)
    assert values[0].tobytes() == values[1].tobytes()
    assert values[2].tobytes() == values[3].tobytes()
    xs, c = [start(), start()], start()
    runs = {f"w{number}": group(number, xs[number], c, STEPS, period) for number in range(2)}
    order = box.order("run.float32", "elastic")
    assert len(order) == 2 * (STEPS // period + 1)
    oracles.replay(runs, order)
    np.testing.assert_allclose(values[0], xs[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(values[2], xs[1], rtol=0, atol=1e-6)
    np.testing.assert_allclose(center(box), c, rtol=0, atol=1e-6)


def test_only_the_root_moves_bytes_and_has_the_default_rate(worlds, each, monkeypatch):
    box, rates, elastic = ModelBox(), [], ModelRegion.elastic

    def noted(region: ModelRegion, x, moving_rate: float, **options) -> None:
        rates.append(moving_rate)
        elastic(region, x, moving_rate, **options)

    def work(world: World):
        one = hybrid(world, box, moving_rate=None, period=1)
        one.run(3)
        one.optimizer.close(exchange=False)
        return one.optimizer.stats(), one.optimizer.sync_stats()

    monkeypatch.setattr(ModelRegion, "elastic", noted)
    (root, inside), (member, _) = each(worlds(2, 2), work)[:2]
    assert (root.exchanges, member.exchanges, root.steps, member.steps) == (3, 3, 3, 3)
    assert root.nbytes > 0 == member.nbytes
    assert inside.exchanges == 3
    assert rates == [0.45] * 6  # of two roots


def test_batch_norm_statistics_travel_stay_equal_in_a_group_and_are_restored(worlds, each):
    box, saved = ModelBox(), {}

    def work(world: World) -> bytes:
        torch.manual_seed(world.rank)
        model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
        client = (ModelBox() if world.restart else box).client("w")
        sgd = torch.optim.SGD(model.parameters(), lr=LR)
        with HybridSGD(sgd, client, "run", model=model, period=1, world=world) as optimizer:
            if world.restart:
                optimizer.load_state_dict(saved)
            for _ in range(0 if world.restart else 3):
                optimizer.zero_grad()
                model(torch.randn(4, 3)).square().mean().backward()
                optimizer.step()
            if world.is_group_root:
                saved.update(optimizer.state_dict())
            assert int(model[0].num_batches_tracked) == 3
            return model[0].running_mean.numpy().tobytes()

    members = worlds(1, 2)
    first, second = each(members, work)
    assert first == second
    assert np.abs(box.attach("run.buffers.float32").get()).max() > 0
    assert each([dataclasses.replace(w, restart=1) for w in members], work) == [first, first]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_run_resumes_exactly_on_all_ranks(worlds, each, overlap: bool):
    box, again, saved = ModelBox(), ModelBox(), {}
    members = worlds(1, 2)

    def whole(world: World) -> np.ndarray:
        one = hybrid(world, box, overlap=overlap)
        one.run(4)
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
    assert (
        saved["extra"]["moves"] is not None
    ) == overlap  # the last step has begun an exchange
    assert {x.tobytes() for x in before + after} == {before[0].tobytes()}
    assert center(again).tobytes() == center(box).tobytes()


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_root_whose_memory_fails_is_named_by_the_others(
    worlds, each, monkeypatch, overlap: bool, closes: bool
):
    """Whoever settles first learns it: a step, or ``close``."""
    box, steps = ModelBox(), 2 if overlap and not closes else 1

    def fail(*_, **__) -> None:
        raise ConnectionError("the memory is gone")

    def work(world: World) -> None:
        one = hybrid(world, box, period=1, overlap=overlap)
        if world.is_group_root:
            with pytest.raises(ConnectionError), one.optimizer:
                one.run(steps)
        else:
            with pytest.raises(WorkerLostError, match="rank 0 has left"), one.optimizer:
                one.run(steps)
        one.optimizer.close(exchange=False)

    monkeypatch.setattr(ModelRegion, "elastic", fail)
    each(worlds(1, 2), work)


def test_closing_moves_all_ranks_by_the_exchange_under_way(worlds, each, monkeypatch):
    """Whatever ended the loop, and although each rank closes for itself."""
    box, gate, elastic = ModelBox(), threading.Event(), ModelRegion.elastic

    def held(*operands, **options) -> None:
        gate.wait()
        elastic(*operands, **options)

    def work(world: World) -> np.ndarray:
        one = hybrid(world, box, overlap=True)
        one.run(1)
        if world.is_group_root:
            monkeypatch.setattr(ModelRegion, "elastic", held)
        with suppress(KeyError), one.optimizer:
            one.run(1)
            gate.set()
            raise KeyError
        return one.values()

    values = each(worlds(1, 2), work)
    x, c = alone(2)
    for found in values:
        np.testing.assert_allclose(found, x, rtol=0, atol=1e-6)
    assert values[0].tobytes() == values[1].tobytes()
    np.testing.assert_allclose(center(box), c, rtol=0, atol=1e-6)


@pytest.mark.parametrize("wrong", [{"period": 0}, {"moving_rate": 1.5}])
def test_impossible_arguments_are_refused(worlds, wrong):
    with pytest.raises(ConfigError):
        hybrid(worlds(1, 1)[0], ModelBox(), **wrong)


def test_a_root_without_a_box_is_refused(worlds):
    with pytest.raises(ConfigError, match="box"):
        hybrid(worlds(1, 1)[0], None)


GROUP = """
import json
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, start
from smbox_torch.hybrid.hybrid import HybridSGD

x = torch.nn.Parameter(torch.from_numpy(start()) + rank)
box = ModelBox() if rank == 0 else None
sgd = torch.optim.SGD([x], lr=LR)
options = {"period": 2, "moving_rate": 0.3, "groups": 1, "overlap": OVERLAP}
optimizer = HybridSGD(sgd, box, "run", group=dist.group.WORLD, **options)
with optimizer:
    one = Descent(rank, x, optimizer)
    one.run(6)
    saved = [optimizer.state_dict() if rank == 0 else None]
    one.run(4)
    dist.broadcast_object_list(saved)
    optimizer.load_state_dict(saved[0], force=True)
    one.t = 6
    one.run(2)
    optimizer.close()
    stats = optimizer.stats()
    inside = optimizer.sync_stats().exchanges
    center = box.attach("run.float32").get().tolist() if box else None
print(json.dumps([one.values().tolist(), center, stats.exchanges, stats.nbytes > 0, inside]))
"""


@pytest.mark.parametrize("overlap", [False, True])
def test_a_process_group_takes_the_place_of_a_host(run_gloo, overlap: bool):
    """And a state that was taken with an exchange under way is gone back to in the middle."""
    script = GROUP.replace("OVERLAP", str(overlap))
    root, member = (json.loads(lines[-1]) for lines in run_gloo(script))
    x, c = alone(STEPS)
    assert root[0] == member[0]
    np.testing.assert_allclose(root[0], x, rtol=0, atol=1e-6)
    np.testing.assert_allclose(root[1], c, rtol=0, atol=1e-6)
    # Of the exchange that is under way when the state is loaded nobody hears; the move in the
    # state is told again.
    assert root[2:] == [7, True, 12]
    assert member[1:] == [None, 7, False, 12]

from __future__ import annotations

import dataclasses
import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError, WorkerLostError
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, gradient, start
from smbox_torch.easgd import EASGD
from smbox_torch.hybrid import HybridSGD
from smbox_torch.world import World

RATE, PERIOD, STEPS = 0.3, 2, 8


def worlds(groups: int, ranks: int) -> list[World]:
    run_id = uuid.uuid4().hex
    return [
        World(
            rank=group * ranks + rank,
            local_rank=rank,
            world_size=groups * ranks,
            local_world_size=ranks,
            group_rank=group,
            run_id=run_id,
        )
        for group in range(groups)
        for rank in range(ranks)
    ]


def hybrid(world: World, box: ModelBox | None, **options) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start() + np.float32(world.local_rank)))
    client = box.client(f"w{world.group_rank}") if box and world.is_group_root else None
    options = {"period": PERIOD, "moving_rate": RATE, "world": world} | options
    sgd = torch.optim.SGD([x], lr=LR)
    return Descent(world.rank, x, HybridSGD(sgd, client, "run", **options))


def each(members: list[World], work) -> list:
    with ThreadPoolExecutor(len(members)) as pool:
        return [found.result() for found in [pool.submit(work, world) for world in members]]


def group_gradient(group: int, ranks: int):
    """The mean gradient of a group, in rank order."""

    def mean(x: np.ndarray, t: int) -> np.ndarray:
        total = gradient(group * ranks)(x, t)
        for rank in range(1, ranks):
            total = total + gradient(group * ranks + rank)(x, t)
        return total / np.float32(ranks)

    return mean


def test_a_group_of_one_is_easgd_bit_for_bit():
    mine, plain = ModelBox(), ModelBox()
    (world,) = worlds(1, 1)
    one = hybrid(world, mine)
    one.run(STEPS)
    one.optimizer.close()
    x = torch.nn.Parameter(torch.from_numpy(start()))
    other = Descent(
        0,
        x,
        EASGD(torch.optim.SGD([x], lr=LR), plain, "run", period=PERIOD, moving_rate=RATE),
    )
    other.run(STEPS)
    assert one.values().tobytes() == other.values().tobytes()
    assert center(mine).tobytes() == center(plain).tobytes()


def center(box: ModelBox) -> np.ndarray:
    return box.attach("run.float32").get()


def test_groups_equal_the_replay_of_their_order():
    box, made = ModelBox(), threading.Barrier(4)

    def work(world: World) -> np.ndarray:
        one = hybrid(world, box)
        made.wait(60.0)  # a group that comes after an exchange begins elsewhere
        one.run(STEPS)
        one.optimizer.close()
        return one.values()

    values = each(worlds(2, 2), work)
    assert values[0].tobytes() == values[1].tobytes()
    assert values[2].tobytes() == values[3].tobytes()
    xs, c = [start(), start()], start()
    runs = {
        f"w{group}": oracles.easgd(
            xs[group],
            c,
            group_gradient(group, 2),
            steps=STEPS,
            lr=LR,
            moving_rate=RATE,
            period=PERIOD,
        )
        for group in range(2)
    }
    order = box.order("run.float32", "elastic")
    assert len(order) == 2 * STEPS // PERIOD
    oracles.replay(runs, order)
    np.testing.assert_allclose(values[0], xs[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(values[2], xs[1], rtol=0, atol=1e-6)
    np.testing.assert_allclose(center(box), c, rtol=0, atol=1e-6)


def test_only_the_root_moves_bytes_and_the_default_rate_counts_groups():
    box = ModelBox()

    def work(world: World):
        one = hybrid(world, box, moving_rate=None, period=1)
        one.run(3)
        one.optimizer.close()
        root = one.optimizer._root
        return one.optimizer.stats(), one.optimizer.sync_stats(), root and root.moving_rate

    (root, inside, rate), (member, _, none) = each(worlds(2, 2), work)[:2]
    assert (root.exchanges, member.exchanges, root.steps, member.steps) == (3, 3, 3, 3)
    assert root.nbytes > 0 == member.nbytes
    assert inside.exchanges == 3
    assert (rate, none) == (0.45, None)


def test_batch_norm_statistics_travel_and_stay_equal_in_a_group():
    box = ModelBox()

    def work(world: World) -> bytes:
        torch.manual_seed(world.rank)
        model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
        client = box.client("w") if world.is_group_root else None
        sgd = torch.optim.SGD(model.parameters(), lr=LR)
        with HybridSGD(sgd, client, "run", model=model, period=1, world=world) as optimizer:
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(4, 3)).square().mean().backward()
                optimizer.step()
            assert int(model[0].num_batches_tracked) == 3
            return model[0].running_mean.numpy().tobytes()

    first, second = each(worlds(1, 2), work)
    assert first == second
    assert np.abs(box.attach("run.buffers.float32").get()).max() > 0


def test_a_run_resumes_exactly_on_all_ranks():
    box, again, saved = ModelBox(), ModelBox(), {}
    members = worlds(1, 2)

    def whole(world: World) -> np.ndarray:
        one = hybrid(world, box)
        one.run(3)
        if world.is_group_root:
            saved.update(one.optimizer.state_dict())
        else:
            with pytest.raises(ConfigError, match="root"):
                one.optimizer.state_dict()
        one.run(4)
        one.optimizer.close()
        return one.values()

    def rest(world: World) -> np.ndarray:
        one = hybrid(world, again)
        one.optimizer.load_state_dict(saved)
        one.t = 3
        one.run(4)
        one.optimizer.close()
        return one.values()

    before = each(members, whole)
    after = each([dataclasses.replace(world, restart=1) for world in members], rest)
    assert {x.tobytes() for x in before + after} == {before[0].tobytes()}
    assert center(again).tobytes() == center(box).tobytes()


def test_a_root_whose_memory_fails_is_named_by_the_others():
    box = ModelBox()

    def work(world: World) -> None:
        one = hybrid(world, box, period=1)
        if world.is_group_root:

            def fail(*_: object) -> None:
                raise ConnectionError("the memory is gone")

            one.optimizer._root.tell = fail
            with pytest.raises(ConnectionError), one.optimizer:
                one.run(1)
        else:
            with pytest.raises(WorkerLostError, match="rank 0 has left"), one.optimizer:
                one.run(1)

    each(worlds(1, 2), work)


@pytest.mark.parametrize("wrong", [{"period": 0}, {"moving_rate": 1.5}])
def test_impossible_arguments_are_refused(wrong):
    with pytest.raises(ConfigError):
        hybrid(worlds(1, 1)[0], ModelBox(), **wrong)


def test_a_root_without_a_box_is_refused():
    with pytest.raises(ConfigError, match="box"):
        hybrid(worlds(1, 1)[0], None)


GROUP = """
import json
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, start
from smbox_torch.hybrid import HybridSGD

x = torch.nn.Parameter(torch.from_numpy(start()) + rank)
box = ModelBox() if rank == 0 else None
sgd = torch.optim.SGD([x], lr=LR)
optimizer = HybridSGD(
    sgd, box, "run", period=2, moving_rate=0.3, groups=1, group=dist.group.WORLD
)
with optimizer:
    one = Descent(rank, x, optimizer)
    one.run(8)
    stats = optimizer.stats()
    inside = optimizer.sync_stats().exchanges
    center = box.attach("run.float32").get().tolist() if box else None
print(json.dumps([one.values().tolist(), center, stats.exchanges, stats.nbytes > 0, inside]))
"""


def test_a_process_group_takes_the_place_of_a_host(run_gloo):
    root, member = (json.loads(lines[-1]) for lines in run_gloo(GROUP))
    x, c = start(), start()
    oracles.run(
        oracles.easgd(
            x, c, group_gradient(0, 2), steps=STEPS, lr=LR, moving_rate=RATE, period=PERIOD
        )
    )
    assert root[0] == member[0]
    np.testing.assert_allclose(root[0], x, rtol=0, atol=1e-6)
    np.testing.assert_allclose(root[1], c, rtol=0, atol=1e-6)
    assert root[2:] == [STEPS // PERIOD, True, STEPS]
    assert member[1:] == [None, STEPS // PERIOD, False, STEPS]

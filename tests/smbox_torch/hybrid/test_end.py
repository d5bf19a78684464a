"""The end of a run of HybridSGD: what the period has left, and the center in every model."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from smbox import Region
from smbox.errors import ConfigError, ConnectError
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, start
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.world import World

STEPS = 3


def run(
    members: list[World],
    box: ModelBox,
    overlap: bool,
    end,
    exchange: str = "elastic",
    timeout_s: float = 30.0,
) -> list[np.ndarray]:
    """Train two groups of two for fewer steps than a period; return all models at the end."""

    def work(world: World) -> np.ndarray:
        x = torch.nn.Parameter(torch.from_numpy(start()))
        client = box.client(f"w{world.group_rank}") if world.is_group_root else None
        sgd = torch.optim.SGD([x], lr=LR)
        settings = {"period": 10, "overlap": overlap, "timeout_s": timeout_s, "world": world}
        settings["exchange"] = exchange
        one = Descent(world.rank, x, HybridSGD(sgd, client, "run", **settings))
        one.run(STEPS)
        end(one.optimizer)
        return one.values()

    with ThreadPoolExecutor(4) as pool:
        return [each.result() for each in [pool.submit(work, w) for w in members]]


def center(box: ModelBox) -> np.ndarray:
    return box.attach("run.float32").get()


@pytest.mark.parametrize("exchange", ["elastic", "seasgd"])
@pytest.mark.parametrize("overlap", [False, True])
def test_finishing_shares_the_rest_and_leaves_the_center_in_every_model(
    worlds, overlap: bool, exchange: str
):
    box = ModelBox()
    ended = run(
        worlds(2, 2), box, overlap, lambda optimizer: optimizer.finish(timeout_s=30.0), exchange
    )
    assert not np.array_equal(center(box), start())
    for x in ended:
        np.testing.assert_array_equal(x, center(box))


def test_a_model_that_was_moved_does_not_finish(worlds):
    def end(optimizer: HybridSGD) -> None:
        optimizer.exchange()  # no step is left to share
        (x,) = optimizer.param_groups[0]["params"]
        x.data = x.data.double()
        with pytest.raises(ConfigError, match="not in the flat buffer"):
            optimizer.finish()
        optimizer.close()

    run(worlds(1, 1), ModelBox(), False, end)


def test_all_ranks_of_a_group_count_the_same_exchanges(worlds):
    counts: list[int] = []

    def end(optimizer: HybridSGD) -> None:
        optimizer.finish(timeout_s=30.0)
        counts.append(optimizer.stats().exchanges)

    run(worlds(1, 2), ModelBox(), False, end)
    assert counts[0] == counts[1] > 0


def test_every_group_ends_with_the_bits_of_the_center(worlds):
    box = ModelBox()

    def work(world: World) -> np.ndarray:
        x = torch.nn.Parameter(torch.zeros(1000))
        client = box.client(f"w{world.group_rank}")
        optimizer = HybridSGD(torch.optim.SGD([x], lr=1.0), client, "run", world=world)
        x.grad = torch.randn(1000, generator=torch.Generator().manual_seed(world.rank))
        optimizer.step()
        optimizer.finish(timeout_s=30.0)
        return x.detach().numpy()

    with ThreadPoolExecutor(2) as pool:
        for x in pool.map(work, worlds(2, 1)):
            np.testing.assert_array_equal(x, center(box))


def test_a_group_waits_for_a_slow_one_longer_than_its_ranks_for_each_other(worlds):
    box, timeout_s = ModelBox(), 8.0
    ended, members = [threading.Event() for _ in range(4)], worlds(2, 2)
    waited = threading.Barrier(2)

    def end(optimizer: HybridSGD) -> None:
        with optimizer:  # a rank that fails here tells the other one
            if optimizer.world.group_rank == 1:  # who waits, does so beyond timeout_s
                assert not ended[0].wait(timeout_s + 1.0)
                waited.wait()
            optimizer.finish(timeout_s=60.0)
        ended[optimizer.world.rank].set()

    for x in run(members, box, False, end, timeout_s=timeout_s):
        np.testing.assert_array_equal(x, center(box))
    assert all(each.is_set() for each in ended)


@pytest.mark.parametrize("exchange", ["elastic", "seasgd"])
@pytest.mark.parametrize("overlap", [False, True])
def test_closing_shares_the_rest(worlds, overlap: bool, exchange: str):
    box, met = ModelBox(), threading.Barrier(4)

    def end(optimizer: HybridSGD) -> None:
        optimizer.close()
        met.wait(30.0)

    ended = run(worlds(2, 2), box, overlap, end, exchange)
    assert not np.array_equal(center(box), start())
    assert ended[0].tobytes() == ended[1].tobytes()
    assert ended[2].tobytes() == ended[3].tobytes()


@pytest.mark.parametrize("steps", [3, 4])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_checkpoint_shares_at_the_end_what_was_left_and_no_more(
    worlds, each, overlap: bool, steps: int
):
    box, again, saved = ModelBox(), ModelBox(), {}
    members = worlds(1, 2)

    def make(world: World, box: ModelBox) -> Descent:
        x = torch.nn.Parameter(torch.from_numpy(start()))
        settings = {"period": 3, "overlap": overlap, "exchange": "seasgd", "world": world}
        sgd = torch.optim.SGD([x], lr=LR)
        return Descent(world.rank, x, HybridSGD(sgd, box, "run", **settings))

    def whole(world: World) -> None:
        one = make(world, box)
        one.run(steps)  # the third has exchanged
        if world.is_group_root:
            saved.update(one.optimizer.state_dict())
        one.optimizer.close()

    def rest(world: World) -> None:
        one = make(world, again)
        one.optimizer.load_state_dict(saved)
        one.optimizer.close()

    each(members, whole)
    each([dataclasses.replace(world, restart=1) for world in members], rest)
    np.testing.assert_array_equal(center(again), center(box))


def test_on_demand_nothing_is_shared(worlds):
    box = ModelBox()
    run(worlds(2, 2), box, False, lambda optimizer: optimizer.close(exchange=False))
    once = center(box)  # the exchange of the first step, of x that had not moved
    np.testing.assert_array_equal(once, start())


def begun_at(world: World, open_box, **settings) -> int:
    """Train five steps as a rank; return the number of steps that it began with."""
    x = torch.nn.Parameter(torch.from_numpy(start()))
    box = open_box() if world.is_group_root else None
    sgd = torch.optim.SGD([x], lr=LR)
    one = Descent(world.rank, x, HybridSGD(sgd, box, "run", world=world, **settings))
    begun = one.optimizer.steps
    one.run(5)
    one.optimizer.close()
    return begun


@pytest.mark.parametrize("exchange", ["elastic", "seasgd"])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_group_that_is_restarted_continues_its_steps(
    worlds, each, open_box, monkeypatch, overlap: bool, exchange: str
):
    settings = {"period": 2, "overlap": overlap, "exchange": exchange}
    monkeypatch.setenv("SMBOX_RANK", "0")
    monkeypatch.setenv("SMBOX_WORLD_SIZE", "1")
    for launch, begun in ("one", 0), ("one", 5), ("other", 0):
        monkeypatch.setenv("SMBOX_RUN_ID", launch)
        found = each(worlds(1, 2), lambda world: begun_at(world, open_box, **settings))
        assert found == [begun, begun]


def test_a_group_continues_its_own_steps_and_not_those_of_another(
    worlds, each, open_box, monkeypatch
):
    """Whichever comes first."""
    for name, value in ("RANK", "0"), ("WORLD_SIZE", "4"), ("RUN_ID", "one"):
        monkeypatch.setenv(f"SMBOX_{name}", value)
    members = worlds(2, 2)
    for group, begun in (1, 0), (0, 0), (1, 5):
        ranks = members[2 * group : 2 * group + 2]
        assert each(ranks, lambda world: begun_at(world, open_box)) == [begun, begun]


def test_a_move_that_was_loaded_does_not_set_back_the_steps_of_its_group(
    worlds, open_box, monkeypatch
):
    for name, value in ("RANK", "0"), ("WORLD_SIZE", "1"), ("RUN_ID", "one"):
        monkeypatch.setenv(f"SMBOX_{name}", value)
    saved, begun = {}, []
    for steps in 4, 1, 0:
        x = torch.nn.Parameter(torch.from_numpy(start()))
        settings = {"period": 4, "overlap": True, "world": worlds(1, 1)[0]}
        one = HybridSGD(torch.optim.SGD([x], lr=LR), open_box(), "run", **settings)
        begun.append(one.steps)
        if saved:
            one.load_state_dict(saved)
        Descent(0, x, one).run(steps)
        saved = saved or one.state_dict()  # the fourth step has begun an exchange
        one.close(exchange=False)
    assert saved["extra"]["moves"]
    assert begun == [0, 4, 4]


@pytest.mark.parametrize("loaded", [0, 2])
def test_a_group_that_loads_a_state_reports_the_steps_that_the_center_has(
    worlds, each, open_box, monkeypatch, loaded: int
):
    """Its own root saved it (rank 2), or that of another group."""
    for name, value in ("RANK", "0"), ("WORLD_SIZE", "4"), ("RUN_ID", "one"):
        monkeypatch.setenv(f"SMBOX_{name}", value)
    members, saved = worlds(2, 2)[2:], {}

    def work(world: World) -> int:
        x = torch.nn.Parameter(torch.from_numpy(start()))
        box = open_box() if world.is_group_root else None
        sgd = torch.optim.SGD([x], lr=LR)
        one = HybridSGD(sgd, box, "run", world=world, period=2)
        begun = one.steps
        if saved:
            one.load_state_dict({**saved, "rank": loaded})
        else:
            Descent(world.rank, x, one).run(4)  # the center has two of them
        if world.is_group_root:
            saved.update(one.state_dict())
        one.close(exchange=False)
        return begun

    begun = []
    for run in "one", "two", "two":
        monkeypatch.setenv("SMBOX_RUN_ID", run)
        begun.append(each(members, work)[0])
    assert saved["steps"] == 4
    assert begun == [0, 0, saved["shared"]]


def test_a_group_does_not_report_the_steps_of_an_exchange_that_failed(
    worlds, open_box, monkeypatch
):
    for name, value in ("RANK", "0"), ("WORLD_SIZE", "1"), ("RUN_ID", "one"):
        monkeypatch.setenv(f"SMBOX_{name}", value)

    def lost(*_, **__):
        raise ConnectError("no node answers")

    begun = []
    for steps in 1, 0:
        x = torch.nn.Parameter(torch.from_numpy(start()))
        settings = {"period": 2, "overlap": True, "world": worlds(1, 1)[0]}
        one = HybridSGD(torch.optim.SGD([x], lr=LR), open_box(), "run", **settings)
        begun.append(one.steps)
        descent = Descent(0, x, one)
        descent.run(steps)
        if steps:
            with monkeypatch.context() as patch:
                patch.setattr(Region, "elastic", lost)
                with pytest.raises(ConnectError):
                    descent.run(2)  # the first of them begins an exchange
        one.close(exchange=False)
    assert begun == [0, 0]

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import uuid

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError, StepMismatchError
from smbox_torch.averaging.sync_group import SyncGroup
from smbox_torch.world import World

STEPS = 4
SIZE = 4  # of a batch
SEEDING = threading.Lock()  # torch has one generator for all threads

PROCESS = """
import os, sys, time
import torch
from smbox.errors import WorkerLostError
from smbox_torch.averaging.sync_group import SyncGroup
torch.set_num_threads(1)
rank, timeout_s = int(os.environ["RANK"]), float(sys.argv[1])
torch.manual_seed(rank)
weight = torch.nn.Parameter(torch.ones(2000))
group = SyncGroup(torch.optim.SGD([weight], lr=0.1), timeout_s=timeout_s)
with group:
    for number in range(3):
        group.zero_grad()
        (weight * torch.randn(2000)).sum().backward()
        group.step()
    print(os.getpid(), weight.detach().numpy().tobytes().hex(), flush=True)
    sys.stdin.readline()
    try:
        while True:
            weight.sum().backward()
            group.step()
    except WorkerLostError as error:
        print(error.facts["rank"], str(error), flush=True)
"""


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8 * SIZE * STEPS, 6, generator=generator)
    return x, x.sum(dim=1, keepdim=True) + torch.randn(len(x), 1, generator=generator)


def model() -> torch.nn.Sequential:
    with SEEDING:
        torch.manual_seed(7)
        return torch.nn.Sequential(
            torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
        )


def sgd(net: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def loss(net: torch.nn.Module, rows: slice) -> torch.Tensor:
    x, y = data()
    return torch.nn.functional.mse_loss(net(x[rows]), y[rows])


def values(net: torch.nn.Module) -> np.ndarray:
    return torch.nn.utils.parameters_to_vector(net.parameters()).detach().numpy()


def alone(batches: list[slice]) -> np.ndarray:
    """One process on the concatenated batches."""
    net = model()
    optimizer = sgd(net)
    for rows in batches:
        optimizer.zero_grad()
        loss(net, rows).backward()
        optimizer.step()
    return values(net)


def part(step: int, rank: int, ranks: int) -> slice:
    first = (step * ranks + rank) * SIZE
    return slice(first, first + SIZE)


def whole(step: int, ranks: int) -> slice:
    return slice(step * ranks * SIZE, (step + 1) * ranks * SIZE)


def train(world: World, *, ranks: int) -> np.ndarray:
    net = model()
    with SyncGroup(sgd(net), net, world=world, bucket_nbytes=100) as group:
        for step in range(STEPS):
            group.zero_grad()
            loss(net, part(step, world.rank, ranks)).backward()
            group.step()
    return values(net)


def test_one_worker_is_plain_sgd_bit_for_bit():
    mine = train(World(run_id=uuid.uuid4().hex), ranks=1)
    assert mine.tobytes() == alone([part(step, 0, 1) for step in range(STEPS)]).tobytes()


def test_workers_are_one_worker_on_the_concatenated_batch(run_ranks):
    results = run_ranks(4, lambda world: train(world, ranks=4))
    assert {each.tobytes() for each in results} == {results[0].tobytes()}
    expected = alone([whole(step, 4) for step in range(STEPS)])
    np.testing.assert_allclose(results[0], expected, rtol=1e-6, atol=1e-6)


def test_gradients_add_up_without_sync_until_one_backward_with_it(run_ranks):
    def work(world: World) -> np.ndarray:
        net = model()
        with SyncGroup(sgd(net), world=world) as group:
            for step in range(0, STEPS, 2):
                group.zero_grad()
                with group.no_sync():
                    (loss(net, part(step, world.rank, 2)) / 2).backward()
                (loss(net, part(step + 1, world.rank, 2)) / 2).backward()
                group.step()
            assert group.stats().exchanges == STEPS // 2
        return values(net)

    results = run_ranks(2, work)
    assert results[0].tobytes() == results[1].tobytes()
    expected = alone([slice(0, 16), slice(16, 32)])
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-6)


def test_gradients_are_averaged_by_step_where_no_backward_did(run_ranks):
    def work(world: World) -> np.ndarray:
        net = model()
        with SyncGroup(sgd(net), world=world) as group:
            with group.no_sync():
                loss(net, part(0, world.rank, 2)).backward()
            group.step()
        return values(net)

    results = run_ranks(2, work)
    assert results[0].tobytes() == results[1].tobytes()
    np.testing.assert_allclose(results[0], alone([whole(0, 2)]), rtol=1e-6, atol=1e-6)


def test_a_smaller_last_batch_counts_by_its_weight(run_ranks):
    cut = {0: slice(0, 6), 1: slice(6, 8)}

    def work(world: World) -> np.ndarray:
        net = model()
        with SyncGroup(sgd(net), world=world) as group:
            rows = cut[world.rank]
            group.weight = rows.stop - rows.start
            loss(net, rows).backward()
            group.step()
            with pytest.raises(ConfigError):
                group.weight = 0.0
        return values(net)

    results = run_ranks(2, work)
    np.testing.assert_allclose(results[0], alone([slice(0, 8)]), rtol=1e-6, atol=1e-6)
    assert results[0].tobytes() == results[1].tobytes()


def test_ranks_that_run_out_of_batches_follow_the_others_epoch_after_epoch(run_ranks):
    counts = [[1, 3, 2], [2, 0, 2]]  # batches of each rank, by epoch

    def work(world: World) -> np.ndarray:
        net = torch.nn.Sequential(torch.nn.BatchNorm1d(6), model())
        with SyncGroup(sgd(net), net, world=world) as group:
            for epoch in counts:
                with group.join():
                    for step in range(epoch[world.rank]):
                        group.zero_grad()
                        loss(net, part(step, world.rank, 3)).backward()
                        group.step()
            assert group.stats().steps == sum(max(epoch) for epoch in counts)
        return np.concatenate([values(net), net[0].running_mean.numpy()])

    results = run_ranks(3, work)
    assert {each.tobytes() for each in results} == {results[0].tobytes()}
    assert np.isfinite(results[0]).all()


def test_a_joined_rank_counts_nothing(run_ranks):
    def work(world: World) -> np.ndarray:
        net = model()
        with SyncGroup(sgd(net), world=world) as group, group.join():
            for step in range(world.rank * STEPS):
                group.zero_grad()
                loss(net, part(step, 0, 1)).backward()
                group.step()
        return values(net)

    results = run_ranks(2, work)
    assert results[0].tobytes() == results[1].tobytes()
    expected = alone([part(step, 0, 1) for step in range(STEPS)])
    assert results[0].tobytes() == expected.tobytes()


def test_it_is_an_optimizer_for_schedulers_clipping_and_resuming(run_ranks):
    def work(world: World) -> tuple[bytes, float, float]:
        net = model()
        with SyncGroup(sgd(net), world=world) as group:
            scheduler = torch.optim.lr_scheduler.StepLR(group, step_size=1, gamma=0.5)
            group.step(lambda: loss(net, part(0, world.rank, 2)).backward())
            scheduler.step()
            loss(net, part(1, world.rank, 2)).backward()
            norm = float(torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1))
            group.load_state_dict(group.state_dict())
            group.step()
            with pytest.raises(ConfigError):
                group.add_param_group({"params": []})
            return values(net).tobytes(), group.inner.param_groups[0]["lr"], norm

    first, second = run_ranks(2, work)
    assert first == second
    assert first[1] == 0.025
    assert first[2] > 0.1


@pytest.fixture
def spawned(preloaded: str):
    """Processes that have stepped three times and wait for a line on stdin."""
    children: list[subprocess.Popen[str]] = []

    def spawn(ranks: int, timeout_s: float) -> list[subprocess.Popen[str]]:
        run = {"WORLD_SIZE": str(ranks), "TORCHELASTIC_RUN_ID": uuid.uuid4().hex}
        children.extend(
            subprocess.Popen(
                [preloaded, "-c", PROCESS, str(timeout_s)],
                env=os.environ | run | {"RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        )
        return children

    yield spawn
    for child in children:
        child.kill()
        child.wait()
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        child.stdout.close()


def weights_in_numpy(ranks: int) -> np.ndarray:
    """The same three steps in float32, in rank order."""
    weight = np.ones(2000, np.float32)
    generators = [torch.Generator().manual_seed(rank) for rank in range(ranks)]
    for _ in range(3):
        draws = [torch.randn(2000, generator=each).numpy() for each in generators]
        total = draws[0]
        for each in draws[1:]:
            total = total + each
        weight = weight - np.float32(0.1) * (total / np.float32(ranks))
    return weight


@pytest.mark.parametrize(
    ("ranks", "sign", "timeout_s"), [(4, signal.SIGKILL, 600.0), (2, signal.SIGSTOP, 8.0)]
)
def test_processes_agree_and_name_the_one_that_is_lost(
    spawned, ranks: int, sign: signal.Signals, timeout_s: float
):
    children = spawned(ranks, timeout_s)
    told = [child.stdout.readline().split() for child in children]
    found = [bytes.fromhex(weights) for _, weights in told]
    assert set(found) == {found[0]}
    mine = np.frombuffer(found[0], np.float32)
    np.testing.assert_allclose(mine, weights_in_numpy(ranks), rtol=0, atol=1e-6)
    os.kill(int(told[1][0]), sign)
    others = [child for child in children if child is not children[1]]
    for child in others:
        child.stdin.write("\n")
        child.stdin.flush()
    lost = [child.stdout.readline() for child in others]
    assert [line.split()[0] for line in lost] == ["1"] * len(others), lost
    assert any("died" in line or "stopped" in line for line in lost)


def test_the_error_of_a_rank_that_left_is_raised_in_the_thread_that_steps(run_ranks):
    def work(world: World) -> None:
        net = model()
        group = SyncGroup(sgd(net), world=world)
        if world.rank == 0:
            with pytest.raises(StepMismatchError, match="rank 1 finished after 0 steps"):
                group.step(lambda: loss(net, slice(0, 4)).backward())
        group.close()

    run_ranks(2, work)

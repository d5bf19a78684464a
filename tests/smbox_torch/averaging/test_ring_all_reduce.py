from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.quadratic import LR, SIZE, Descent, noise, start
from smbox_torch.averaging.ring_all_reduce import RingAllReduce
from smbox_torch.averaging.store_exchange import kept_stores
from smbox_torch.launching.local_host import free_port
from smbox_torch.world import World

STEPS = 6
LONG_S = 60.0

PROCESS = """
import sys, torch
from smbox.errors import WorkerLostError
from smbox_torch.averaging.ring_all_reduce import RingAllReduce
torch.set_num_threads(1)
weight = torch.nn.Parameter(torch.zeros(5))
optimizer = RingAllReduce(torch.optim.SGD([weight], lr=1.0))
(weight.sum() * (1 + int(sys.argv[1]))).backward()
optimizer.step()
print(weight[0].item(), flush=True)
sys.stdin.readline()
try:
    optimizer.step()
except WorkerLostError as error:
    print(error.facts["rank"], flush=True)
optimizer.close()
"""


def train(world: World, exchange=None) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start() + np.float32(world.rank)))
    sgd = torch.optim.SGD([x], lr=LR, momentum=0.5)
    with RingAllReduce(sgd, world=world, exchange=exchange, timeout_s=LONG_S) as optimizer:
        one = Descent(world.rank, x, optimizer)
        one.run(STEPS)
    return one


def replayed(size: int) -> np.ndarray:
    """SGD with momentum on the mean gradient, summed in the ring's order."""
    x, velocity = start(), np.zeros(SIZE, np.float32)
    for t in range(STEPS):
        gradients = [np.array_split(x - noise(rank, t), size) for rank in range(size)]
        means = []
        for p in range(size):
            total = gradients[p][p]
            for turn in range(1, size):
                total = total + gradients[(p + turn) % size][p]
            means.append(total / np.float32(size))
        velocity = np.float32(0.5) * velocity + np.concatenate(means)
        x = x - np.float32(LR) * velocity
    return x


def test_one_worker_is_plain_sgd_bit_for_bit():
    one = train(World())
    x = torch.nn.Parameter(torch.from_numpy(start()))
    plain = Descent(0, x, torch.optim.SGD([x], lr=LR, momentum=0.5))
    plain.run(STEPS)
    assert one.values().tobytes() == plain.values().tobytes()


def test_a_frozen_parameter_is_not_decayed():
    p, q = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    p.requires_grad_(False)
    sgd = torch.optim.SGD([p, q], lr=0.5, weight_decay=0.5)
    with RingAllReduce(sgd, world=World()) as optimizer:
        q.sum().backward()
        optimizer.step()
    assert p.tolist() == [1, 1]
    assert q.tolist() == [0.25, 0.25]


def test_after_equally_many_steps_nothing_is_copied_and_gradients_stay():
    p, q = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    sgd = torch.optim.SGD([p, q], lr=0.5)
    with RingAllReduce(sgd, world=World()) as optimizer:
        optimizer.weight = 3
        assert optimizer.weight == 3.0
        with optimizer.join():
            q.sum().backward()
            optimizer.step()
        assert optimizer.stats().exchanges == 1
    assert p.grad is None
    assert q.grad.tolist() == [1, 1]


def test_workers_equal_the_replay_and_each_other():
    addresses, met = [""] * 3, threading.Barrier(3)

    def work(rank: int) -> Descent:
        def exchange(address: str) -> list[str]:
            addresses[rank] = address
            met.wait(LONG_S)
            return addresses

        return train(World(rank, rank, world_size=3, local_world_size=3), exchange)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(work, range(3)))
    assert {one.values().tobytes() for one in found} == {found[0].values().tobytes()}
    np.testing.assert_allclose(found[0].values(), replayed(3), rtol=0, atol=1e-6)
    stats = found[0].optimizer.stats()
    assert (stats.steps, stats.exchanges) == (STEPS, STEPS)
    assert stats.nbytes == STEPS * (
        2 * 2 * 2 * 4 * SIZE // 3
    )  # both directions, two thirds twice


def test_a_worker_without_batches_adds_nothing_and_begins_with_frozen_parameters_of_rank_0():
    addresses, met = [""] * 2, threading.Barrier(2)

    def work(rank: int) -> list[float]:
        def exchange(address: str) -> list[str]:
            addresses[rank] = address
            met.wait(LONG_S)
            return addresses

        x, world = torch.nn.Parameter(torch.zeros(2)), World(rank, rank, 2, 2)
        frozen = torch.nn.Parameter(torch.full((1,), 5.0 + rank), requires_grad=False)
        sgd, gradient = torch.optim.SGD([x, frozen], lr=1.0), 1.0 + 2 * rank
        with RingAllReduce(sgd, world=world, exchange=exchange) as optimizer, optimizer.join():
            for _ in range(1 + 2 * rank):
                optimizer.zero_grad()
                (x.sum() * gradient).backward()
                optimizer.step()
        return [*x.tolist(), frozen.item()]

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, range(2)))
    assert found == [[-(1.0 + 3.0) / 2 - 3.0 - 3.0] * 2 + [5.0]] * 2


def test_models_that_differ_in_shape_alone_are_refused_on_all_workers():
    met, addresses = threading.Barrier(2), ["", ""]

    def refused(rank: int) -> torch.Tensor:
        def exchange(address: str) -> list[str]:
            addresses[rank] = address
            met.wait(LONG_S)
            return addresses

        weight = torch.nn.Parameter(torch.full((2 + rank, 3 - rank), float(rank)))
        sgd, world = torch.optim.SGD([weight], lr=LR), World(rank, rank, 2, 2)
        with pytest.raises(ConfigError, match="models differ"):
            RingAllReduce(sgd, world=world, exchange=exchange, timeout_s=LONG_S)
        return weight

    with ThreadPoolExecutor(2) as pool:
        weights = list(pool.map(refused, range(2)))
    assert [float(weight.detach().mean()) for weight in weights] == [0.0, 1.0]


def test_workers_that_nobody_told_a_master_are_told_what_to_do():
    with pytest.raises(ConfigError, match="exchange="):
        train(World(world_size=2), None)


def of_master(address: str) -> World:
    return World(0, 0, 2, 2, master_addr=address, master_port=free_port())


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_workers_find_each_other_by_a_master_of_either_protocol(address: str):
    first = of_master(address)
    with ThreadPoolExecutor(2) as pool:
        members = [first, dataclasses.replace(first, rank=1, local_rank=1)]
        values = {one.values().tobytes() for one in pool.map(train, members)}
    kept_stores.clear()
    assert len(values) == 1


def own_address() -> str:
    """Return the address by which other hosts reach this one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 1))
        except OSError:
            pytest.skip("this host has no address but loopback")
        return probe.getsockname()[0]


def test_a_master_whose_own_host_calls_it_loopback_is_an_error_on_all_workers():
    first = of_master("127.0.1.1")
    other = dataclasses.replace(first, rank=1, local_rank=1, master_addr=own_address())

    def refused(world: World) -> None:
        with pytest.raises(ConfigError, match="MASTER_ADDR") as caught:
            train(world)
        assert caught.value.facts["rank"] == 0

    began_s = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(refused, [first, other]))
    kept_stores.clear()
    assert time.monotonic() - began_s < LONG_S / 2


def test_workers_that_exchange_addresses_themselves_need_no_master():
    world = World(master_addr="unknown.invalid", master_port=1)
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    RingAllReduce(sgd, world=world, exchange=lambda address: [address]).close()


def test_a_master_that_this_host_does_not_know_is_named():
    with pytest.raises(ConfigError, match=r"check MASTER_ADDR.*master_addr='256\.0\.0\.1'"):
        train(of_master("256.0.0.1"))


@pytest.mark.parametrize("prefix", ["SMBOX_", ""])
def test_processes_find_each_other_by_the_store_and_miss_the_one_that_dies(
    preloaded: str, prefix: str
):
    env = os.environ | {
        f"{prefix}WORLD_SIZE": "2",
        f"{prefix}MASTER_ADDR": "127.0.0.1",
        f"{prefix}MASTER_PORT": str(free_port()),
        f"{prefix or 'TORCHELASTIC_'}RUN_ID": uuid.uuid4().hex,
    }
    children = [
        subprocess.Popen(
            [preloaded, "-c", PROCESS, str(rank)],
            env=env | {f"{prefix}RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        assert [child.stdout.readline() for child in children] == ["-1.5\n"] * 2
        children[1].kill()
        told, _ = children[0].communicate("\n", timeout=LONG_S)
        assert told == "1\n"
    finally:
        for child in children:
            child.kill()
            child.wait()
            child.stdin.close()
            child.stdout.close()

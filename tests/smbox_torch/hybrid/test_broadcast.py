from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest
import torch

from smbox.errors import WorkerLostError
from smbox.testing.model_box import ModelBox
from smbox_torch.averaging import rendezvous
from smbox_torch.averaging.rendezvous import Rendezvous
from smbox_torch.hybrid.broadcast import HostBroadcast
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.model.flat import FlatBuffer
from smbox_torch.world import World

LONG_S = 60.0


def flat() -> list[FlatBuffer]:
    return [FlatBuffer([torch.zeros(5)]), FlatBuffer([torch.zeros(3, dtype=torch.float64)])]


def test_ranks_of_a_host_find_what_the_root_told(run_ranks):
    def work(world: World) -> list[list[float]]:
        moves = HostBroadcast("moves", world, flat(), LONG_S)
        if world.is_group_root:
            for number, tensor in enumerate(moves.tensors):
                tensor.fill_(number + 0.5)
            moves.publish()
        moves.receive()
        found = [tensor.tolist() for tensor in moves.tensors]
        moves.close()
        return found

    assert run_ranks(3, work) == [[[0.5] * 5, [1.5] * 3]] * 3


def test_a_root_that_left_without_telling_is_named(run_ranks):
    def work(world: World) -> None:
        moves = HostBroadcast("moves", world, flat(), LONG_S)
        if not world.is_group_root:
            with pytest.raises(WorkerLostError, match="rank 0 has left"):
                moves.receive()
        moves.close()

    run_ranks(2, work)


def test_only_a_root_that_has_not_published_is_lost(run_ranks, monkeypatch):
    """A member may leave, and the root may publish and leave, before a rank checks them."""
    monkeypatch.setattr(rendezvous, "SPIN_S", 0.0)
    monkeypatch.setattr(rendezvous, "POLL_S", 0.0)  # a check follows each look
    second_look, left = threading.Event(), [threading.Event() for _ in range(3)]
    looks, wait_until = [], Rendezvous.wait_until

    def wait(meeting: Rendezvous, is_done: Callable[[], bool], lags) -> None:
        def look() -> bool:
            looks.append(is_done())
            if len(looks) == 2:
                second_look.set()
                left[0].wait(LONG_S)
            return looks[-1]

        wait_until(meeting, look, lags)

    def work(world: World) -> None:
        moves = HostBroadcast("moves", world, flat(), LONG_S)
        if world.rank == 0:
            second_look.wait(LONG_S)
            moves.publish()
        elif world.rank == 1:
            left[2].wait(LONG_S)
            monkeypatch.setattr(Rendezvous, "wait_until", wait)
            moves.receive()
        moves.close()
        left[world.rank].set()

    run_ranks(3, work)
    assert looks == [False, False, True]


def test_an_exchange_is_due_for_those_who_have_not_come_to_it(run_ranks):
    meet = threading.Barrier(2).wait

    def work(world: World) -> list[bool]:
        moves, found = HostBroadcast("moves", world, flat(), LONG_S), []
        for turn in (1, 2):
            if turn == 2 and world.rank == 1:
                moves.announce_due()
            meet(LONG_S)
            found.append(moves.is_due())
            meet(LONG_S)
        moves.close()
        return found

    assert run_ranks(2, work) == [[False, True], [False, False]]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_root_without_batches_exchanges_for_the_others(run_ranks, overlap):
    """Its group would wait for its move while it waits for their step."""
    box = ModelBox()

    def work(world: World) -> tuple[bytes, int]:
        x = torch.nn.Parameter(torch.ones(4))
        client = box.client("w") if world.is_group_root else None
        options = {"period": 1, "moving_rate": 0.5, "overlap": overlap, "timeout_s": 20.0}
        sgd = torch.optim.SGD([x], lr=0.1)
        with HybridSGD(sgd, client, "run", world=world, **options) as optimizer:
            with optimizer.join():
                for _ in range(0 if world.is_group_root else 3):
                    optimizer.zero_grad()
                    x.square().sum().backward()
                    optimizer.step()
            return x.detach().numpy().tobytes(), optimizer.steps

    first, second = run_ranks(2, work)
    assert first == second
    assert first[1] == 3


def test_a_move_stays_until_all_have_used_it(run_ranks):
    """The root is up to one exchange ahead with two sets, never more."""
    own, released = threading.Event(), threading.Event()

    def tell(moves: HostBroadcast, value: float) -> bool:
        moves.wait_writable()
        is_released = released.is_set()
        moves.tensors[0].fill_(value)
        moves.publish()
        moves.receive()
        moves.release()
        return is_released

    def work(world: World) -> list:
        moves = HostBroadcast("moves", world, flat(), LONG_S, sets=2)
        if world.is_group_root:
            found = [tell(moves, 1.0), tell(moves, 2.0)]
            own.set()
            found.append(tell(moves, 3.0))
        else:
            moves.receive()
            own.wait(LONG_S)
            found = [moves.tensors[0][0].item()]
            for _ in range(2):
                released.set()
                moves.release()
                moves.receive()
                found.append(moves.tensors[0][0].item())
            moves.release()
        moves.close()
        return found

    assert run_ranks(2, work) == [[False, False, True], [1.0, 2.0, 3.0]]


def test_a_root_does_not_wait_for_a_rank_that_has_left(run_ranks):
    def work(world: World) -> None:
        moves = HostBroadcast("moves", world, flat(), LONG_S)
        if world.is_group_root:
            moves.publish()
            moves.release()
            with pytest.raises(WorkerLostError, match="rank 1 has left"):
                moves.wait_writable()
        moves.close()

    run_ranks(2, work)


SCRIPT = """
import json
from smbox_torch.model.flat import FlatBuffer
from smbox_torch.hybrid.broadcast import TorchBroadcast

flat = [FlatBuffer([torch.zeros(5)]), FlatBuffer([torch.zeros(3, dtype=torch.float64)])]
moves = TorchBroadcast(dist.group.WORLD, flat, 60.0)
found = []
for turn in range(2):
    if rank == 0:
        for number, tensor in enumerate(moves.tensors):
            tensor.fill_(turn + number + 0.5)
        moves.publish()
    moves.receive()
    found.append([tensor.tolist() for tensor in moves.tensors])
moves.close()
print(json.dumps(found))
"""

LATE = """
from smbox.errors import WorkerLostError
from smbox_torch.model.flat import FlatBuffer
from smbox_torch.hybrid.broadcast import TorchBroadcast

moves = TorchBroadcast(dist.group.WORLD, [FlatBuffer([torch.zeros(5)])], 0.2)
gate = sys.argv[1] + ".gate"
if rank == 0:
    os.mkfifo(gate)
dist.barrier()
if rank == 0:
    open(gate).read()  # until the other one has given up
else:
    try:
        moves.receive()
    except WorkerLostError:
        print("given up", flush=True)
    open(gate, "w").close()
os._exit(0)
"""


def test_ranks_of_a_process_group_hear_what_the_root_tells(run_gloo):
    expected = [[[turn + 0.5] * 5, [turn + 1.5] * 3] for turn in range(2)]
    assert [json.loads(lines[-1]) for lines in run_gloo(SCRIPT)] == [expected, expected]


def test_a_broadcast_that_the_root_does_not_make_is_given_up(run_gloo):
    assert run_gloo(LATE) == [[], ["given up"]]

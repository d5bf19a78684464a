from __future__ import annotations

import json
import threading

import pytest
import torch

from smbox.errors import WorkerLostError
from smbox.testing.model_box import ModelBox
from smbox_torch.averaging import rendezvous
from smbox_torch.hybrid.broadcast import PUBLISHED, RELEASED, HostBroadcast
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
    """A member may leave, and the root may publish and leave while a rank checks the others."""
    monkeypatch.setattr(rendezvous, "POLL_S", 0.0)
    second_check, left = threading.Event(), [threading.Event() for _ in range(3)]
    checks = []

    def work(world: World) -> None:
        moves = HostBroadcast("moves", world, flat(), LONG_S)
        if world.rank == 0:
            second_check.wait(LONG_S)
            moves.publish()
        elif world.rank == 1:
            meeting = moves._memory.rendezvous
            check_ranks = meeting._check_ranks

            def check(lags, *, is_late: bool) -> None:
                checks.append(lags)
                if len(checks) == 2:
                    second_check.set()
                    left[0].wait(LONG_S)
                check_ranks(lags, is_late=is_late)

            meeting._check_ranks = check
            left[2].wait(LONG_S)
            moves.receive()
        moves.close()
        left[world.rank].set()

    run_ranks(3, work)
    assert len(checks) == 2


def test_an_exchange_is_due_for_those_who_have_not_come_to_it(run_ranks):
    def work(world: World) -> list[bool]:
        moves = HostBroadcast("moves", world, flat(), LONG_S)
        meeting, found = moves._memory.rendezvous, []
        for turn in (1, 2):
            if turn == 2 and world.rank == 1:
                moves.announce_due()
            meeting.raise_to(RELEASED, turn)
            meeting.wait(RELEASED, turn)
            found.append(moves.is_due())
            meeting.raise_to(PUBLISHED, turn)
            meeting.wait(PUBLISHED, turn)  # all have looked
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
    own = threading.Event()

    def tell(moves: HostBroadcast, value: float) -> list[int]:
        moves.wait_writable()
        used = moves._memory.rendezvous.counters(RELEASED)
        moves.tensors[0].fill_(value)
        moves.publish()
        moves.receive()
        moves.release()
        return used

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
                moves.release()
                moves.receive()
                found.append(moves.tensors[0][0].item())
            moves.release()
        moves.close()
        return found

    (first, second, third), member = run_ranks(2, work)
    assert member == [1.0, 2.0, 3.0]
    assert first == [0, 0]
    assert second[0] == 1
    assert third[1] >= 1


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

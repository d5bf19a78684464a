from __future__ import annotations

import json

import pytest
import torch

from smbox.errors import WorkerLostError
from smbox_torch.flat import FlatBuffer
from smbox_torch.hybrid_moves import HostMoves
from smbox_torch.world import World

LONG_S = 60.0


def flat() -> list[FlatBuffer]:
    return [FlatBuffer([torch.zeros(5)]), FlatBuffer([torch.zeros(3, dtype=torch.float64)])]


def test_ranks_of_a_host_find_what_the_root_told(run_ranks):
    def work(world: World) -> list[list[float]]:
        moves = HostMoves("moves", world, flat(), LONG_S)
        if world.is_group_root:
            for number, tensor in enumerate(moves.tensors):
                tensor.fill_(number + 0.5)
            moves.tell()
        else:
            moves.hear()
        found = [tensor.tolist() for tensor in moves.tensors]
        moves.close()
        return found

    assert run_ranks(3, work) == [[[0.5] * 5, [1.5] * 3]] * 3


def test_a_root_that_left_without_telling_is_named(run_ranks):
    def work(world: World) -> None:
        moves = HostMoves("moves", world, flat(), LONG_S)
        if not world.is_group_root:
            with pytest.raises(WorkerLostError, match="rank 0 has left"):
                moves.hear()
        moves.close()

    run_ranks(2, work)


SCRIPT = """
import json
from smbox_torch.flat import FlatBuffer
from smbox_torch.hybrid_moves import TorchMoves

flat = [FlatBuffer([torch.zeros(5)]), FlatBuffer([torch.zeros(3, dtype=torch.float64)])]
moves = TorchMoves(dist.group.WORLD, flat)
found = []
for turn in range(2):
    if rank == 0:
        for number, tensor in enumerate(moves.tensors):
            tensor.fill_(turn + number + 0.5)
        moves.tell()
    else:
        moves.hear()
    found.append([tensor.tolist() for tensor in moves.tensors])
moves.close()
print(json.dumps(found))
"""


def test_ranks_of_a_process_group_hear_what_the_root_tells(run_gloo):
    expected = [[[turn + 0.5] * 5, [turn + 1.5] * 3] for turn in range(2)]
    assert [json.loads(lines[-1]) for lines in run_gloo(SCRIPT)] == [expected, expected]

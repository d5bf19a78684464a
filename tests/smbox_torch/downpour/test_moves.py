from __future__ import annotations

import torch

from smbox_torch.downpour.moves import Moves
from smbox_torch.model.flat import FlatParameters


def made() -> tuple[torch.nn.Parameter, FlatParameters, Moves]:
    x = torch.nn.Parameter(torch.zeros(2))
    flat = FlatParameters([x])
    return x, flat, Moves(flat)


def test_moves_add_up_until_they_are_pushed():
    x, _, moves = made()
    for _ in range(2):
        x.data.add_(1.0)
        moves.gather()
    assert moves.pending[0].tolist() == [2.0, 2.0]
    moves.pushed()
    moves.gather()
    assert moves.pending[0].tolist() == [0.0, 0.0]


def test_what_a_fetch_changes_is_no_move():
    x, flat, moves = made()
    flat.buffers[0].host[:] = 5.0
    moves.rebase()
    x.data.add_(1.0)
    moves.gather()
    assert moves.pending[0].tolist() == [1.0, 1.0]


def test_moves_survive_a_checkpoint():
    x, flat, moves = made()
    x.data.add_(1.0)
    moves.gather()
    saved = moves.state()
    moves.pushed()
    other = Moves(flat)
    other.load_state(saved)
    assert other.pending[0].tolist() == [1.0, 1.0]

from __future__ import annotations

import pytest
import torch

from smbox_torch.downpour.pending_update import PendingUpdate
from smbox_torch.model.flat import FlatParameters


def made() -> tuple[torch.nn.Parameter, FlatParameters, PendingUpdate]:
    x = torch.nn.Parameter(torch.zeros(2))
    flat = FlatParameters([x])
    return x, flat, PendingUpdate(flat)


def gather(moves: PendingUpdate) -> list[float]:
    """Gather, fetch nothing, and return what is pending."""
    with moves.collecting():
        pass
    return moves.pending[0].tolist()


def test_moves_add_up_until_they_are_pushed():
    x, _, moves = made()
    for _ in range(2):
        x.data.add_(1.0)
        pending = gather(moves)
    assert pending == [2.0, 2.0]
    moves.clear()
    assert gather(moves) == [0.0, 0.0]


def test_what_a_fetch_changes_is_no_move():
    x, _, moves = made()
    with moves.collecting():
        moves.base[0][:] = 5.0
        moves.load_base()
    assert x.tolist() == [5.0, 5.0]
    x.data.add_(1.0)
    assert gather(moves) == [1.0, 1.0]


def test_what_somebody_sets_while_it_stands_still_is_no_move():
    x, _, moves = made()
    x.data.add_(1.0)
    with moves.ignoring_changes():
        x.data.fill_(5.0)
    assert gather(moves) == [0.0, 0.0]


def test_a_fetch_that_fails_leaves_x_and_its_moves():
    x, _, moves = made()
    x.data.add_(1.0)

    def fetch() -> None:
        with moves.collecting():
            moves.base[0][:1] = 5.0
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fetch()
    assert x.tolist() == [1.0, 1.0]
    x.data.add_(1.0)
    assert gather(moves) == [2.0, 2.0]


def test_moves_survive_a_checkpoint():
    x, flat, moves = made()
    x.data.add_(1.0)
    gather(moves)
    saved = moves.state()
    moves.clear()
    other = PendingUpdate(flat)
    other.load_state(saved)
    assert other.pending[0].tolist() == [1.0, 1.0]

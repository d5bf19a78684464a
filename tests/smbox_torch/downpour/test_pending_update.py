from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from smbox import Handle
from smbox.errors import OutOfMemoryError, RequestTimeoutError
from smbox.testing.interrupts import interrupted
from smbox_torch.downpour import pending_update
from smbox_torch.downpour.pending_update import PendingUpdate
from smbox_torch.model.flat import FlatParameters
from smbox_torch.model.precision import Sender


def made() -> tuple[torch.nn.Parameter, FlatParameters, PendingUpdate]:
    x = torch.nn.Parameter(torch.zeros(2))
    flat = FlatParameters([x])
    return x, flat, PendingUpdate(flat)


def gather(moves: PendingUpdate) -> list[float]:
    """Gather, fetch nothing, and return what is pending."""
    with moves.collecting():
        pass
    return moves.pending[0].tolist()


def push(moves: PendingUpdate, center: Answers | Full) -> None:
    with moves.collecting():
        moves.push(center)


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


def test_nor_if_that_fails_halfway():
    x, _, moves = made()

    def fill() -> None:
        with moves.ignoring_changes():
            x.data[:1] = 5.0
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fill()
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


def test_an_interrupt_loses_or_repeats_no_more_than_the_last_moves():
    at, is_over = 0, False
    while not is_over:
        at += 1
        x, _, moves = made()
        center = Full([Sender(2, torch.float32, torch.float32)])
        for _ in range(5):
            x.data.add_(1.0)
            push(moves, center)
        x.data.add_(1.0)
        is_over = not interrupted(at, partial(push, moves, center), (pending_update.__file__,))
        x.data.add_(1.0)
        push(moves, center)
        assert 6.0 <= center.regions[0].got.min() <= center.regions[0].got.max() <= 8.0, at
    assert at > 20


def test_moves_survive_a_checkpoint():
    x, flat, moves = made()
    x.data.add_(1.0)
    gather(moves)
    saved = moves.state()
    moves.clear()
    other = PendingUpdate(flat)
    other.load_state(saved)
    assert other.pending[0].tolist() == [1.0, 1.0]


class Answers:
    """A center of one region whose push times out; the node says later what it has applied."""

    def __init__(self, outcome: str, ranges: list[tuple[int, int]]) -> None:
        self.regions, self.got = [self], [0.0, 0.0]
        self.handle = self.Late(outcome, ranges)

    class Late(Handle[None]):
        def __init__(self, outcome: str, ranges: list[tuple[int, int]]) -> None:
            self.said, self.ranges = outcome, ranges

        def outcome(self, timeout_s: float | None = None) -> str:
            return self.said

        def ranges_done(self) -> list[tuple[int, int]]:
            return self.ranges

    def operands(self, values: list[np.ndarray]) -> list[np.ndarray]:
        return values

    def accumulate(self, moved: np.ndarray, out: np.ndarray | None = None) -> None:
        if self.handle is None:
            self.got = (np.array(self.got) + moved).tolist()
            return
        error = RequestTimeoutError("late")
        error.handle = self.handle
        raise error


def timed_out(
    outcome: str, ranges: list[tuple[int, int]]
) -> tuple[torch.nn.Parameter, PendingUpdate, Answers]:
    """Return x, its changes and a center, after a push of a change of 1.0 timed out."""
    x, _, moves = made()
    center = Answers(outcome, ranges)
    x.data.add_(1.0)
    with pytest.raises(RequestTimeoutError):
        push(moves, center)
    return x, moves, center


@pytest.mark.parametrize(
    ("outcome", "ranges", "left"),
    [
        ("none", [], [2.0, 2.0]),
        ("partial", [(4, 8)], [2.0, 1.0]),
        ("all", [(0, 8)], [1.0, 1.0]),
    ],
)
def test_a_push_that_timed_out_is_repeated_as_far_as_it_was_not_applied(
    outcome: str, ranges: list[tuple[int, int]], left: list[float]
):
    x, moves, center = timed_out(outcome, ranges)
    x.data.add_(1.0)
    center.handle = None
    push(moves, center)
    assert center.got == left


def test_a_push_that_timed_out_is_asked_about_once():
    x, moves, _ = timed_out("all", [])
    for wanted in (1.0, 2.0):
        x.data.add_(1.0)
        assert gather(moves) == [wanted, wanted]


def test_a_loaded_state_has_no_part_in_a_push_that_timed_out():
    x, _, moves = made()
    x.data.add_(1.0)
    gather(moves)
    saved = moves.state()
    with pytest.raises(RequestTimeoutError):
        push(moves, Answers("all", []))
    moves.load_state(saved)
    assert gather(moves) == [1.0, 1.0]


class Full:
    """A center of several regions, whose memory is full for all but the first at first."""

    def __init__(self, senders: list[Sender]) -> None:
        self.senders, self.is_full = senders, True
        self.regions = [self.Region(self, at) for at in range(len(senders))]

    class Region:
        def __init__(self, center: Full, at: int) -> None:
            self.center, self.at, self.got = center, at, np.zeros(2)

        def accumulate(self, moved: np.ndarray, out: np.ndarray | None = None) -> None:
            if self.at and self.center.is_full:
                raise OutOfMemoryError("full")
            self.got = self.got + moved

    def operands(self, values: list[np.ndarray]) -> list[np.ndarray]:
        return [s.operand(each) for s, each in zip(self.senders, values, strict=True)]


@pytest.mark.parametrize("wire", [torch.float32, torch.float16])
def test_a_push_that_failed_is_repeated_for_the_regions_that_lack_it(wire: torch.dtype):
    members = [
        torch.nn.Parameter(torch.zeros(2, dtype=d)) for d in (torch.float64, torch.float32)
    ]
    flat = FlatParameters(members)
    moves = PendingUpdate(flat)
    center = Full(
        [
            Sender(2, buffer.wide.dtype, wire if buffer.dtype == "float32" else torch.float64)
            for buffer in flat.buffers
        ]
    )
    for member in members:
        member.data.add_(0.1)
    with pytest.raises(OutOfMemoryError):
        push(moves, center)
    center.is_full = False
    for _ in range(2):
        push(moves, center)
    for region in center.regions:
        assert region.got == pytest.approx([0.1, 0.1], abs=1e-7)


def test_nothing_changes_while_the_node_does_not_say_what_it_has():
    x, moves, center = timed_out("unknown", [])
    x.data.add_(1.0)
    for ask in (lambda: gather(moves), moves.state):
        with pytest.raises(RequestTimeoutError, match="earlier step"):
            ask()
    center.handle.said = "none"
    assert gather(moves) == [2.0, 2.0]


def test_a_rounding_is_not_lost_with_a_push_that_was_not_applied():
    class Narrow(Answers):
        sender = Sender(2, torch.float32, torch.float16)

        def operands(self, values: list[np.ndarray]) -> list[np.ndarray]:
            return [self.sender.operand(each) for each in values]

    x, _, moves = made()
    center = Narrow("none", [])
    x.data.add_(0.1)
    with pytest.raises(RequestTimeoutError):
        push(moves, center)
    center.handle = None
    for _ in range(2):
        push(moves, center)
    assert center.got == pytest.approx([0.1, 0.1], abs=1e-7)

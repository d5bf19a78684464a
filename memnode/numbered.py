"""Numbered changes, each exactly once: the rules of docs/protocol.md, "Numbers", at the node.

A change is a list of steps, each with its own number. A step whose number was applied is a
duplicate and recognised before anything else is checked; the next one is committed; a later
one is a gap. So a task may be tried any number of times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memnode.channel import Channel
from memnode.registry import Registry
from smbox.errors import RemoteProtocolError, SessionExpiredError, SmboxError
from smbox.memory.change import Change, Receipt
from smbox.memory.commit import commit
from smbox.memory.journal import Writer
from smbox.memory.layout import Consistency, Ring
from smbox.memory.mapped import MappedRegion, Piece
from smbox.memory.stripe_run import commit_run
from smbox.memory.unlocked import change_unlocked
from smbox.wire.codec import Reply, Request
from smbox.wire.ops import ANSWERS, Op
from smbox.wire.refusal import refuse
from smbox.wire.status import Status

Bytes = NDArray[np.uint8]

NOTHING: Final = np.empty(0, np.uint8)


class GapError(SmboxError):
    """The number of a request leaves numbers out that are still to come."""


class Step(NamedTuple):
    """One commit of a change.

    Attributes:
        op: says whether its old bytes are answered.
        commit: checks and commits it under the number given; returns the old bytes.
    """

    op: Op
    commit: Callable[[int], Bytes]


class NumberedTask:
    """A change under way; subclasses say what its steps are.

    Args:
        request: of an op in ``CHANGES``.
        channel: whose numbers it takes.
        registry: finds its regions.
        writer: the node's journal slot.
    """

    def __init__(
        self, request: Request, channel: Channel, registry: Registry, writer: Writer
    ) -> None:
        self.request = request
        self.duplicates = 0
        self._channel = channel
        self._registry = registry
        self._writer = writer

    def advance(self) -> Reply | None:
        """Commit what is not applied yet; see ``Task``."""
        request = self.request
        old: list[Bytes] = []
        try:
            if request.number < 1 or request.numbers < 1:
                raise RemoteProtocolError("a change takes numbers", op=request.op.name)
            if self._is_applied():
                self.duplicates = request.numbers
            else:
                self._run_ahead()
            if self._is_applied():
                old = self._answers()
            else:
                for number, step in enumerate(self._counted_steps(), request.number):
                    old.append(self._run(number, step))
        except GapError as error:
            return refuse(request, error, applied=self._channel.applied, status=Status.GAP)
        except SmboxError as error:
            return self._refuse(error)
        return Reply(
            request.op,
            request=request.request,
            number=request.number,
            address=request.address,
            nbytes=request.nbytes,
            payload=_joined(old),
        )

    def abandon(self) -> None:
        """Do nothing: what was committed is known by its number."""

    def _is_applied(self) -> bool:
        request = self.request
        return request.number + request.numbers - 1 <= self._channel.applied

    def _run_ahead(self) -> None:
        """Commit steps that need no look at each, in order; the others follow one by one."""

    def _steps(self) -> list[Step]:
        """Cut the request into its commits, and refuse at once what can only fail later."""
        raise NotImplementedError

    def _counted_steps(self) -> list[Step]:
        steps = self._steps()
        if len(steps) != self.request.numbers:
            raise RemoteProtocolError(
                "a change takes a number for each stripe it touches, or each item",
                numbers=self.request.numbers,
                wanted=len(steps),
            )
        return steps

    def _run(self, number: int, step: Step) -> Bytes:
        """Commit one step, or find its answer; return the old bytes if its op answers."""
        applied = self._channel.applied
        answers = step.op in ANSWERS
        if number <= applied:
            return self._answer(number) if answers else NOTHING
        if number != applied + 1:
            raise GapError("numbers are missing before this one", number=number)
        old = step.commit(number)
        return old if answers else NOTHING

    def _answers(self) -> list[Bytes]:
        """Return the answers of those commits of the change that are applied already."""
        request = self.request
        ops = [item.op for item in request.items] or [request.op] * request.numbers
        return [
            self._answer(number)
            for number, op in enumerate(ops, request.number)
            if op in ANSWERS and number <= self._channel.applied
        ]

    def _answer(self, number: int) -> Bytes:
        answer = self._channel.answer(number)
        if answer is None:
            raise SessionExpiredError(
                "the answer of this change is kept no longer", number=number, outcome="unknown"
            )
        return answer

    def _refuse(self, error: SmboxError) -> Reply:
        """Refuse what is not applied; what is gives its old bytes all the same."""
        kept = b""
        if self.request.op in ANSWERS and self.request.number > 0:
            kept = bytes(_joined(self._answers()))
        return refuse(self.request, error, applied=self._channel.applied, old=kept)


def apply(
    writer: Writer, region: MappedRegion, piece: Piece, change: Change, receipt: Receipt
) -> Bytes:
    """Commit a change of one stripe as the region's consistency says.

    Returns:
        The old bytes, if the receipt has a ring; else nothing of use.

    Raises:
        StripeBusy: a local client holds the stripe; nothing changed.
        SmboxError: refused; nothing changed.
    """
    if region.spec.consistency == Consistency.NONE:
        return _change_unlocked(region, piece, change, receipt)
    if (
        commit_run(writer, region, piece.first, piece.limit, change, receipt=receipt)
        < piece.limit
    ):
        return commit(writer, region, piece, change, receipt)
    number, ring = receipt.number, receipt.ring
    return NOTHING if ring is None else ring.old(number)[: piece.limit - piece.first]


def _change_unlocked(
    region: MappedRegion, piece: Piece, change: Change, receipt: Receipt
) -> Bytes:
    """Change a lock-free region; a kill in between may repeat it, as its consistency says."""
    old = NOTHING
    if receipt.ring is None:
        change_unlocked(region, piece, change)
    else:
        header = receipt.ring.header(receipt.number)
        old = receipt.ring.old(receipt.number)[: piece.limit - piece.first]
        header[Ring.NUMBER] = 0
        header[Ring.RESULT_NBYTES] = old.size
        change_unlocked(region, piece, change, old)
        header[Ring.NUMBER] = receipt.number
    receipt.row.applied = receipt.number
    return old


def _joined(old: list[Bytes]) -> Any:
    """Copy the old bytes out of the ring, into one buffer that belongs to the reply."""
    kept = [each for each in old if each.size]
    if not kept:
        return b""
    return (kept[0].copy() if len(kept) == 1 else np.concatenate(kept)).data

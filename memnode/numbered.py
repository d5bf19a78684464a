"""Numbered changes, each exactly once: the rules of docs/protocol.md, "Numbers", at the node.

A change is a list of steps, each with its own number. A step whose number was applied is a
duplicate and recognised before anything else is checked; the next one is committed; a later
one is a gap. So a task may be tried any number of times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from memnode.channel import Channel
from memnode.registry import Registry
from smbox.errors import RemoteProtocolError, SessionExpiredError, SmboxError
from smbox.memory.change import Change, Receipt
from smbox.memory.commit import commit as commit_piece
from smbox.memory.journal import Writer
from smbox.memory.layout import Consistency, Ring
from smbox.memory.mapped import MappedRegion, Piece
from smbox.memory.stripe_run import commit_run
from smbox.memory.unlocked import change_unlocked
from smbox.wire.codec import Reply, Request, reply_to
from smbox.wire.header import Buffer
from smbox.wire.ops import ANSWERS
from smbox.wire.refusal import refuse
from smbox.wire.status import Status

Bytes = NDArray[np.uint8]

Commit: TypeAlias = Callable[[int], None]
"""One step of a change: checks and commits it under the number given."""


class GapError(SmboxError):
    """The number of a request leaves numbers out that are still to come."""


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
        try:
            if request.number < 1 or request.numbers < 1:
                raise RemoteProtocolError("a change takes numbers", op=request.op.name)
            last = request.number + request.numbers - 1
            if last <= self._channel.applied:
                self.duplicates = request.numbers
            else:
                self._run_ahead()
                if last > self._channel.applied:
                    for number, commit in enumerate(self._counted_steps(), request.number):
                        self._run(number, commit)
            return reply_to(request, self._payload() if request.op in ANSWERS else b"")
        except GapError as error:
            return refuse(request, error, applied=self._channel.applied, status=Status.GAP)
        except SmboxError as error:
            return self._refuse(error)

    def abandon(self) -> None:
        """Do nothing: what was committed is known by its number."""

    def _run_ahead(self) -> None:
        """Commit steps that need no look at each, in order; the others follow one by one."""

    def _steps(self) -> list[Commit]:
        """Cut the request into its commits, and refuse at once what can only fail later."""
        raise NotImplementedError

    def _counted_steps(self) -> list[Commit]:
        steps = self._steps()
        if len(steps) != self.request.numbers:
            raise RemoteProtocolError(
                "a change takes a number for each stripe it touches, or each item",
                numbers=self.request.numbers,
                wanted=len(steps),
            )
        return steps

    def _run(self, number: int, commit: Commit) -> None:
        """Commit one step, unless it was committed before."""
        applied = self._channel.applied
        if number <= applied:
            return
        if number != applied + 1:
            raise GapError("numbers are missing before this one", number=number)
        commit(number)

    def _payload(self) -> Buffer:
        """Return the answer: out of the ring itself, if it lies there as one piece.

        There it stays until the client has it. What is copied is the node's until it is sent.
        """
        request = self.request
        if not request.items:
            whole = self._channel.answers(request.number, request.numbers)
            if whole is not None:
                return whole.data
        answers = self._answers()
        if not answers:
            return b""
        copied = np.concatenate(answers)
        self._channel.unsent.add(copied)
        return copied.data

    def _answers(self) -> list[Bytes]:
        """View the answers of those commits of the change that are applied already."""
        request = self.request
        ops = [item.op for item in request.items] or [request.op] * request.numbers
        return [
            self._answer(number)
            for number, op in enumerate(ops, request.number)
            if op in ANSWERS and number <= self._channel.applied
        ]

    def _answer(self, number: int) -> Bytes:
        answer = self._channel.answers(number)
        if answer is None:
            raise SessionExpiredError(
                "the answer of this change is kept no longer", number=number, outcome="unknown"
            )
        return answer

    def _refuse(self, error: SmboxError) -> Reply:
        """Refuse what is not applied; what is gives its old bytes all the same."""
        kept = b""
        if self.request.op in ANSWERS and self.request.number > 0:
            kept = b"".join(answer.data for answer in self._answers())
        return refuse(self.request, error, applied=self._channel.applied, old=kept)


def apply(
    writer: Writer, region: MappedRegion, piece: Piece, change: Change, receipt: Receipt
) -> None:
    """Commit a change of one stripe as the region's consistency says.

    Raises:
        StripeBusy: a local client holds the stripe; nothing changed.
        SmboxError: refused; nothing changed.
    """
    if region.spec.consistency == Consistency.NONE:
        _change_unlocked(region, piece, change, receipt)
        return
    done = commit_run(writer, region, piece.first, piece.limit, change, receipt=receipt)
    if done < piece.limit:
        commit_piece(writer, region, piece, change, receipt)


def _change_unlocked(
    region: MappedRegion, piece: Piece, change: Change, receipt: Receipt
) -> None:
    """Change a lock-free region; a kill in between may repeat it, as its consistency says."""
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

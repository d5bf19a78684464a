"""Puts, sums and batches of them, exchanges, small gets and LENDs of a channel without a line.

The short way of what docs/protocol.md asks of these: every look that it needs, and no object.
Whatever is out of the ordinary (a duplicate, a gap, a bad address, a held stripe, kernels that
are not compiled, a channel's first exchange, an answer in pieces) it leaves to the lane, which
does it or says no. What it had committed of a request by then, the lane knows by its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from memnode.channel import Channel
from memnode.checks import check_range, scale_from
from memnode.lending import check_stamped, lend
from memnode.metrics import Metrics
from memnode.registry import Registry
from memnode.room import Rooms
from memnode.together import ALIKE, commit_together
from memnode.unsent import Unsent
from smbox.dtypes import DType
from smbox.memory import accel
from smbox.memory.channels import are_together
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion
from smbox.memory.modes import Terms, terms_of
from smbox.memory.read_run import read_run
from smbox.memory.stripe_run import commit_on, note_of
from smbox.wire import header
from smbox.wire.batch import BATCH_NBYTES_MAX, ITEMS_MAX
from smbox.wire.header import LONG_NBYTES_MAX, Buffer, Fields
from smbox.wire.ops import OP_OF, Op
from smbox.wire.pieces import count
from smbox.wire.plain import plain_head
from smbox.wire.status import Status

READ_NBYTES_MAX: Final = 32 * 1024
"""Of a get: so small a reply is copied into ZeroMQ, and need not be counted as unsent."""

_ELASTIC: Final = int(Op.ELASTIC)
_BATCH: Final = int(Op.BATCH)
_KERNELS: Final = ALIKE | {(_ELASTIC, int(KernelCode.ELASTIC)): KernelCode.ELASTIC}


class AtOnce:
    """Answers what can be answered at once.

    Args:
        registry: finds the regions.
        writer: the lane's.
        rooms: the lane's.
        metrics: counts what is done here.
    """

    def __init__(
        self, registry: Registry, writer: Writer, rooms: Rooms, metrics: Metrics
    ) -> None:
        self._registry = registry
        self._writer = writer
        self._rooms = rooms
        self._metrics = metrics

    def answer(self, channel: Channel, frames: Sequence[Buffer]) -> list[Buffer] | None:
        """Do a request, of a channel without a line, and return the frames of its reply.

        Returns:
            None: it is the lane's.
        """
        if accel.loaded() is None:
            return None
        try:
            fields = header.unpack(frames[0])
            _, _, op, _, status, *_ = fields
            if status or len(frames) > 2:
                return None
            if len(frames) == 2:
                return self._change(channel, fields, frames[1])
            return self._read(channel, fields) if op in _READS else None
        except Exception:  # noqa: BLE001 -- the lane meets it again, and answers it
            return None

    def _change(self, channel: Channel, fields: Fields, body: Buffer) -> list[Buffer] | None:
        _, _, op, _, _, request, number, address, nbytes, *_ = fields
        commit = self._commit_items if op == _BATCH else self._commit_stripes
        answer = commit(channel, fields, body)
        if answer is None:
            return None
        self._count(OP_OF[op], len(body), sum(map(len, answer)))
        room = self._rooms.after(channel.connection, len(body))
        return [plain_head(op, request, number, address, nbytes, room=room), *answer]

    def _commit_stripes(
        self, channel: Channel, fields: Fields, body: Buffer
    ) -> list[Buffer] | None:
        """Commit a range, and return what the reply brings besides its header."""
        _, _, op, kernel, _, _, number, address, nbytes, scale, _, numbers = fields
        engine, row = accel.loaded(), channel.row
        if engine is None or engine.commit_stripes is None or number != row.applied + 1:
            return None
        region = self._registry.locate(address)
        dtype, first = region.spec.dtype, address - region.address
        limit = first + nbytes
        terms = _terms_of(op, kernel, dtype, scale)
        is_whole = (first | limit) % dtype.itemsize == 0 and nbytes == len(body)
        if terms is None or not is_whole or numbers != count(first, limit, STRIPE_NBYTES):
            return None
        check_range(first, nbytes, region.nbytes, LONG_NBYTES_MAX)
        ring = None
        if op == _ELASTIC:
            ring = channel.ring
            if ring is None or channel.unsent.is_full() or _is_torn(first, number, numbers):
                return None
        source, note = np.frombuffer(body, np.uint8), note_of(row, number, ring)
        run, writer = engine.commit_stripes, self._writer
        if commit_on(run, writer, region, first, limit, terms, source, note) < limit:
            return None
        if ring is None:
            return []
        answer = ring.answers(number, numbers)
        return None if answer is None else [answer.data]

    def _commit_items(
        self, channel: Channel, fields: Fields, body: Buffer
    ) -> list[Buffer] | None:
        """Commit a batch, and return what the reply brings besides its header."""
        _, _, _, _, _, _, number, _, items, _, _, numbers = fields
        if numbers != items or not 1 <= items <= ITEMS_MAX:
            return None
        if number != channel.row.applied + 1 or len(body) > BATCH_NBYTES_MAX:
            return None
        writer, registry = self._writer, self._registry
        done = commit_together(writer, registry, channel, body, items, number, needs_all=True)
        return [b""] if done == items else None

    def _read(self, channel: Channel, fields: Fields) -> list[Buffer] | None:
        _, _, op, _, _, request, number, address, nbytes, *_ = fields
        if number > channel.row.applied:
            return None
        region = self._registry.locate(address)
        found = _READS[op](region, address - region.address, nbytes, channel.unsent)
        if found is None:
            return None
        version, payload = found
        self._count(OP_OF[op], 0, nbytes)
        head = plain_head(op, request, number, address, nbytes, version=version)
        return [head, payload]

    def _count(self, op: Op, received_nbytes: int, sent_nbytes: int) -> None:
        self._metrics.request(op, received_nbytes)
        self._metrics.reply(Status.OK, sent_nbytes)


@lru_cache(maxsize=256)  # clients repeat theirs
def _terms_of(op: int, kernel: int, dtype: DType, scale: bytes) -> Terms | None:
    """Return what a change asks for; None: it is the lane's.

    Raises:
        ConfigError: the scale makes no sense; the lane's, too.
    """
    code = _KERNELS.get((op, kernel))
    return None if code is None else terms_of(code, dtype, scale_from(code, dtype, scale))


def _lend(
    region: MappedRegion, first: int, nbytes: int, _unsent: Unsent
) -> tuple[int, Buffer] | None:
    """Return the stamp of a range, and the range itself."""
    check_stamped(region.spec)
    check_range(first, nbytes, region.nbytes, LONG_NBYTES_MAX)
    return lend(region, first, first + nbytes)


def _copy(
    region: MappedRegion, first: int, nbytes: int, unsent: Unsent
) -> tuple[int, Buffer] | None:
    """Return no version, and a copy of a small range of a stripe; None: it is the lane's."""
    if nbytes > READ_NBYTES_MAX:
        return None
    check_range(first, nbytes, region.nbytes, STRIPE_NBYTES)
    if unsent.is_full():
        return None
    out, limit = np.empty(nbytes, np.uint8), first + nbytes
    return (0, out.data) if read_run(region, first, limit, out) == limit else None


_READS: Final = {int(Op.GET): _copy, int(Op.LEND): _lend}


def _is_torn(first: int, number: int, numbers: int) -> bool:
    """Tell whether the old bytes from ``first`` on will lie in the ring in several pieces."""
    is_cut = numbers > 1 and first % STRIPE_NBYTES != 0
    return is_cut or not are_together(number, numbers)

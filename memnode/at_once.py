"""Small puts, accumulates and gets, and batches of them, of a channel with nothing in line.

The short way of what docs/protocol.md asks of these: every look that it needs, and no object.
Whatever is out of the ordinary (a duplicate, a gap, a bad address, a held stripe, kernels that
are not compiled) it leaves to the lane, which does it or says no. What it had committed of a
batch by then, the lane knows by its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from memnode.channel import Channel
from memnode.checks import scale_from
from memnode.metrics import Metrics
from memnode.registry import Registry
from memnode.room import Rooms
from memnode.together import ALIKE, commit_together
from smbox.dtypes import DType
from smbox.memory import accel
from smbox.memory.journal import Writer
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion
from smbox.memory.modes import Terms, terms_of
from smbox.memory.read_run import read_run
from smbox.memory.stripe_run import commit_on, note_of
from smbox.wire import header
from smbox.wire.batch import BATCH_NBYTES_MAX, ITEMS_MAX
from smbox.wire.header import Buffer, Fields
from smbox.wire.ops import OP_OF, Op
from smbox.wire.plain import plain_head

READ_NBYTES_MAX: Final = 32 * 1024
"""Of a get: so small a reply is copied into ZeroMQ, and need not be counted as unsent."""

_GET: Final = int(Op.GET)
_BATCH: Final = int(Op.BATCH)


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
            if len(frames) == 1:
                return self._read(channel, fields) if fields[2] == _GET else None
            if len(frames) > 2:
                return None
            return self._change(channel, fields, frames[1])
        except Exception:  # noqa: BLE001 -- the lane meets it again, and answers it
            return None

    def _change(self, channel: Channel, fields: Fields, body: Buffer) -> list[Buffer] | None:
        _, _, op, _, _, request, number, address, nbytes, *_ = fields
        is_batch = op == _BATCH
        commit = self._commit_items if is_batch else self._commit_one
        if not commit(channel, fields, body):
            return None
        self._metrics.served(OP_OF[op], len(body), 0)
        room = self._rooms.after(channel.connection, len(body))
        head = plain_head(op, request, number, address, nbytes, room)
        return [head, b""] if is_batch else [head]

    def _commit_one(self, channel: Channel, fields: Fields, body: Buffer) -> bool:
        _, _, op, kernel, status, _, number, address, nbytes, scale, _, numbers = fields
        engine, row = accel.loaded(), channel.row
        if engine is None or engine.commit_stripes is None:
            return False
        if status or numbers != 1 or number != row.applied + 1:
            return False
        region = self._registry.locate(address)
        dtype = region.spec.dtype
        terms = _terms_of(op, kernel, dtype, scale)
        first = address - region.address
        limit = first + nbytes
        if terms is None or (first | limit) % dtype.itemsize:
            return False
        if not 0 < nbytes == len(body) or not _is_in_a_stripe(region, first, limit):
            return False
        source, note = np.frombuffer(body, np.uint8), note_of(row, number)
        run, writer = engine.commit_stripes, self._writer
        return commit_on(run, writer, region, first, limit, terms, source, note) == limit

    def _commit_items(self, channel: Channel, fields: Fields, body: Buffer) -> bool:
        _, _, _, _, status, _, number, _, items, _, _, numbers = fields
        if status or numbers != items or not 1 <= items <= ITEMS_MAX:
            return False
        if number != channel.row.applied + 1 or len(body) > BATCH_NBYTES_MAX:
            return False
        writer, registry = self._writer, self._registry
        done = commit_together(writer, registry, channel, body, items, number, needs_all=True)
        return done == items

    def _read(self, channel: Channel, fields: Fields) -> list[Buffer] | None:
        _, _, op, _, status, request, number, address, nbytes, *_ = fields
        if status or not 0 < nbytes <= READ_NBYTES_MAX or number > channel.row.applied:
            return None
        region = self._registry.locate(address)
        first = address - region.address
        limit = first + nbytes
        if not _is_in_a_stripe(region, first, limit) or channel.unsent.is_full():
            return None
        out = np.empty(nbytes, np.uint8)
        if read_run(region, first, limit, out) < limit:
            return None
        self._metrics.served(Op.GET, 0, nbytes)
        return [plain_head(op, request, number, address, nbytes), out.data]


@lru_cache(maxsize=256)  # clients repeat theirs
def _terms_of(op: int, kernel: int, dtype: DType, scale: bytes) -> Terms | None:
    """Return what a change asks for; None: it is the lane's.

    Raises:
        ConfigError: the scale makes no sense; the lane's, too.
    """
    code = ALIKE.get((op, kernel))
    return None if code is None else terms_of(code, dtype, scale_from(code, dtype, scale))


def _is_in_a_stripe(region: MappedRegion, first: int, limit: int) -> bool:
    return limit <= region.nbytes and first // STRIPE_NBYTES == (limit - 1) // STRIPE_NBYTES

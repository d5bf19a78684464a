"""The thin way of blocking verbs on mapped memory: nothing is kept, nobody is waited for."""

from __future__ import annotations

from smbox.memory.busy import StripeBusy
from smbox.memory.commit import commit
from smbox.memory.journal import Writer
from smbox.memory.mapped import MappedRegion, pieces
from smbox.memory.reading import read_piece
from smbox.paths.base import Bytes, Operation, Sink
from smbox.paths.local_work import piece_change


def commit_now(
    writer: Writer, region: MappedRegion, operation: Operation, sink: Sink | None
) -> int:
    """Commit from the front as far as nobody is in the way; return up to which byte.

    Raises:
        RegionFreedError: the region was freed; the stripes before stay changed.
    """
    at = operation.first
    if sink is not None:
        return at
    try:
        for piece in pieces(at, operation.limit):
            commit(writer, region, piece, piece_change(operation, piece))
            at = piece.limit
    except StripeBusy:
        pass
    return at


def read_now(writer: Writer, region: MappedRegion, first: int, limit: int, out: Bytes) -> int:
    """Read from the front as far as no writer is in the way; return up to which byte.

    Raises:
        RegionFreedError: the region was freed; ``out`` holds anything.
    """
    at = first
    try:
        for piece in pieces(first, limit):
            read_piece(region, piece, out[at - first : piece.limit - first], writer.locks)
            at = piece.limit
    except StripeBusy:
        pass
    return at

"""The fast way on mapped memory: runs of free stripes, nothing kept, nobody waited for."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from smbox.memory.change import Change
from smbox.memory.journal import Writer
from smbox.memory.mapped import MappedRegion
from smbox.memory.read_run import read_run
from smbox.memory.stripe_run import commit_run
from smbox.paths.base import Operation, Sink
from smbox.paths.sinks import DeltaSink, MoveSink, OldSink

__all__ = ["commit_now", "read_run"]


def commit_now(
    writer: Writer, region: MappedRegion, operation: Operation, sink: Sink | None, at: int
) -> int:
    """Commit stripes from byte ``at`` on, and hand the sink its share, while they are free.

    Returns:
        The byte up to which that is done; ``at`` where no compiled kernel can do it, or an
        earlier commit of the writer has to be settled.
    """
    if writer.unsettled is not None:
        return at
    first, limit, source = operation.first, operation.limit, operation.source
    if at > first:
        source = source[at - first :]
    change = Change(operation.kernel, source, operation.scale)
    if sink is None:
        return commit_run(writer, region, at, limit, change)
    if isinstance(sink, OldSink):
        answer = sink.out[at - sink.first : limit - sink.first]
        return commit_run(writer, region, at, limit, change, answer=answer)
    if isinstance(sink, MoveSink):
        moved = _share(sink.x, at - sink.first, limit - sink.first)
        return commit_run(writer, region, at, limit, change, moved=moved)
    if isinstance(sink, DeltaSink):
        delta = _share(sink.delta, at - sink.first, limit - sink.first)
        return commit_run(writer, region, at, limit, change, delta=delta)
    return at


def _share(array: NDArray[Any], first: int, limit: int) -> NDArray[Any]:
    """Cut the bytes of a piece out of its sink's array: a batch cuts changes, not sinks."""
    if first == 0 and limit == array.nbytes:
        return array
    return array[first // array.itemsize : limit // array.itemsize]

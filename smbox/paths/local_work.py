"""Requests of the local path: changes, reads and waits on memory that this process maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from smbox.errors import PeerLostError, SmboxError
from smbox.memory.change import Change
from smbox.memory.commit import commit, commits
from smbox.memory.insist import insist
from smbox.memory.journal import Writer
from smbox.memory.kept_delta import KeptDelta
from smbox.memory.kernels import KERNELS
from smbox.memory.layout import Consistency
from smbox.memory.mapped import MappedRegion, Piece, pieces
from smbox.memory.reading import read_piece
from smbox.memory.unlocked import change_unlocked
from smbox.paths.base import ByteRange, Bytes, Operation, Sink
from smbox.paths.lane import Lane, LaneWork, Pause
from smbox.paths.local_now import commit_now, read_run
from smbox.paths.sinks import DeltaSink, MoveSink
from smbox.paths.work import Waiting


class LocalChange(LaneWork):
    """A change of a range: one commit per stripe, ascending.

    Args:
        lane: of the thread that began it.
        region: mapped.
        operation: what is done.
        sink: takes the old bytes of each commit.
        at: where to begin: what is before it is committed.
    """

    def __init__(
        self,
        lane: Lane,
        region: MappedRegion,
        operation: Operation,
        sink: Sink | None,
        at: int,
    ) -> None:
        super().__init__(lane)
        self._region = region
        self._operation = operation
        self._sink = sink
        self._kept = sink.kept if isinstance(sink, MoveSink | DeltaSink) else None
        self._at = at
        self._open: tuple[Piece, int] | None = None
        self._run_from: int | None = None
        self._unlocked: Piece | None = None  # changed, and maybe not handed on

    def step(self, writer: Writer) -> None:
        """Commit what is left: runs of free stripes, and one by one where that stops."""
        self._settle(writer)
        self._region.check_usable()
        self._run(writer)
        for piece in pieces(self._at, self._operation.limit):
            self._commit(writer, piece)

    def ranges_done(self) -> list[ByteRange]:
        """List the range committed so far."""
        first = self._operation.first
        return [(first, self._at)] if self._at > first else []

    def dropped(self) -> None:
        """Hand on what was committed; the lane's mutex is held."""
        self._settle(self._lane.writer)

    def _run(self, writer: Writer) -> None:
        """Commit in one call as far as it goes."""
        self._run_from = commits(writer)
        try:
            at = commit_now(writer, self._region, self._operation, self._sink, self._at)
            self._at, self._run_from = at, None
        except BaseException:
            self._settle(writer)
            raise

    def _commit(self, writer: Writer, piece: Piece) -> None:
        """Commit one piece and hand its old bytes on: both or neither, interrupted or not."""
        if self._region.spec.consistency == Consistency.NONE:
            self._change_unlocked(writer, piece)
            return
        self._open = piece, commits(writer)
        try:
            self._apply(writer, piece)
            self._take(writer, piece)
        except BaseException:
            self._settle(writer)
            raise

    def _change_unlocked(self, writer: Writer, piece: Piece) -> None:
        """Change a piece; no commit tells an interrupted call later whether it was done."""
        old = writer.old[: piece.limit - piece.first]
        change_unlocked(self._region, piece, self._change(writer, piece), old)
        self._unlocked = piece
        self._take(writer, piece)

    def _change(self, writer: Writer, piece: Piece) -> Change:  # noqa: ARG002 - for subclasses
        return piece_change(self._operation, piece, self._kept)

    def _apply(self, writer: Writer, piece: Piece) -> None:
        commit(writer, self._region, piece, self._change(writer, piece))

    def _settle(self, writer: Writer) -> None:
        """Note and hand on what an interrupted call did; however often interrupted."""
        if (self._open, self._run_from, self._unlocked) != (None, None, None):
            insist(lambda: self._note(writer))

    def _note(self, writer: Writer) -> None:
        if self._run_from is not None:
            self._settle_run(commits(writer) - self._run_from)
        if self._open is not None:
            piece, before = self._open
            if commits(writer) != before:
                self._take(writer, piece)
            self._open = None
        if self._unlocked is not None:
            self._take(writer, self._unlocked)

    def _settle_run(self, count: int) -> None:
        """Skip the stripes that a run had committed, and handed on, when it was interrupted."""
        done = list(islice(pieces(self._at, self._operation.limit), count))
        self._at, self._run_from = (done[-1].limit if done else self._at), None

    def _take(self, writer: Writer, piece: Piece) -> None:
        if self._sink is not None:
            self._sink(piece.first, piece.limit, writer.old[: piece.limit - piece.first])
        self._at = piece.limit
        self._open = self._unlocked = None


def piece_change(operation: Operation, piece: Piece, delta: KeptDelta | None = None) -> Change:
    """Cut the source of an operation to one piece."""
    source = operation.source
    if not KERNELS[operation.kernel].is_whole:
        source = source[piece.first - operation.first : piece.limit - operation.first]
    return Change(operation.kernel, source, operation.scale, delta)


class LocalRead(LaneWork):
    """A read of a range.

    Args:
        lane: of the thread that began it.
        region: mapped.
        first: first byte of the region's data that is wanted.
        limit: byte behind the last.
        out: ``u8[limit - first]``.
        at: where to begin: what is before it is read.
    """

    def __init__(
        self,
        lane: Lane,
        region: MappedRegion,
        first: int,
        limit: int,
        out: Bytes,
        at: int,
    ) -> None:
        super().__init__(lane)
        self._region = region
        self._first = first
        self._at = at
        self._limit = limit
        self._out = out

    def step(self, writer: Writer) -> None:
        """Read what is left: runs of free stripes, and one by one where that stops."""
        self._region.check_usable()
        left = self._out[self._at - self._first :]
        self._at = read_run(self._region, self._at, self._limit, left)
        for piece in pieces(self._at, self._limit):
            out = self._out[piece.first - self._first : piece.limit - self._first]
            read_piece(self._region, piece, out, writer.locks)
            self._at = piece.limit

    def ranges_done(self) -> list[ByteRange]:
        """List the range read so far."""
        return [(self._first, self._at)] if self._at > self._first else []


class LocalFailure(LaneWork):
    """A request that cannot even begin; it fails when its turn comes.

    Args:
        lane: of the thread that began it.
        reason: what it fails with.
    """

    def __init__(self, lane: Lane, reason: SmboxError) -> None:
        super().__init__(lane)
        self._reason = reason

    def step(self, writer: Writer) -> None:  # noqa: ARG002 - LaneWork's form
        """Fail."""
        raise self._reason

    def ranges_done(self) -> list[ByteRange]:
        """List nothing."""
        return []


class LocalBatch:
    """Many changes of one lane as one request.

    Args:
        works: begun, in order.
    """

    def __init__(self, works: Sequence[LaneWork]) -> None:
        self._works = works

    def advance(self, deadline_s: float) -> bool:
        """Drive the changes in order; the first failure is raised when all have ended."""
        first_error: SmboxError | None = None
        for work in self._works:
            try:
                if not work.advance(deadline_s):
                    return False
            except SmboxError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return True

    def progress(self) -> int:
        """Return how many bytes are done."""
        return sum(work.progress() for work in self._works)

    def let_go(self) -> None:
        """Nothing to do: arrays are used inside ``advance`` only."""

    def outcome(self) -> str:
        """Tell what is known of the effect of the batch as a whole."""
        return "partial" if self.ranges_done() else "not-sent"

    def ranges_done(self) -> list[ByteRange]:
        """List the ranges done, change by change."""
        return [done for work in self._works for done in work.ranges_done()]

    def facts(self) -> dict[str, object]:
        """Name what is in the way of the first change that waits."""
        return next((work.facts() for work in self._works if not work.is_done), {})

    def cancel(self) -> None:
        """Leave the lane with all that has not begun."""
        for work in self._works:
            work.cancel()


class LocalWait(Waiting):
    """A wait for a region's version; polls, because a local writer tells nobody.

    Args:
        region: mapped.
        version: that is waited for.
        is_closed: tells whether the box was closed.
    """

    def __init__(
        self, region: MappedRegion, version: int, is_closed: Callable[[], bool]
    ) -> None:
        self._region = region
        self._version = version
        self._is_closed = is_closed

    def advance(self, deadline_s: float) -> bool:
        """Look at the version until it is there.

        Raises:
            RegionFreedError: the region was freed meanwhile.
            PeerLostError: the box was closed meanwhile.
        """
        pause = Pause()
        while True:
            if self._is_closed():
                raise PeerLostError("the box was closed", outcome="not-sent")
            self._region.check_usable()
            if self._region.version() >= self._version:
                return True
            if not pause.sleep(deadline_s):
                return False

    def facts(self) -> dict[str, object]:
        """Tell how far the region is."""
        return {"version": self._region.version(), "wanted": self._version}

    def cancel(self) -> None:
        """Nothing to stop."""

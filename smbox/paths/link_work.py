"""What a link asks of a request of the client, and what the messages of one look like to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from smbox.errors import SmboxError
from smbox.paths.read_stream import ReadStream
from smbox.wire.call import Call
from smbox.wire.codec import Request


class LinkWork(Protocol):
    """What a link asks of a request of the client; called under the link's mutex."""

    @property
    def is_done(self) -> bool:
        """Whether it ended, well or not."""
        ...

    @property
    def unseen(self) -> SmboxError | None:
        """What it failed with, if ``flush`` has to tell of it: a change that did not happen."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether requests remain to be begun: later works wait for that."""
        ...

    def next_call(self) -> WorkCall | None:
        """Return the next request to queue, which the work keeps already; None: not now."""
        ...

    def open_calls(self) -> Iterable[WorkCall]:
        """List the requests that were begun and whose replies are not there."""
        ...

    def collect(self) -> None:
        """Take the replies that are there, in order; after the end, none."""
        ...

    def fail(self, error: SmboxError) -> None:
        """End for good; nothing happens to a work that has ended."""
        ...


class LoneWork(LinkWork, Protocol):
    """A work that can go on with requests which were sent before it stood in line."""

    def adopt(self, request: Request) -> WorkCall:
        """Make a call of the next of these requests, and keep it."""
        ...

    def cancel(self) -> None:
        """Begin nothing more, and take nothing more."""
        ...


class StreamWork(LoneWork, Protocol):
    """A long read that is not in line, and has nothing under way."""

    def stream(self, lend_nbytes: int) -> ReadStream:
        """Make a stream of what is left of it, its LENDs cut at multiples of so much."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class WorkCall(Call):
    """A request of a work.

    Attributes:
        work: it.
        first: where its part of the work begins, in the work's own units.
        limit: where that part ends.
        is_borrowed: its payload is the caller's memory.
    """

    work: LinkWork
    first: int = 0
    limit: int = 0
    is_borrowed: bool = False

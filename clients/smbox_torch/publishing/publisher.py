"""Publisher: weights of a trainer, in versions that any number of readers pull.

Readers cost the publisher nothing: it keeps no list of them, takes no lock with them and never
waits for them. How versions lie in the memory is told in publication.py; docs/publishing.md
says what survives which crash.
"""

from __future__ import annotations

import threading
from typing import Self

import torch

from smbox import (
    Box,
    ConfigError,
    LeaseLostError,
    Member,
    RankTakenError,
    RegionFreedError,
    RegionNotFoundError,
    join,
)
from smbox.head import check_prefix
from smbox_torch.boxes import check_box
from smbox_torch.checks import lease, whole
from smbox_torch.publishing import publication
from smbox_torch.publishing.publication import Layout, Newest, Source, state_of
from smbox_torch.publishing.term import Term

__all__ = ["Publisher"]


class Publisher:
    """The one publisher of a name; a context manager.

    Thread-safe; publications take turns.

    Args:
        box: the memory. A version takes as much of it as the tensors; ``keep`` versions stay.
        name: of the publication.
        source: a module, or a state dict whose tensors are published as they are then.
        dtype: of all floating-point tensors in the publication, such as ``torch.bfloat16``;
            None: each one's own. Values are rounded to nearest, beyond its range to infinity.
        keep: number of buffers, at least 2: a reader has the time of ``keep - 1``
            publications to copy a version.
        lease_s: seconds after which a publisher that was killed has a successor, on another
            host; on its own host a dead process is seen at once.

    Raises:
        TypeError, LimitError: an argument of a wrong type, or no publication can have this
            name; nothing was made.
        RankTakenError: a publisher of this name lives; the error names its host and pid.
        ConfigError: an entry is no dense tensor of bools, integers or real floats; ``dtype``
            is no floating-point type; fewer than 2 buffers; nothing was changed.
    """

    def __init__(
        self,
        box: Box,
        name: str,
        source: Source,
        dtype: torch.dtype | None = None,
        keep: int = 2,
        lease_s: float = 10.0,
    ) -> None:
        check_prefix(name)
        check_box(box)
        keep, lease_s = whole("keep", keep, least=2), lease(lease_s)
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype must be a torch.dtype, not {type(dtype).__name__}")
        if dtype is not None and not dtype.is_floating_point:
            raise ConfigError("weights are published in a floating-point type", dtype=dtype)
        self._box = box
        self._name = name
        self._source = source
        self._dtype = dtype
        self._keep = keep
        self._lock = threading.Lock()
        _, layout = self._tensors()
        self._member = _member(box, name, lease_s)
        try:
            self._counter = box.counter(publication.newest_name(name))
            self._term: Term | None = Term(box, name, layout)
            publication.free_terms(box, name, self._term.number, self._newest_regions())
        except BaseException:
            self._member.leave()
            raise

    def publish(self) -> int:
        """Publish the tensors as they are now; they must not change meanwhile.

        Returns:
            The version: 1, 2, 3, ..., one more than the last, whoever published that.

        Raises:
            ConfigError: an entry can not be published; nothing was.
            LeaseLostError: this publisher was closed, or stopped for longer than its lease, and
                another one has taken its place; nothing was published.
            OutOfMemoryError: no room for a buffer; nothing was published.
            LimitError: 2^40 versions were published; nothing was.
            RequestTimeoutError, PeerLostError: nothing was published, unless the next call
                returns a version that is higher by two.
        """
        with self._lock:
            version = None
            while version is None:
                try:
                    version = self._publish()
                except RegionFreedError:
                    self._member.check()  # a successor frees what this one writes to
                    raise
        return version

    def close(self) -> None:
        """Let another publisher in; the last versions stay. Idempotent."""
        self._member.leave()

    def _publish(self) -> int | None:
        """Publish; None if something older came between: a publication that was cut off."""
        state, layout = self._tensors()
        term, self._term = self._term, None  # one that is cut off is not used again
        if term is None or term.layout != layout:
            term = Term(self._box, self._name, layout)
        self._member.check()  # after the term was numbered: those of a successor are higher
        newest = self._newest()
        if newest.term > term.number:
            raise LeaseLostError(
                "another publisher has published under this name since; this one can not go on",
                publication=self._name,
                version=newest.version,
            )
        version = newest.version + 1
        published = Newest(term.number, version).word
        term.write(version, state)
        if not self._counter.compare_and_swap(newest.word, published):
            return None
        self._term = term
        if newest.term != term.number:
            publication.free_terms(self._box, self._name, term.number)
        return version

    def _newest(self) -> Newest:
        return Newest.of(self._counter.value)

    def _tensors(self) -> tuple[dict[str, torch.Tensor], Layout]:
        state = state_of(self._source)
        return state, Layout.of(state, self._dtype, self._keep)

    def _newest_regions(self) -> tuple[str, ...]:
        """Return the names of the regions that a reader of the newest version needs."""
        term, version = self._newest()
        try:
            keep = publication.layout_of(self._box, self._name, term).keep
        except RegionNotFoundError:  # nothing is published, or it was freed
            return ()
        return (
            publication.layout_name(self._name, term),
            publication.buffer_name(self._name, term, version % keep),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _member(box: Box, name: str, lease_s: float) -> Member:
    """Become the publisher of a name; RankTakenError if there is one."""
    try:
        return join(box, publication.publisher_name(name), rank=0, lease_s=lease_s)
    except RankTakenError as error:
        raise RankTakenError(
            "a publisher of this name lives: end it, or publish under another name",
            publication=name,
            host=error.facts["host"],
            pid=error.facts["pid"],
        ) from error

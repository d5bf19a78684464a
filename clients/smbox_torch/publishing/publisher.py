"""Publisher: publishes the weights of a trainer in numbered versions.

The publisher keeps no list of readers, shares no lock with them and never waits for them.
publication.py describes the regions; docs/publishing.md describes the effect of each crash.
"""

from __future__ import annotations

import weakref
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
from smbox.mutex import Mutex
from smbox_torch.boxes import check_box
from smbox_torch.checks import lease, whole
from smbox_torch.publishing import publication
from smbox_torch.publishing.publication import Layout, Newest, Source, state_of
from smbox_torch.publishing.term_buffers import TermBuffers

__all__ = ["Publisher"]


class Publisher:
    """Publishes versions of weights under a name; a context manager.

    A name has one publisher at a time. Thread-safe: concurrent publications run one after
    another.

    Args:
        box: connection to the memory. It holds ``keep`` buffers of the size of the tensors.
        name: name of the publication.
        source: a module or a state dict. Each publication reads its current tensors.
        dtype: dtype of all published floating-point tensors, such as ``torch.bfloat16``; None:
            the dtype of each tensor. Values are rounded to nearest; values out of range become
            infinite.
        keep: number of buffers, at least 2. A reader must copy a version before the publisher
            begins the ``keep``-th publication after it.
        lease_s: seconds after which a process on another host may replace a killed publisher.
            On the same host a dead process is detected at once.

    Raises:
        TypeError, LimitError: an argument has a wrong type, or the name is not valid; nothing
            was created.
        RankTakenError: another publisher of this name is alive; the error names host and pid.
        ConfigError: an entry is not a dense tensor of bools, integers or real floats, ``dtype``
            is not a floating-point dtype, or ``keep`` is below 2; nothing was changed.
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
        self._mutex = Mutex()
        _, layout = self._tensors()
        self._member = _member(box, name, lease_s)
        try:
            self._counter = box.counter(publication.newest_name(name))
            self._term: TermBuffers | None = self._begin_term(layout)
        except BaseException:
            self._member.leave()
            raise
        weakref.finalize(self, self._member.leave).atexit = False  # the box does it at exit

    def publish(self) -> int:
        """Publish the current tensors; they must not change during the call.

        Returns:
            The version: 1 for the first one, then the last version of any publisher plus 1.

        Raises:
            ConfigError: an entry cannot be published, or this call is inside another one of the
                same thread, as in a signal handler; it published nothing.
            LeaseLostError: this publisher was closed, or was stopped for longer than its lease
                and replaced by another one; nothing was published.
            OutOfMemoryError: not enough memory for a buffer; nothing was published.
            LimitError: 2^40 versions were published; nothing was published.
            RequestTimeoutError, PeerLostError: the effect is unknown. If the version was
                published, the next call returns a version that is higher by two.
        """
        return self._mutex.holding(None, self._publish_until_done)

    def close(self) -> None:
        """Release the name to another publisher; the last versions stay. Idempotent."""
        self._member.leave()

    def _publish_until_done(self) -> int:
        while True:
            try:
                version = self._publish()
            except RegionFreedError:
                self._member.check()  # a successor frees the buffers of this publisher
                raise
            if version is not None:
                return version

    def _publish(self) -> int | None:
        """Publish; return None if an interrupted, earlier publication took the version."""
        state, layout = self._tensors()
        term, self._term = self._term, None  # not used again if this call is interrupted
        if term is None or term.layout != layout:
            term = self._begin_term(layout)
        self._member.check()
        newest = self._newest()
        if newest.term > term.number:
            raise LeaseLostError(
                "another publisher has replaced this one: make a new Publisher to continue",
                publication=self._name,
                version=newest.version,
            )
        version = newest.version + 1
        published = Newest(term.number, version).word
        term.write(version, state)
        if not self._counter.compare_and_swap(newest.word, published):
            return None
        if newest.term != term.number:
            publication.free_terms(self._box, self._name, term.number)
        self._term = term  # an interrupted free is repeated when the next term begins
        return version

    def _begin_term(self, layout: Layout) -> TermBuffers:
        """Begin a term, and free the buffers of earlier ones except the newest version."""
        term = TermBuffers(self._box, self._name, layout)
        self._member.check()  # after numbering the term: a successor's terms are higher
        publication.free_terms(self._box, self._name, term.number, self._newest_regions())
        return term

    def _newest(self) -> Newest:
        return Newest.of(self._counter.value)

    def _tensors(self) -> tuple[dict[str, torch.Tensor], Layout]:
        state = state_of(self._source)
        return state, Layout.of(state, self._dtype, self._keep)

    def _newest_regions(self) -> tuple[str, ...]:
        """Return the names of the regions that a reader of the newest version needs."""
        term, version = self._newest()
        try:
            region = self._box.attach(publication.layout_name(self._name, term), timeout_s=None)
            keep = publication.layout_of(region.get()).keep
        except (RegionFreedError, RegionNotFoundError, ConfigError):
            return ()  # nothing is published, or it was freed or overwritten
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
            "another publisher of this name is alive: close it, or use another name",
            publication=name,
            host=error.facts["host"],
            pid=error.facts["pid"],
        ) from error

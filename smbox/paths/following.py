"""Requests in turn, kept until they are done, so that ``flush`` drives them too."""

from __future__ import annotations

import threading

from smbox.errors import SmboxError
from smbox.work import Work


class Following:
    """Those of one client. Thread-safe."""

    def __init__(self) -> None:
        self._works: list[Work] = []
        self._lock = threading.Lock()

    def add(self, work: Work) -> None:
        """Keep a request, begun, until it is done."""
        with self._lock:
            self._works = [each for each in self._works if not each.is_done] + [work]

    def drain(self, deadline_s: float) -> bool:
        """Drive all to their end; False at the deadline.

        Raises:
            SmboxError: what the first failed with, if nobody was told of it.
        """
        with self._lock:
            works = [each for each in self._works if not each.is_done]
        first_error: SmboxError | None = None
        for work in works:
            try:
                work.advance(deadline_s)
            except SmboxError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return all(work.is_done for work in works)

    def clear(self) -> None:
        """Forget all: the box is closed, or this is a forked child."""
        self._lock = threading.Lock()
        self._works = []

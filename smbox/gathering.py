"""when_all: one handle over several, which is done when all of them are."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from smbox.errors import ConfigError
from smbox.handle import Handle
from smbox.work import Work

TURN_S: Final = 0.002
"""How long one request is driven while others wait."""


def when_all(handles: Iterable[Handle[Any]]) -> Handle[tuple[Any, ...]]:
    """Return a handle over several: its result is the tuple of their results, in this order.

    All are waited for, also after one has failed; then the first error in this order is
    raised. The requests may be of several regions, boxes and threads. Each handle can still
    be waited for by itself. The timeout is the longest of theirs.

    Args:
        handles: of ``_nb`` verbs, ``then`` or ``when_all``; none: the result is ``()``.

    Raises:
        TypeError: one is no handle.
        ConfigError: one is there twice.
    """
    each = tuple(handles)
    for handle in each:
        if not isinstance(handle, Handle):
            raise TypeError(f"when_all takes handles, not {type(handle).__name__}")
    if len(set(map(id, each))) < len(each):
        raise ConfigError("when_all was given a handle twice: name each one once")
    timeout_s = max((handle.timeout_s for handle in each), default=math.inf)
    return Handle("when_all", _All(each), lambda: tuple(h.result() for h in each), timeout_s)


class _All(Work):
    """Several requests, begun elsewhere, that are driven in turn; see Work.

    They are of several regions: no ranges are listed.
    """

    def __init__(self, handles: Sequence[Handle[Any]]) -> None:
        self._handles = handles

    def advance(self, deadline_s: float) -> bool:
        """Drive all in turn until they have ended, or the deadline.

        Raises:
            Exception: what the first one in order failed with, once all have ended.
        """
        while left := [handle for handle in self._handles if not handle.done()]:
            if time.monotonic() >= deadline_s:
                return False
            for handle in left:
                turn_s = time.monotonic() + TURN_S if len(left) > 1 else deadline_s
                handle.advance(min(deadline_s, turn_s))
        for handle in self._handles:
            handle.result()
        return True

    def progress(self) -> int:
        return sum(handle.work.progress() for handle in self._handles)

    def outcome(self) -> str:
        found = {handle.outcome(0.0) for handle in self._handles} or {"all"}
        if len(found) == 1:
            return found.pop()
        return "unknown" if "unknown" in found else "partial"

    def facts(self) -> dict[str, object]:
        late = [handle for handle in self._handles if not handle.done()]
        return late[0].work.facts() if late else {}

    def cancel(self) -> None:
        for handle in self._handles:
            handle.work.cancel()

"""Driving what every thread of a client has begun: the flush of either path. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from smbox.errors import SmboxError


class Drainable(Protocol):
    """One thread's half of a path: its queue, or its channel."""

    def drain(self, deadline_s: float) -> bool:
        """Drive it until nothing is left; False at the deadline."""


def drain_all(threads: Iterable[Drainable], deadline_s: float) -> bool:
    """Drive all of them, also behind one that fails; False if any is not complete.

    Raises:
        SmboxError: what the first one failed with.
    """
    is_complete = True
    first_error: SmboxError | None = None
    for each in threads:
        try:
            is_complete = each.drain(deadline_s) and is_complete
        except SmboxError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
    return is_complete

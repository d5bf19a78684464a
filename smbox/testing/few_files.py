"""One call of the system that finds too many open files, for tests that try each in turn."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from smbox.memory import mapping


class Failure:
    """The call that fails.

    Attributes:
        left: number of calls before it; negative: it has failed.

    Args:
        nth: number of calls before it.
    """

    def __init__(self, nth: int) -> None:
        self.left = nth

    @property
    def has_struck(self) -> bool:
        """Whether the call has failed."""
        return self.left < 0

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose calls count; one of them fails."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == -1:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return function(*args, **kwargs)

        return counted


@contextmanager
def failing_open(nth: int) -> Iterator[Failure]:
    """Let the ``nth`` call fail that opens, lists or maps shared memory in this block."""
    failure = Failure(nth)
    with (
        mock.patch.object(os, "open", failure.of(os.open)),
        mock.patch.object(os, "listdir", failure.of(os.listdir)),
        mock.patch.object(mapping, "map_shared", failure.of(mapping.map_shared)),
    ):
        yield failure

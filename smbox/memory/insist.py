"""Coming to an end in spite of Ctrl-C, and passing it on afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

TRIES: Final = 3
"""Errors in a row that are believed to be settling's own, and not a signal handler's."""


def insist(settle: Callable[[], None]) -> None:
    """Call ``settle`` until it comes to its end, however often it is interrupted.

    One that strikes outside of the ``try`` below, as this is entered, cuts it off all the same:
    who calls it remembers that something is left to settle.

    Args:
        settle: may be called again after it was cut off anywhere.

    Raises:
        KeyboardInterrupt: one came meanwhile; it must not be lost: somebody waits for it.
        BaseException: another one came once or twice, as a signal's handler may raise; or it
            came every time, and is ``settle``'s own.
    """
    interrupt: BaseException | None = None
    tries_left = TRIES
    while True:
        try:
            settle()
        except KeyboardInterrupt as error:
            interrupt = error
            continue
        except BaseException as error:
            tries_left -= 1
            if not tries_left:
                raise
            interrupt = error
            continue
        break
    if interrupt is not None:
        raise interrupt

"""Coming to an end in spite of Ctrl-C, and passing it on afterwards."""

from __future__ import annotations

from collections.abc import Callable


def insist(settle: Callable[[], None]) -> None:
    """Call ``settle`` until it comes to its end, however often it is interrupted.

    Args:
        settle: may be called again after it was cut off anywhere.

    Raises:
        KeyboardInterrupt: one came meanwhile; it must not be lost: somebody waits for it.
    """
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            settle()
        except KeyboardInterrupt as error:
            interrupt = error
            continue
        break
    if interrupt is not None:
        raise interrupt

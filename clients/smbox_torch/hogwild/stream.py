"""A thread that does the same thing again and again, at its own pace, until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Stream"]


class Stream:
    """Repeats work in a thread; what the work raises ends it, and is raised by ``check``.

    Args:
        work: what is repeated.
        pause_s: between two turns, in seconds.
    """

    def __init__(self, work: Callable[[], None], pause_s: float) -> None:
        self._work = work
        self._pause_s = pause_s
        self._error: BaseException | None = None
        self._stopped = threading.Event()
        name = f"{threading.current_thread().name}-stream"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._work()
                self._stopped.wait(self._pause_s)
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody sees it
            self._error = error

    def check(self) -> None:
        """Raise what ended the work, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> bool:
        """Stop after the present turn; tell whether it was running until now.

        Raises:
            BaseException: what ended the work, if nobody has seen it yet.
        """
        was_running = self._thread.is_alive() and not self._stopped.is_set()
        self._stopped.set()
        self._thread.join()
        self.check()
        return was_running

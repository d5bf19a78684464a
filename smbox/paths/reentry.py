"""A signal handler or finalizer may call a verb while its own thread is inside another one.

It would wait for a mutex that its own thread holds: for ever. So these mutexes know their
thread; a nested verb takes another lane or link, and what cannot is an error.
"""

from __future__ import annotations

import threading

from smbox.errors import ConfigError


def is_mine(mutex: threading.RLock) -> bool:
    """Tell whether the calling thread holds the mutex."""
    return mutex._is_owned()  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001


def check_not_mine(mutex: threading.RLock) -> None:
    """Raise ConfigError if the calling thread holds the mutex already."""
    if is_mine(mutex):
        raise ConfigError(
            "a signal handler or finalizer cannot go on with what the call that it"
            " interrupted has in hand; begin something new, or set a flag and return"
        )

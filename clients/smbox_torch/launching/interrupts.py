"""Conversion of signals that end a process to KeyboardInterrupt, so that ``finally`` runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ENDING: Final = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
"""Signals that ask a process to end."""


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt in the block, so that ``finally`` runs.

    SIGHUP is sent when the terminal is closed; under ``nohup`` it stays ignored. SIGCHLD, which
    a program that starts this one may ignore, is not ignored in the block: the exit status of
    a child would be lost.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {
        signal.SIGCHLD: signal.signal(signal.SIGCHLD, signal.SIG_DFL),
        signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt),
    }
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, interrupt)
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


@contextmanager
def held() -> Iterator[None]:
    """Block the signals that end a process until the block is done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""Runs a program in namespaces of its own, which end with it, however it ends.

The program is process 1 of a pid namespace: when it ends, even by SIGKILL, the kernel kills
every process that it has started, and with the last process go the network namespaces, links,
bridge and shared memory. So there is nothing to clean up, and no name that could be left.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

from lab import needs
from smbox.errors import ConfigError
from smbox.memory import process

OUTSIDE: Final = "SMBOX_LAB_OUTSIDE"
"""Variable with the number of the machine's own network namespace."""


def network() -> str:
    """Return the number of this process's network namespace."""
    return str(Path("/proc/self/ns/net").stat().st_ino)


def is_inside() -> bool:
    """Tell whether this process is in a laboratory, so that no link here is the machine's."""
    return os.environ.get(OUTSIDE, network()) != network()


def run(argv: Sequence[str]) -> int:
    """Run a program inside; return its exit code, 128 + signal if one killed it.

    SIGTERM is handed on; Ctrl-C and SIGHUP of a terminal reach the program by themselves.

    Raises:
        ConfigError: the machine lacks something; nothing was started.
    """
    if lack := needs.missing():
        raise ConfigError(f"there can be no laboratory: {lack}")
    heed = functools.partial(process.signal_on_parent_death, signal.SIGKILL)
    before = {
        sign: signal.signal(sign, signal.SIG_IGN) for sign in (signal.SIGINT, signal.SIGHUP)
    }
    try:
        child = subprocess.Popen(
            [*needs.unshare(), *argv],
            env=os.environ | {OUTSIDE: network()},
            preexec_fn=functools.partial(_prepare, before, heed),  # noqa: PLW1509 - no threads
        )
        before[signal.SIGTERM] = signal.signal(
            signal.SIGTERM, lambda *_: _send(child.pid, signal.SIGTERM)
        )
        code = child.wait()
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
    return code if code >= 0 else 128 - code


def _prepare(before: dict[signal.Signals, object], heed: functools.partial[None]) -> None:
    """Give the program the signals back, and tie it to this process."""
    for sign, handler in before.items():
        keeps = sign == signal.SIGHUP and handler == signal.SIG_IGN  # as nohup wants it
        signal.signal(sign, signal.SIG_IGN if keeps else signal.SIG_DFL)
    heed()


def _send(pid: int, sign: signal.Signals) -> None:
    """Send a signal to process 1 of the namespace, the only child of unshare."""
    for child in psutil.Process(pid).children():
        child.send_signal(sign)

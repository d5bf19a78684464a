"""Every test ends as it began: no thread, file, child or segment more."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

SETTLE_S = 20.0
SHM = Path("/dev/shm")


def _segments() -> set[str]:
    return {path.name for path in SHM.glob("smbox.*")}


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def _files() -> set[str]:
    """Files that stay open, by target; anonymous pipes and sockets come and go by library."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if "/dev/shm/smbox" in target or target.startswith("socket:"):
            found.add(target)
    return found


PROBES: dict[str, Callable[[], set]] = {
    "segments in /dev/shm": _segments,
    "child processes": _children,
    "threads": _threads,
    "open files and sockets": _files,
}


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    before = {name: probe() for name, probe in PROBES.items()}
    yield
    deadline = time.monotonic() + SETTLE_S
    while True:
        left = {name: probe() - before[name] for name, probe in PROBES.items()}
        left = {name: what for name, what in left.items() if what}
        if not left:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {left}")
        gc.collect()
        time.sleep(0.02)

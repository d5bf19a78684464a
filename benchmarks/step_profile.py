"""Where the time of a training step goes: samples of the main thread's stack, by category.

A timer interrupts the main thread. Python runs the handler when the C function that was
interrupted has returned, or calls Python code, as the hooks of a backward pass. Each sample
stands for the time since the one before, so a long call counts as long as it took. What other
threads do is not seen: it costs only what the main thread waits.
"""

from __future__ import annotations

import dis
import functools
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

INTERVAL_S: Final = 2e-4
TRAINING: Final = "training"
PYTHON: Final = "Python"

CLONE: Final = str(Path(__file__).parents[1])
"""Its own name, which may be smbox, says nothing about a file in it."""

PLACES: Final = (
    ("/torch/optim/", TRAINING),  # the optimizer inside, which the wrapper calls
    ("/torch/nn/", TRAINING),
    ("/smbox_torch/averaging/rendezvous.py", "waiting"),
    ("/smbox_torch/workers/clocks.py", "waiting"),
    ("/smbox_torch/elastic/update_thread.py", "waiting"),
    ("/threading.py", "waiting"),
    ("/smbox_torch/model/flat.py", "copies"),
    ("/smbox_torch/model/master.py", "copies"),
    ("/smbox_torch/averaging/mean.py", "copies"),
    ("/smbox_torch/downpour/pending_update.py", "copies"),
    ("/smbox_torch/hybrid/broadcast.py", "copies"),
    ("/smbox_torch/publishing/publisher.py", "copies"),
    ("/smbox_torch/averaging/buckets.py", "exchange"),
    ("/smbox_torch/", PYTHON),
    ("/smbox/", "exchange"),
)
"""Parts of file names, and what the time in them counts as; the innermost frame that has one of
them decides, and of a frame the first that it has."""

CATEGORIES: Final = ("exchange", "copies", "waiting", PYTHON)


class Profile:
    """Adds up the time of the main thread by category, in seconds."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._last_s = 0.0

    @contextmanager
    def sampling(self, *, now_s: Callable[[], float] = time.perf_counter) -> Iterator[None]:
        """Sample what happens inside; only the main thread may do so."""
        is_taking = False

        def take(_number: int, frame: FrameType | None) -> None:
            nonlocal is_taking
            if not is_taking:  # on a busy machine the next signal interrupts this handler
                is_taking = True
                self.add(category_of(frame), now_s())
                is_taking = False

        before = signal.signal(signal.SIGALRM, take)
        self._last_s = now_s()
        signal.setitimer(signal.ITIMER_REAL, INTERVAL_S, INTERVAL_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)

    def add(self, category: str, now_s: float) -> None:
        """Count the time since the last sample."""
        self.seconds[category] += now_s - self._last_s
        self._last_s = now_s


def category_of(frame: FrameType | None) -> str:
    """Return what a stack counts as; training if no frame of smbox is on it."""
    if frame is not None and frame.f_lasti <= _begin_of(frame.f_code):
        frame = frame.f_back  # it has only just been called: the time is its caller's
    while frame is not None:
        file = frame.f_code.co_filename.removeprefix(CLONE)
        for part, category in PLACES:
            if part in file:
                return category
        frame = frame.f_back
    return TRAINING


@functools.cache
def _begin_of(code: CodeType) -> int:
    """Return the offset of the instruction at which a function first looks for signals."""
    return next((i.offset for i in dis.get_instructions(code) if i.opname == "RESUME"), -1)

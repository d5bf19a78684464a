"""Whether the memory of a run is fresh, so that a checkpoint is restored into it once.

A counter ``NAME.phase`` goes from FRESH to IN_USE when the first worker exchanges something,
or by RESTORING when workers load a checkpoint before that: one of them writes the center, the
others wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from smbox_torch.boxes import BoxLike

__all__ = ["Phase", "of_this_start"]

FRESH, RESTORING, IN_USE = 0, 1, 2
RESTORE_TIMEOUT_S = 120.0
"""Longest wait for another worker that writes a checkpoint into the center."""


def of_this_start(name: str, env: Mapping[str, str] = os.environ) -> str:
    """Name a barrier so that it is another one after every restart of the run's workers.

    A worker that was killed while it waited has arrived all the same, and nobody can tell.
    """
    restart = env.get("TORCHELASTIC_RESTART_COUNT", "0")
    return name if restart == "0" else f"{name}.{restart}"


class Phase:
    """One worker's view of the counter.

    Args:
        box: the memory.
        name: of the run.
    """

    def __init__(self, box: BoxLike, name: str) -> None:
        self._counter = box.counter(f"{name}.phase")
        self._in_use = False

    def use(self) -> None:
        """Tell that work begins; wait while another worker writes a checkpoint.

        Raises:
            RequestTimeoutError: the worker that restores seems dead; nothing was changed.
        """
        if self._in_use:
            return
        self._counter.compare_and_swap(FRESH, IN_USE)
        self._counter.wait(at_least=IN_USE, timeout_s=RESTORE_TIMEOUT_S)
        self._in_use = True

    @contextmanager
    def restoring(self) -> Iterator[bool]:
        """Say whether this worker is to write the checkpoint; others wait until it is there."""
        is_mine = self._counter.compare_and_swap(FRESH, RESTORING)
        if not is_mine:
            self._counter.wait(at_least=IN_USE, timeout_s=RESTORE_TIMEOUT_S)
        after = FRESH
        try:
            yield is_mine
            after = IN_USE
        finally:
            if is_mine:
                self._counter.compare_and_swap(RESTORING, after)

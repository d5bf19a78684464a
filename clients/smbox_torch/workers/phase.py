"""The phase of a run: fresh or in use, so that a checkpoint is restored only once.

A counter ``NAME.phase`` goes from FRESH to IN_USE when the first worker exchanges something.
When workers load a checkpoint before that, one of them writes the center while the counter is
below FRESH, and the others wait for it. The value says who writes: rank r of start n of the
run's workers is ``-1 - (n * RANKS_MAX + r)``. What an earlier start has left there is of a dead
worker, and so is what a worker finds of its own rank that was started again by itself.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from smbox.errors import RequestTimeoutError
from smbox_torch.boxes import BoxLike
from smbox_torch.world import World

__all__ = ["Phase", "of_this_start"]

FRESH, IN_USE = 0, 1
RANKS_MAX = 1 << 20
RESTORE_TIMEOUT_S = 120.0
"""Longest wait for another worker that writes a checkpoint into the center."""


def of_this_start(name: str, env: Mapping[str, str] = os.environ) -> str:
    """Name a barrier so that it is another one after every restart of all the run's workers.

    A worker that was started again by itself meets the others where they are: in the same one.

    A worker that was killed while it waited has arrived all the same, and nobody can tell.
    """
    restart = World.from_env(env).restart
    return f"{name}.{restart}" if restart else name


class Phase:
    """One worker's view of the counter.

    Args:
        box: the memory.
        name: of the run.
        env: tells which worker this is, of which start.

    Attributes:
        origin: stands in the states that this worker returns, and in no others.
    """

    def __init__(self, box: BoxLike, name: str, env: Mapping[str, str] = os.environ) -> None:
        self._name = f"{name}.phase"
        self._counter = box.counter(self._name)
        world = World.from_env(env)
        self._restoring = -1 - (world.restart * RANKS_MAX + world.rank)
        self._earlier = -1 - world.restart * RANKS_MAX  # starts before this one lie above it
        self._is_again = world.worker_restart > 0
        self._in_use = False
        self.origin = uuid.uuid4().hex

    def use(self) -> None:
        """Tell that work begins; wait while another worker writes a checkpoint.

        Raises:
            RequestTimeoutError: the worker that restores seems dead; nothing was changed.
        """
        if self._in_use:
            return
        self._counter.compare_and_swap(FRESH, IN_USE)
        self._await_use()
        self._in_use = True

    @contextmanager
    def restoring(self, origin: str | None = None) -> Iterator[bool]:
        """Say whether this worker is to write the checkpoint; others wait until it is there.

        A state whose origin is this very worker is none: accelerate loads such a one.
        """
        if origin == self.origin:
            yield False
            return
        is_mine = self._take()
        if not is_mine:
            self._await_use()
        after = FRESH
        try:
            yield is_mine
            after = IN_USE
        finally:
            if is_mine:
                self._counter.compare_and_swap(self._restoring, after)

    def _take(self) -> bool:
        """Be the one who restores: the first, or the first after a worker that died of it."""
        found = self._counter.value
        is_left = self._earlier < found < FRESH
        is_left |= self._is_again and found == self._restoring
        return self._counter.compare_and_swap(found if is_left else FRESH, self._restoring)

    def _await_use(self) -> None:
        try:
            self._counter.wait(at_least=IN_USE, timeout_s=RESTORE_TIMEOUT_S)
        except RequestTimeoutError as error:
            raise RequestTimeoutError(
                "a worker began to write a checkpoint into the memory and is not done: if it is"
                f" dead or failed, free the counter (smbox rm {self._name}), start the workers"
                " again and load it",
                **error.facts,
            ) from error

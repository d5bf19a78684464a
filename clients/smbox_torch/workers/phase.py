"""The phase of a run: fresh or in use, so that a checkpoint is restored only once.

A counter ``NAME.phase`` changes from FRESH to IN_USE at the first exchange of a worker. If
workers load a checkpoint before that, one of them writes the center while the counter is below
FRESH, and the others wait for it. The value identifies the writing worker: rank r of start n of
the run's workers writes ``-1 - ((n * RANKS_MAX + r) * TOKENS + token)``. The random token
distinguishes workers of one rank: without a launcher all have rank 0. A value of an earlier
start belongs to a dead worker. So does the value of this worker's own rank after this worker
alone was restarted.
"""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from smbox.errors import RequestTimeoutError
from smbox_torch.boxes import BoxLike
from smbox_torch.workers.launch import UNKNOWN, launch_of
from smbox_torch.world import World

__all__ = ["Phase", "of_this_start"]

FRESH, IN_USE = 0, 1
RANKS_MAX = 1 << 20
TOKENS = 1 << 24
RESTORE_TIMEOUT_S = 120.0
"""Longest wait for another worker's write of a checkpoint into the center."""


def of_this_start(name: str, env: Mapping[str, str] = os.environ) -> str:
    """Return the name of a barrier, which differs for each launch and restart of all workers.

    A worker that was restarted alone uses the same barrier as the others. A worker that was
    killed while it waited still counts as arrived; this cannot be detected.
    """
    launch, restart = launch_of(env), World.from_env(env).restart
    named = name if launch == UNKNOWN else f"{name}.{launch:x}"
    return f"{named}.{restart}" if restart else named


class Phase:
    """One worker's view of the counter.

    Args:
        box: the memory.
        name: name of the run.
        env: the environment, with the rank of this worker and the number of its start.

    Attributes:
        origin: identifier in all states that this worker returns, and in no other states.
    """

    def __init__(self, box: BoxLike, name: str, env: Mapping[str, str] = os.environ) -> None:
        self._name = f"{name}.phase"
        self._counter = box.counter(self._name)
        world = World.from_env(env)
        self._first_place = world.restart * RANKS_MAX  # those of earlier starts are lower
        self._place = self._first_place + world.rank
        self._restoring = -1 - (self._place * TOKENS + secrets.randbelow(TOKENS))
        self._is_again = world.worker_restart > 0
        self._in_use = False
        self.origin = uuid.uuid4().hex

    def use(self) -> None:
        """Mark the run as in use; first wait while another worker writes a checkpoint.

        Raises:
            RequestTimeoutError: the writing worker did not finish; nothing was changed.
        """
        if self._in_use:
            return
        self._counter.compare_and_swap(FRESH, IN_USE)
        self._await_use()
        self._in_use = True

    def is_in_use(self) -> bool:
        """Return whether a worker has exchanged; a restored checkpoint counts as well."""
        self._in_use = self._in_use or self._counter.value == IN_USE
        return self._in_use

    @contextmanager
    def restoring(self, origin: str | None = None) -> Iterator[bool]:
        """Yield True if this worker must write the checkpoint; the others wait for it.

        A state whose origin is this worker is not a checkpoint: accelerate loads such states.
        """
        if origin == self.origin:
            yield False
            return
        is_mine, after = True, FRESH  # an interrupt may come between the change and its answer
        try:
            is_mine = self._take()
            if not is_mine:
                self._await_use()
            yield is_mine
            after = IN_USE
        finally:
            if is_mine:  # or unknown: only this object writes this value
                self._end_turn(after)

    def _take(self) -> bool:
        """Try to become the writing worker: the first, or the successor of a dead one."""
        found = self._counter.value
        place = (-1 - found) // TOKENS
        is_left = place < self._first_place or (self._is_again and place == self._place)
        is_left &= found < FRESH
        return self._counter.compare_and_swap(found if is_left else FRESH, self._restoring)

    def _end_turn(self, after: int) -> None:
        try:
            self._counter.compare_and_swap(self._restoring, after)
        except KeyboardInterrupt:  # no other worker would end it
            self._end_turn(after)
            raise

    def _await_use(self) -> None:
        try:
            self._counter.wait(at_least=IN_USE, timeout_s=RESTORE_TIMEOUT_S)
        except RequestTimeoutError as error:
            raise RequestTimeoutError(
                "a worker began to write a checkpoint into the memory and is not done: if it is"
                f" dead or failed, free the counter (smbox rm {self._name}), start the workers"
                " again and load the checkpoint",
                **error.facts,
            ) from error

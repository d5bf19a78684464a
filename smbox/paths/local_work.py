"""One request of a thread's queue, on mapped memory: what every kind of it has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smbox.errors import SmboxError
from smbox.memory.recovery import StripeBusy
from smbox.paths.pause import Pause
from smbox.work import Work

if TYPE_CHECKING:
    from smbox.paths.local_queue import LocalQueue


class LocalWork(Work):
    """One request of a queue; subclasses say what a step is.

    Attributes:
        queue: of the thread that begins it.
        is_begun: it was tried, or waits for those before it.
        is_done: it ended, well or not.
        error: what it failed with.
        busy: the stripe that stopped its last step.
    """

    is_begun = False
    is_done = False
    error: SmboxError | None = None
    busy: StripeBusy | None = None
    queue: LocalQueue

    def step(self, queue: LocalQueue) -> None:
        """Go on as far as possible; StripeBusy where that is not the end.

        Called again after any exception: it continues exactly once.
        """
        raise NotImplementedError

    def progress(self) -> int:
        """Return how many bytes are done."""
        return sum(limit - first for first, limit in self.ranges_done())

    def begin(self) -> None:
        """Try it at once, behind those that were begun before."""
        if not self.is_begun and not self.queue.run(self):
            self.queue.rest()

    def outcome(self) -> str:
        """Tell what is known of the effect; a local request never ends in doubt."""
        if self.is_done and self.error is None:
            return "all"
        return "partial" if self.ranges_done() else "none"

    def facts(self) -> dict[str, object]:
        """Name the stripe in the way and the process that holds it (0: not known)."""
        busy = self.queue.busy()
        if busy is None:
            return {}
        return {
            "region": busy.region.spec.name,
            "stripe": busy.stripe,
            "holder_pid": busy.holder_pid(),
        }

    def advance(self, deadline_s: float) -> bool:
        """Drive the queue until this request is done; begins it, if need be."""
        if not self.is_done:
            pause = Pause()
            try:
                while not self.queue.run(self):
                    if not pause.sleep(deadline_s):
                        return False
            finally:
                self.queue.rest()
        if self.error is not None:
            self.queue.seen(self)
            raise self.error
        return True

    def ended(self) -> None:
        """Give back what is not needed any more; called once, under the queue's lock."""

    def rested(self) -> None:
        """Release what only somebody who waits may keep; called under the queue's lock."""

    def cancel(self) -> None:
        """Leave the queue; what is committed stays."""
        self.queue.drop(self)

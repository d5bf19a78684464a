"""The add that ends an exchange in three steps: behind the next gradient, or at once.

The part of SEASGD (ShmCaffe, ICDCS 2018) that an update thread does, A1 to A4: whoever moves x
once more waits for the last add first, because its move is still in use.
"""

from __future__ import annotations

from smbox.head import check_prefix
from smbox_torch.boxes import BoxLike, RegionLike
from smbox_torch.elastic.unfused import UnfusedExchange
from smbox_torch.elastic.update_thread import UpdateThread
from smbox_torch.optimizer.center import Center
from smbox_torch.optimizer.stats import Recorder

__all__ = ["CenterAdd", "check_increment", "create_increments"]


def check_increment(increment: str | None) -> None:
    """Raise as ``check_prefix`` where no region can have this name; None is fine."""
    if increment is not None:
        check_prefix(increment)


def create_increments(
    box: BoxLike, name: str, center: Center, increment: str | None
) -> list[RegionLike] | None:
    """Create one worker's own increment regions, or find those of its life before.

    Args:
        box: the memory.
        name: of the run.
        center: what the increments are added to.
        increment: name of this worker's; None: it has none, and None is returned.
    """
    if increment is None:
        return None
    return [
        box.create(
            f"{name}.increment.{increment}.{index}",
            shape=buffer.host.shape,
            dtype=str(region.dtype),
            exist_ok=True,
        )
        for index, (buffer, region) in enumerate(center)
    ]


class CenterAdd:
    """One worker's adds, at most one under way.

    Args:
        steps: whose moves are added.
        center: which they are added to.
        recorder: is told the staleness, and the time of adds that were hidden.
        is_hidden: add on an update thread.
    """

    def __init__(
        self, steps: UnfusedExchange, center: Center, recorder: Recorder, *, is_hidden: bool
    ) -> None:
        self._steps = steps
        self._center = center
        self._recorder = recorder
        self._thread = UpdateThread() if is_hidden else None

    def begin(self) -> None:
        """Add the last move, or hand it to the update thread; the add before has finished."""
        if self._thread is None:
            self._add()
        else:
            self._thread.begin(self._add)

    def _add(self) -> None:
        self._steps.add()
        self._recorder.behind(self._center.behind())

    def finish(self) -> None:
        """Wait until the last move has been added, and raise what that raised."""
        if self._thread is not None and self._thread.busy:
            self._thread.finish()
            self._recorder.exchange_s += self._thread.took_s - self._thread.waited_s

    def close(self) -> None:
        """Finish, and end the thread."""
        if self._thread is not None:
            try:
                self.finish()
            finally:
                self._thread.close()

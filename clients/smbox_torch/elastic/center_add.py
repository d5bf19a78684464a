"""The add that ends an unfused exchange, on an update thread or in the calling thread.

These are the steps A1 to A4 of SEASGD (ShmCaffe, ICDCS 2018). Before the center is read again,
the caller waits for the last add: its move is still in use, and the center may lack it.
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
    """Raise as ``check_prefix`` does if the name is invalid for a region; None is valid."""
    if increment is not None:
        check_prefix(increment)


def create_increments(
    box: BoxLike, center: Center, increment: str | None
) -> list[RegionLike] | None:
    """Create the increment regions of one worker, or attach to existing ones.

    Args:
        box: the memory box.
        center: the center to which the increments are added.
        increment: name of this worker's increment; None: return None.
    """
    if increment is None:
        return None
    return [
        box.create(
            f"{center.name}.increment.{increment}.{index}",
            shape=buffer.host.shape,
            dtype=str(region.dtype),
            exist_ok=True,
        )
        for index, (buffer, region) in enumerate(center)
    ]


class CenterAdd:
    """Adds of one worker's moves to the center, at most one in flight.

    Args:
        steps: the exchange whose moves are added.
        recorder: counts the staleness and the time of overlapped adds.
        is_hidden: add on an update thread.
    """

    def __init__(self, steps: UnfusedExchange, recorder: Recorder, *, is_hidden: bool) -> None:
        self._steps = steps
        self._recorder = recorder
        self._thread = UpdateThread() if is_hidden else None

    def begin(self) -> None:
        """Add the last move, or submit it to the update thread; the previous add is done."""
        if self._thread is None:
            self._add()
        else:
            self._thread.begin(self._add)

    def _add(self) -> None:
        self._steps.add()
        self._recorder.behind(self._steps.center.behind())

    def finish(self) -> None:
        """Wait until the last move has been added; raise the exception of the add, if any."""
        if self._thread is not None and self._thread.busy:
            self._thread.finish()
            self._recorder.exchange_s += self._thread.took_s - self._thread.waited_s
        if self._steps.unsent:  # an interrupt came after x had moved and before ``begin``
            self._add()

    def close(self) -> None:
        """Finish the last add and stop the thread."""
        try:
            self.finish()
        except Exception:  # an interrupt ends the wait
            self._stop()
            raise
        self._stop()

    def _stop(self) -> None:
        if self._thread is not None:
            self._thread.close()

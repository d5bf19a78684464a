"""The lease of a run's coordinator, which the workers check while they wait.

The lease is that of rank 0 in the run ``NAME.coordinator`` (``smbox.join``), whose only member
is the coordinator.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from smbox import Member, join
from smbox.errors import RegionFreedError, RegionNotFoundError, WorkerLostError
from smbox.roster import Roster, regions_of

__all__ = ["CoordinatorLease", "CoordinatorWatch", "has_ended"]


def _run_of(name: str) -> str:
    return f"{name}.coordinator"


class CoordinatorLease:
    """The coordinator's lease, renewed until ``release``.

    Args:
        box: connection to the memory.
        name: name of the run.
        lease_s: seconds without renewal after which workers count the coordinator as dead.

    Raises:
        ConfigError: the lease is too short to be renewed in time.
        RankTakenError: another living process coordinates a run of this name.
    """

    def __init__(self, box: Any, name: str, lease_s: float) -> None:
        run = _run_of(name)
        self._home = box.home_of(run)
        self._member: Member = join(box, run, rank=0, expected=1, lease_s=lease_s)
        self._regions = regions_of(run)

    def release(self) -> None:
        """Release the lease and free its regions. Idempotent."""
        self._member.leave()
        for region in self._regions:
            with suppress(RegionFreedError, RegionNotFoundError):
                self._home.free(region)


class CoordinatorWatch:
    """A worker's checks that the coordinator is alive.

    Args:
        box: the worker's own connection to the memory.
        name: name of the run.

    Raises:
        RegionNotFoundError: the run has ended.
    """

    def __init__(self, box: Any, name: str) -> None:
        run = _run_of(name)
        self._roster = Roster(box.home_of(run), run, must_exist=True)

    @property
    def poll_s(self) -> float:
        """Seconds between two checks."""
        return self._roster.poll_s(0)

    def lost(self) -> WorkerLostError | None:
        """Return the error if the coordinator died or left without ending the run, else None.

        Raises:
            RegionFreedError: the run has ended.
        """
        view = self._roster.watch(0)
        if not view.is_free(0):
            return None
        found = view.of(0)
        how = "left without ending the run" if view.has_left(0) else "died"
        return WorkerLostError(
            f"the coordinator {how}: start another run under another name",
            host=found.host,
            pid=found.pid,
        )


def has_ended(box: Any, name: str) -> bool:
    """Return whether a run has ended: x, which is created after the lease, has outlived it."""
    try:
        box.attach(f"{name}.x", timeout_s=None)
    except RegionNotFoundError:
        return False
    try:
        CoordinatorWatch(box, name)
    except (RegionFreedError, RegionNotFoundError):
        return True
    return False

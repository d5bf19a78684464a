"""The stages of a pipeline as one of them sees them, and waits that end if a stage dies.

A stage is a member of the run (``smbox.join``) whose rank is the stage's number. It is lost if
it was seen alive, or is known by its offer or answer, and has died since. Places that a run
which was killed has left are not of this run: while a pipeline is built, only a stage counts
whose process was alive on this host at a look, or whose lease was taken or renewed since the
first look.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from smbox import Box, Counter, Region
from smbox.deadline import left_s
from smbox.errors import ConfigError, RegionNotFoundError, RequestTimeoutError, WorkerLostError
from smbox.lease import EXPIRED
from smbox.roster import LEASE, View
from smbox_torch.pipeline.end import End, How
from smbox_torch.workers.team import JoinedTeam

__all__ = ["Stages"]

PRESENT_S: Final = 0.02
"""Between two looks for a stage that has not come yet."""

BUILDING_S: Final = 0.25
"""Between two looks whether all stages are there, while a pipeline is built."""

TOLD: Final[dict[How, str]] = {
    "left": "has left the pipeline",
    "failed": "failed, and its own error says why",
    "died": "died",
}


class Stages:
    """Waits for other stages.

    Args:
        box: the memory.
        team: this stage's place among the stages.
        count: how many there are.
        timeout_s: until a stage that does not come is given up, in seconds.

    Raises:
        ConfigError: this process has another place than that of a stage.

    Attributes:
        stage: number of this one.
        waited_s: how long this stage stood still for others, in seconds.
    """

    def __init__(self, box: Box, team: JoinedTeam, count: int, timeout_s: float) -> None:
        if team.rank >= count:
            raise ConfigError("all stages are taken", stages=count)
        self.stage = team.rank
        self.waited_s = 0.0
        self._box = box
        self._team = team
        self._count = count
        self._timeout_s = timeout_s
        self._known: dict[int, int] = {}
        self._came: dict[int, int] = {}
        self._first = team.member.look()
        self._note(self._first)
        self._is_building = True

    def generation(self, stage: int) -> int:
        """Return how often a stage's place was taken: no other process has had this number."""
        return self._team.member.seen.generation(stage)

    def know(self, stage: int, generation: int) -> None:
        """From now on, count a stage as lost whose place has another generation, or is free."""
        self._known[stage] = generation

    def know_all(self) -> None:
        """Know all stages as they are now; those that had agreed are there."""
        view = self._team.member.look()
        for stage in range(self._count):
            self._known.setdefault(stage, view.generation(stage))
        self._is_building = False

    def is_there(self, stage: int) -> bool:
        """Tell whether a living process has a stage's place now."""
        return not self._team.member.look().is_free(stage)

    def offered(self, stage: int, name: Callable[[int], str]) -> tuple[int, Region]:
        """Wait for a region that a stage creates while the pipeline is built.

        Args:
            stage: who creates it.
            name: of the region, by the generation of that stage's place.

        Returns:
            That generation, and the region.

        Raises:
            WorkerLostError: a stage that had come died; the error names it.
            RequestTimeoutError: it was not created in time; the error names the stage.
        """
        found: list[tuple[int, Region]] = []

        def look(limit_s: float) -> bool:
            view = self._team.member.look()
            has_refused = view.has_left(stage)  # perhaps, and left what it offers
            if view.is_free(stage) and not has_refused:
                time.sleep(min(limit_s, PRESENT_S))
                return False
            generation = self.generation(stage)
            region = self._find(name(generation), limit_s)
            found.extend([(generation, region)] if region else [])
            return region is not None

        self._wait(stage, look)
        return found[0]

    def attached(self, name: str, stage: int) -> Region:
        """Wait for a region that a stage creates; raises as ``reached``."""
        found: list[Region] = []

        def look(limit_s: float) -> bool:
            region = self._find(name, limit_s)
            found.extend([region] if region else [])
            return region is not None

        self._wait(stage, look)
        return found[0]

    def reached(self, counter: Counter, at_least: int, stage: int) -> int:
        """Return a counter's value once it is at least so much: a stage raises it.

        Raises:
            WorkerLostError: a stage died, or this one has left; the error names it.
            RequestTimeoutError: it lives and does not come.
            RegionFreedError: the counter is gone.
        """
        found: list[int] = []

        def look(limit_s: float) -> bool:
            try:
                found.append(counter.wait(at_least, timeout_s=limit_s))
            except RequestTimeoutError:
                return False
            return True

        self._wait(stage, look)
        return found[0]

    def lost(self, stage: int, otherwise: End) -> WorkerLostError:
        """Return the error for a stage whose regions are gone: it names who died first."""
        return self._lost(stage) or self.error(otherwise)

    def error(self, end: End, why: str = "") -> WorkerLostError:
        """Return the error for the end of a stage."""
        told = f"stage {end.stage} {TOLD[end.how]}"
        if end.stage == self.stage:
            told = f"the others took stage {end.stage}, this one, for dead: was it stopped?"
        found = self._team.member.seen.of(end.stage)
        return WorkerLostError(
            f"{told}{why and f': {why}'}; the pipeline cannot go on without it: start all"
            " stages again, from a checkpoint",
            stage=end.stage,
            how=end.how,
            host=found.host,
            pid=found.pid,
        )

    def is_gone(self, stage: int) -> bool:
        """Tell whether a stage died or left."""
        return self._verdict(self._team.member.look(), stage) is not None

    def _find(self, name: str, limit_s: float) -> Region | None:
        try:
            return self._box.attach(name, timeout_s=limit_s)
        except RegionNotFoundError:
            return None

    def _wait(self, stage: int, look: Callable[[float], bool]) -> None:
        """Look until something is there; after each look see whether the stages are."""
        began_s = time.monotonic()
        deadline_s = began_s + self._timeout_s
        look_s = self._team.look_s
        if self._is_building:
            look_s = min(look_s, BUILDING_S)
        try:
            while not look(min(left_s(deadline_s), look_s)):
                lost = self._lost(stage)
                if lost is not None and not look(0.0):  # it may have done its part before
                    raise lost
                if time.monotonic() >= deadline_s and not look(0.0):
                    raise self._late(stage)
        finally:
            self.waited_s += time.monotonic() - began_s

    def _lost(self, awaited: int) -> WorkerLostError | None:
        """Return the error if a stage that is needed has ended: who died comes first.

        All are needed until the pipeline is built; then the awaited one, and no dead one.
        """
        view = self._team.member.look()
        self._note(view)
        ends = {stage: self._verdict(view, stage) for stage in (*self._known, *self._came)}
        for stage, how in ends.items():
            if how == "died":
                return self.error(End(stage, how))
        for stage, how in ends.items():
            if how is not None and (self._is_building or stage == awaited):
                return self.error(End(stage, how))
        return None

    def _note(self, view: View) -> None:
        """Note who has come, of those that are not known; they may be dead by now."""
        for stage in set(range(self._count)).difference(self._known):
            # The mark of an observer is no sign of life.
            first, word = (each.words[stage, LEASE] | EXPIRED for each in (self._first, view))
            if word > first or _lives_here(view, stage):
                self._came[stage] = view.generation(stage)

    def _verdict(self, view: View, stage: int) -> How | None:
        """Say what became of a stage that is known, or has come; None if it lives."""
        is_known = stage in self._known
        wanted = self._known.get(stage, self._came.get(stage))
        if stage == self.stage or wanted is None:
            return None
        if view.generation(stage) != wanted:
            return "died" if is_known else None  # and was started again
        if not view.is_free(stage):
            return None
        if view.has_left(stage):
            return "left" if is_known else None  # it may have been of an earlier run
        return "died"

    def _late(self, stage: int) -> RequestTimeoutError:
        found = self._team.member.seen.of(stage)
        return RequestTimeoutError(
            f"stage {stage} does not come: is it alive, and does it do as many batches?",
            op="pipeline",
            timeout_s=self._timeout_s,
            stage=stage,
            host=found.host,
            pid=found.pid,
        )


def _lives_here(view: View, stage: int) -> bool:
    record = view.records[stage]
    return not view.is_free(stage) and record is not None and record.is_known_alive()

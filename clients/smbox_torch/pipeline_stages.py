"""The stages of a pipeline as one of them sees them, and waits that end if a stage dies.

A stage is a member of the run (``smbox.join``) whose rank is the stage's number. While a
pipeline is built, a stage that died may be started again, so others wait for its successor;
from ``know`` on it is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from smbox import Box, Counter, Region
from smbox.errors import (
    RegionFreedError,
    RegionNotFoundError,
    RequestTimeoutError,
    WorkerLostError,
)
from smbox.lease import LEFT, generations, numbers
from smbox.roster import LEASE, View
from smbox_torch.team import JoinedTeam

__all__ = ["Stages"]

PRESENT_S: Final = 0.02
"""Between two looks for a stage that has not come yet."""

OFFER_S: Final = 0.25
"""Between two looks whether the stage that is to offer something is still the same process."""


class Stages:
    """Waits for other stages.

    Args:
        box: the memory.
        team: this stage's place among the stages.
        count: how many there are.
        timeout_s: until a stage that does not come is given up, in seconds.

    Attributes:
        waited_s: how long this stage stood still for others, in seconds.
    """

    def __init__(self, box: Box, team: JoinedTeam, count: int, timeout_s: float) -> None:
        self.waited_s = 0.0
        self._box = box
        self._team = team
        self._count = count
        self._timeout_s = timeout_s
        self._known: dict[int, int] = {}

    def generation(self, stage: int) -> int:
        """Return how often a stage's place was taken: no other process has had this number."""
        return _generation(self._team.member.seen, stage)

    def know(self, stage: int, generation: int) -> None:
        """From now on, count a stage as lost whose place has another generation, or is free."""
        self._known[stage] = generation

    def know_all(self) -> None:
        """Know all stages as they are now; those that had agreed are there."""
        view = self._team.member.look()
        for stage in range(self._count):
            self._known.setdefault(stage, _generation(view, stage))

    def offered(self, stage: int, name: Callable[[int], str]) -> tuple[int, Region]:
        """Wait for a region that a stage creates while the pipeline is built.

        Args:
            stage: who creates it.
            name: of the region, by the generation of that stage's place.

        Returns:
            That generation, and the region.

        Raises:
            RequestTimeoutError: it was not created in time; the error names the stage.
        """
        found: list[tuple[int, Region]] = []

        def look(limit_s: float) -> bool:
            view = self._team.member.look()
            if view.is_free(stage) and not _has_left(
                view, stage
            ):  # it may have refused, and left
                time.sleep(min(limit_s, PRESENT_S))
                return False
            generation = self.generation(stage)
            region = self._find(name(generation), min(limit_s, OFFER_S))
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

    def reached(self, counter: Counter, at_least: int, stage: int) -> None:
        """Return once a counter that a stage raises is at least so much.

        Raises:
            WorkerLostError: a stage died, or this one has left; the error names it.
            RequestTimeoutError: it lives and does not come.
        """

        def look(limit_s: float) -> bool:
            try:
                counter.wait(at_least, timeout_s=limit_s)
            except RequestTimeoutError:
                return False
            return True

        try:
            self._wait(stage, look)
        except RegionFreedError as error:
            raise self.left(stage) from error

    def left(self, stage: int) -> WorkerLostError:
        """Return the error for a stage whose regions are gone: it names who died first."""
        return self._lost(stage) or self._error(stage, "has left the pipeline")

    def is_gone(self, stage: int) -> bool:
        """Tell whether a stage died or left."""
        return self._verdict(self._team.member.look(), stage) != ""

    def _find(self, name: str, limit_s: float) -> Region | None:
        try:
            return self._box.attach(name, timeout_s=limit_s)
        except RegionNotFoundError:
            return None

    def _wait(self, stage: int, look: Callable[[float], bool]) -> None:
        """Look until something is there; after each look see whether the stages are."""
        began_s = time.monotonic()
        deadline_s = began_s + self._timeout_s
        try:
            while not look(max(0.0, min(deadline_s - time.monotonic(), self._team.look_s))):
                lost = self._lost(stage)
                if lost is not None and not look(0.0):  # it may have done its part before
                    raise lost
                if time.monotonic() >= deadline_s and not look(0.0):
                    raise self._late(stage)
        finally:
            self.waited_s += time.monotonic() - began_s

    def _lost(self, awaited: int) -> WorkerLostError | None:
        """Return the error if a stage has died, or the awaited one has left: the dead first."""
        view = self._team.member.look()
        for stage in self._known:
            if self._verdict(view, stage) == "died":
                return self._error(stage, "died")
        verdict = self._verdict(view, awaited)
        return self._error(awaited, verdict) if verdict else None

    def _verdict(self, view: View, stage: int) -> str:
        """Say what became of a stage that is known; nothing if it lives."""
        if stage == self._team.rank or stage not in self._known:
            return ""
        if _generation(view, stage) != self._known[stage]:
            return "died"  # and was started again
        if not view.is_free(stage):
            return ""
        return "has left the pipeline" if _has_left(view, stage) else "died"

    def _error(self, stage: int, verdict: str) -> WorkerLostError:
        return WorkerLostError(
            f"stage {stage} {verdict}; the pipeline cannot go on without it: start all stages"
            " again, from a checkpoint",
            **self._described(stage),
        )

    def _late(self, stage: int) -> RequestTimeoutError:
        return RequestTimeoutError(
            f"stage {stage} does not come: is it alive, and does it do as many batches?",
            op="pipeline",
            timeout_s=self._timeout_s,
            **self._described(stage),
        )

    def _described(self, stage: int) -> dict[str, object]:
        found = self._team.member.seen.of(stage)
        return {"stage": stage, "host": found.host, "pid": found.pid}


def _generation(view: View, stage: int) -> int:
    return int(generations(view.words[stage : stage + 1, LEASE])[0])


def _has_left(view: View, stage: int) -> bool:
    return int(numbers(view.words[stage : stage + 1, LEASE])[0]) == LEFT

"""The stages of a pipeline as one stage sees them, and waits that end if a stage dies.

A stage is a member of the run (``smbox.join``) whose rank is the stage's number. It is lost if
it was seen alive, or its offer or answer was read, and it has died since. Members that an
earlier, killed run has left do not count. While a pipeline is built, a stage counts only if its
process was seen alive on this host, or its lease was taken or renewed after this stage joined.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from smbox import Box, Counter, Region
from smbox.deadline import left_s
from smbox.errors import (
    ConfigError,
    RegionNotFoundError,
    RequestTimeoutError,
    SmboxError,
    WorkerLostError,
)
from smbox.lease import EXPIRED
from smbox.member_record import MemberInfo
from smbox.roster import LEASE, View
from smbox_torch.pipeline.stage_exit import ExitKind, StageExit
from smbox_torch.workers.team import JoinedTeam

__all__ = ["Stages"]

Found = TypeVar("Found")

START_POLL_S: Final = 0.02
"""Between two checks for a stage that has not started yet."""

BUILDING_POLL_S: Final = 0.25
"""Between two checks that all stages are alive, while a pipeline is built."""

EXIT_TEXTS: Final[dict[ExitKind, str]] = {
    "left": "has left the pipeline",
    "failed": "failed; its own error says why",
    "died": "died",
}


class Stages:
    """Waits for other stages.

    Args:
        box: connection to the memory.
        team: this stage's membership of the run.
        count: number of stages.
        timeout_s: how long to wait for a stage, in seconds.

    Raises:
        ConfigError: the rank of this process is not the number of a stage.

    Attributes:
        stage: number of this stage.
        waited_s: time spent waiting for other stages, in seconds.
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
        self._expected: dict[int, int] = {}  # generation of each stage of this pipeline
        self._seen: dict[int, int] = {}  # generation of each other stage that has started
        self._holders: dict[int, MemberInfo] = {}  # the processes of both, for errors
        self._first_view = team.member.first_view
        self._note_started(team.member.read())
        self._is_building = True

    def generation(self, stage: int) -> int:
        """Return the generation of a stage's lease; every process has another one."""
        return self._team.member.seen.generation(stage)

    def expect(self, stage: int, generation: int) -> None:
        """From now on, count a stage as lost if it is free or has another generation."""
        self._expected[stage] = generation
        self._note_holders(self._team.member.read())

    def expect_all(self) -> None:
        """Expect all stages with their present generations, once all have agreed."""
        view = self._team.member.read()
        for stage in range(self._count):
            self._expected.setdefault(stage, view.generation(stage))
        self._note_holders(view)
        self._is_building = False

    def is_alive(self, stage: int) -> bool:
        """Return whether a living process has a stage now."""
        return not self._team.member.read().is_free(stage)

    def exists(self, name: str) -> bool:
        """Return whether a region exists; False also if the node does not answer at once."""
        return self._attach(name, 0.0) is not None

    def wait_for_offer(
        self, stage: int, name: Callable[[int], str | None]
    ) -> tuple[int, Region]:
        """Wait for a region that a stage creates while the pipeline is built.

        Args:
            stage: the stage that creates the region.
            name: function that returns the region's name for the generation of that stage, or
                None while the region must not be read.

        Returns:
            The generation of that stage, and the region.

        Raises:
            WorkerLostError: the named stage died after it had started.
            RequestTimeoutError: the named stage did not create the region in time.
        """

        def attempt(limit_s: float) -> tuple[int, Region] | None:
            view = self._team.member.read()
            # A stage that has left may have left a refusal as its offer.
            is_missing = view.is_free(stage) and not view.has_left(stage)
            is_missing |= stage in self._team.never_came()  # messages of earlier starts
            generation = self.generation(stage)
            offer = None if is_missing else name(generation)
            if offer is None:
                time.sleep(min(limit_s, START_POLL_S))
                return None
            region = self._attach(offer, limit_s)
            return None if region is None else (generation, region)

        return self._wait(stage, attempt)

    def wait_for_region(self, name: str, stage: int) -> Region:
        """Wait for a region that a stage creates; raises the errors of wait_for_offer."""
        return self._wait(stage, lambda limit_s: self._attach(name, limit_s))

    def wait_for_counter(self, counter: Counter, at_least: int, stage: int) -> int:
        """Return the value of a counter once a stage has raised it to ``at_least``.

        Raises:
            WorkerLostError: a stage died, or the awaited one has left; the error names it.
            RequestTimeoutError: the awaited stage is alive and did not raise it in time.
            RegionFreedError: the counter was freed.
        """

        def attempt(limit_s: float) -> int | None:
            try:
                return counter.wait(at_least, timeout_s=limit_s)
            except RequestTimeoutError:
                return None

        return self._wait(stage, attempt)

    def lost_error(self, stage: int, otherwise: StageExit) -> WorkerLostError:
        """Return the error for freed regions; it names a stage that died, if any."""
        return self._find_lost(stage) or self.exit_error(otherwise)

    def exit_error(self, exit_: StageExit, why: str = "") -> WorkerLostError:
        """Return the error for the exit of a stage."""
        text = f"stage {exit_.stage} {EXIT_TEXTS[exit_.how]}"
        if exit_.stage == self.stage:
            text = (
                f"the others counted stage {exit_.stage}, this one, as dead: was its process"
                " stopped?"
            )
        found = self._holders.get(exit_.stage) or self._team.member.seen.of(exit_.stage)
        return WorkerLostError(
            f"{text}{why and f': {why}'}; the pipeline cannot continue without it: start all"
            " stages again from a checkpoint",
            stage=exit_.stage,
            how=exit_.how,
            host=found.host,
            pid=found.pid,
        )

    def forget(self, stage: int) -> None:
        """Count a stage as not started: its place is that of an earlier run."""
        self._seen.pop(stage, None)

    def leave(self) -> View | None:
        """Leave the pipeline; return the places if all its stages have come and gone."""
        self._team.leave()
        with suppress(SmboxError):
            view = self._team.member.read()
            came = {*self._expected, *self._seen, self.stage}
            if len(came) == self._count and all(map(view.is_free, came)):
                return view
        return None

    def _attach(self, name: str, limit_s: float) -> Region | None:
        try:
            return self._box.attach(name, timeout_s=limit_s)
        except (RegionNotFoundError, RequestTimeoutError):
            return None

    def _wait(self, stage: int, attempt: Callable[[float], Found | None]) -> Found:
        """Call ``attempt`` until it finds a result; after each call check for lost stages."""
        began_s = time.monotonic()
        deadline_s = began_s + self._timeout_s
        poll_s = self._team.poll_s
        if self._is_building:
            poll_s = min(poll_s, BUILDING_POLL_S)
        try:
            while (found := attempt(min(left_s(deadline_s), poll_s))) is None:
                lost = self._find_lost(stage)
                if lost is not None or time.monotonic() >= deadline_s:
                    last = attempt(0.0)  # the stage may have acted before it died
                    if last is None:
                        raise lost or self._timeout_error(stage)
                    return last
            return found
        finally:
            self.waited_s += time.monotonic() - began_s

    def _find_lost(self, awaited: int) -> WorkerLostError | None:
        """Return the error if a needed stage has exited; stages that died come first.

        While the pipeline is built all stages are needed, later the awaited one. A stage that
        died is an error at any time. Of several, a stage whose process has ended is named: the
        lease of a process that runs may have expired because its host was busy.
        """
        exits = self._exits()
        died = [stage for stage, how in exits.items() if how == "died"]
        if died:
            return self.exit_error(StageExit(min(died, key=self._runs), "died"))
        for stage, how in exits.items():
            if how == "left" and (self._is_building or stage == awaited):
                return self.exit_error(StageExit(stage, how))
        return None

    def _runs(self, stage: int) -> bool:
        """Return whether the process of a stage is known to run, though its lease expired."""
        record = self._team.member.seen.records[stage]
        return record is not None and record.is_known_alive()

    def _exits(self) -> dict[int, ExitKind | None]:
        """Read how each stage that has started exited; None: it did not."""
        view = self._team.member.read()
        self._note_started(view)
        return {each: self._exit_kind(view, each) for each in (*self._expected, *self._seen)}

    def _note_started(self, view: View) -> None:
        """Note which other stages have started; they may have died since."""
        for stage in set(range(self._count)).difference(self._expected):
            # EXPIRED is set by observers: it does not show that the stage is alive.
            first, word = (
                each.words[stage, LEASE] | EXPIRED for each in (self._first_view, view)
            )
            if word > first or _is_alive_here(view, stage):
                self._seen[stage] = view.generation(stage)
        self._note_holders(view)

    def _note_holders(self, view: View) -> None:
        """Note the processes of the stages; that of a successor is not of this pipeline."""
        for stage, generation in {**self._seen, **self._expected}.items():
            if view.generation(stage) == generation:
                self._holders[stage] = view.of(stage)

    def _exit_kind(self, view: View, stage: int) -> ExitKind | None:
        """Return how a stage exited; None if it is alive or has not started."""
        is_expected = stage in self._expected
        generation = self._expected.get(stage, self._seen.get(stage))
        if stage == self.stage or generation is None:
            return None
        if view.generation(stage) != generation:
            return "died" if is_expected else None  # and was started again
        if not view.is_free(stage):
            return None
        if view.has_left(stage):
            return "left" if is_expected else None  # it may belong to an earlier run
        return "died"

    def _timeout_error(self, stage: int) -> RequestTimeoutError:
        found = self._team.member.seen.of(stage)
        return RequestTimeoutError(
            f"stage {stage} did not respond in time: is it alive, and does it compute as many"
            " batches?",
            op="pipeline",
            timeout_s=self._timeout_s,
            stage=stage,
            host=found.host,
            pid=found.pid,
        )


def _is_alive_here(view: View, stage: int) -> bool:
    record = view.records[stage]
    return not view.is_free(stage) and record is not None and record.is_known_alive()

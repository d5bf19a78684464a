"""Building a stage of a pipeline: its module, and its ends of the boundaries on both sides.

The order, at every stage: take the offer of the stage before, compute the shapes, make the ring
of gradients, offer, wait for the answer, make the ring of activations, answer. So the rings
that a stage sends through are there when it has agreed. A stage that cannot be built, for
whatever reason, tells both neighbours, who tell theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple

import torch

from smbox import Box
from smbox.errors import ConfigError, SmboxError
from smbox.roster import regions_of
from smbox_torch.pipeline.agreement import (
    Answer,
    Boundary,
    Offer,
    Plan,
    Refusal,
    free_stale,
    output_of,
)
from smbox_torch.pipeline.end import End
from smbox_torch.pipeline.given import micro_batch_of
from smbox_torch.pipeline.ring import Reader, Spec, Writer, free_ring
from smbox_torch.pipeline.stages import Stages
from smbox_torch.workers.joining import team_of
from smbox_torch.workers.team import JoinedTeam

__all__ = ["Assembly", "Ends", "Parts", "StageLike", "refuse_early"]

StageLike = torch.nn.Module | Callable[[], torch.nn.Module]
"""A stage, or what makes it in the process that computes it."""


class Ends(NamedTuple):
    """One boundary as a stage uses it.

    Attributes:
        reader: of what comes from the other stage.
        writer: of what goes to it.
        peer: the other stage.
    """

    reader: Reader
    writer: Writer
    peer: int


class Parts(NamedTuple):
    """A stage, ready to work.

    Attributes:
        module: what it computes.
        given: what comes in, micro-batch by micro-batch.
        before: boundary to the stage before; None: this is the first.
        behind: boundary to the next stage; None: this is the last.
    """

    module: torch.nn.Module
    given: Spec
    before: Ends | None
    behind: Ends | None

    @property
    def boundaries(self) -> list[Ends]:
        """Those that this stage has, one or two."""
        return [both for both in (self.before, self.behind) if both is not None]

    def end(self, box: Box, end: End, stages: Stages) -> None:
        """Tell both neighbours the end, then free the rings that they need no more."""
        for both in self.boundaries:
            both.writer.tell(end)
        for both in self.boundaries:
            free_ring(box, both.reader.name)
            if stages.is_gone(both.peer):  # and may have freed nothing
                free_ring(box, both.writer.name)


class Assembly:
    """Builds one stage together with the others.

    Args:
        box: the memory.
        name: of the pipeline.
        stages: the others.
        count: how many stages there are.
    """

    def __init__(self, box: Box, name: str, stages: Stages, count: int) -> None:
        self._box = box
        self._name = name
        self._stages = stages
        self._stage = stages.stage
        self._before: Boundary | None = None
        self._behind: Boundary | None = None
        if self._stage + 1 < count:
            free_stale(box, name, self._stage)
            self._behind = Boundary(box, name, self._stage, stages.generation(self._stage))
        self._made: list[Ends] = []
        self._is_told_before = self._stage == 0
        self._is_told_behind = self._behind is None
        self._has_offered = False

    def run(self, plan: Plan, stage: StageLike, example: torch.Tensor | None) -> Parts:
        """Build the stage.

        Args:
            plan: what all are told alike.
            stage: the module, or what makes it.
            example: a batch as the first stage is given it; others need none.

        Raises:
            ConfigError: a stage cannot take what it is given, was told something else, or
                has no module: the same error at all stages, and nothing is left.
            RequestTimeoutError: a stage did not come; nothing is left.
            WorkerLostError: a stage that had come died, left or failed; nothing is left.
        """
        with ExitStack() as undo:
            try:
                parts = self._parts(plan, stage, example, undo)
                self._stages.know_all()
            except BaseException as error:
                self.refuse(error, late=isinstance(error, ConfigError))
                raise
            undo.pop_all()
        return parts

    def refuse(self, error: BaseException, *, late: bool) -> None:
        """Tell both neighbours, as far as they are there, why there is no pipeline.

        Args:
            error: that ended this stage.
            late: tell the next stage, too, if it comes later.
        """
        with suppress(SmboxError):
            end, refusal = End.behind(error, self._stage), Refusal.of(error, self._stage)
            for both in self._made:
                both.writer.tell(end)
            if self._behind is not None and not self._is_told_behind:
                is_coming = late and not self._has_offered
                if is_coming or self._stages.is_there(self._stage + 1):
                    self._behind.refuse_behind(refusal)
                else:
                    self._behind.forget()
            if not self._is_told_before:
                self._refuse_before(refusal)

    def _refuse_before(self, refusal: Refusal) -> None:
        first = self._stage - 1
        is_there = self._stages.is_there(first)
        generation = self._stages.generation(first)
        before = self._before or Boundary(self._box, self._name, first, generation)
        if is_there:
            before.refuse_before(refusal)
        else:
            before.forget()

    def _parts(
        self, plan: Plan, stage: StageLike, example: torch.Tensor | None, undo: ExitStack
    ) -> Parts:
        given = self._taken(plan) if self._stage else None
        try:
            given = given or micro_batch_of(example, plan.micro_batches)
            module = _module(stage)
            gives = output_of(module, given, is_last=self._behind is None)
        except ConfigError as error:
            raise ConfigError(f"stage {self._stage}: {error}") from error
        before = behind = None
        if self._behind is not None:
            reader = self._reader(self._behind.backward, gives, self._stage + 1, plan, undo)
            self._settle(self._behind, Offer(plan, gives.shape, gives.dtype))
            behind = self._ends(reader, self._behind.forward)
        if self._before is not None:
            reader = self._reader(self._before.forward, given, self._stage - 1, plan, undo)
            before = self._ends(reader, self._before.backward)
            self._before.answer(Answer(self._stages.generation(self._stage)))
            self._is_told_before = True
        return Parts(module, given, before, behind)

    def _taken(self, plan: Plan) -> Spec:
        """Wait for what the stage before offers."""
        self._before, offer = Boundary.await_offer(
            self._box, self._name, self._stage - 1, self._stages
        )
        if isinstance(offer, Refusal):
            self._before.forget()
            self._is_told_before = True
            raise offer.error(self._stages)
        if offer.plan != plan:
            raise ConfigError(
                f"stage {self._stage}: it was told {plan}, and stage {self._stage - 1}"
                f" {offer.plan}"
            )
        return offer.spec

    def _settle(self, behind: Boundary, offer: Offer) -> None:
        """Offer what this stage gives, and wait until all behind it agree."""
        self._has_offered = True
        behind.offer(offer)
        try:
            refusal = behind.answered(self._stages)
        finally:
            behind.forget()
        self._is_told_behind = True
        if refusal is not None:
            raise refusal.error(self._stages)

    def _reader(self, name: str, spec: Spec, peer: int, plan: Plan, undo: ExitStack) -> Reader:
        undo.callback(free_ring, self._box, name)
        return Reader(self._box, name, spec, plan.slots, self._stages, peer)

    def _ends(self, reader: Reader, name: str) -> Ends:
        """Join a reader with a writer of the same tensors."""
        region = self._stages.attached(name, reader.peer)
        both = Ends(reader, Writer(self._box, region, self._stages, reader), reader.peer)
        self._made.append(both)
        return both


def refuse_early(
    box: Box, name: str, count: int, stage: int | None, error: ConfigError
) -> None:
    """Tell the stages that wait for this one already that its arguments are impossible.

    It takes its place for that, and nothing is made where nobody has come.
    """
    with suppress(SmboxError):
        if regions_of(name)[0] not in {info.name for info in box.regions()}:
            return
        team = team_of(box, name, count, rank=stage)
        assert isinstance(team, JoinedTeam)
        try:
            told = ConfigError(f"stage {team.rank}: {error}")
            stages = Stages(box, team, count, 0.0)
            Assembly(box, name, stages, count).refuse(told, late=False)
        finally:
            team.leave()


def _module(stage: StageLike) -> torch.nn.Module:
    """Return the module of a stage.

    Raises:
        ConfigError: it is none, or cannot be made.
    """
    if isinstance(stage, torch.nn.Module):
        return stage
    try:
        module = stage()
    except Exception as error:
        raise ConfigError(f"no module: {type(error).__name__}: {error}") from error
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(f"a stage is a torch.nn.Module, not {type(module).__name__}")
    return module

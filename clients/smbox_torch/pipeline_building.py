"""Building a stage of a pipeline: its module, and its ends of the boundaries on both sides.

The order, at every stage: take the offer of the stage before, compute the shapes, make the ring
of gradients, offer, wait for the answer, make the ring of activations, answer. So the rings
that a stage sends through are there when it has agreed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple

import torch

from smbox import Box
from smbox.errors import ConfigError, SmboxError
from smbox_torch.pipeline_agreement import Answer, Boundary, Offer, Plan, free_stale, output_of
from smbox_torch.pipeline_given import micro_batch_of
from smbox_torch.pipeline_ring import Reader, Spec, Writer, free_ring
from smbox_torch.pipeline_stages import Stages

__all__ = ["Assembly", "Ends", "Parts", "StageLike"]

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


class Assembly:
    """Builds one stage together with the others.

    Args:
        box: the memory.
        name: of the pipeline.
        stages: the others.
        stage: number of this one.
        plan: what all are told alike.
    """

    def __init__(self, box: Box, name: str, stages: Stages, stage: int, plan: Plan) -> None:
        self._box = box
        self._name = name
        self._stages = stages
        self._stage = stage
        self._plan = plan
        self._before: Boundary | None = None
        self._behind: Boundary | None = None
        self._may_answer = False
        self._may_offer = stage + 1 < plan.stages
        if self._may_offer:
            free_stale(box, name, stage)
            self._behind = Boundary(box, name, stage, stages.generation(stage))

    def run(self, stage: StageLike, example: torch.Tensor | None) -> Parts:
        """Build the stage.

        Args:
            stage: the module, or what makes it.
            example: a batch as the first stage is given it; others need none.

        Raises:
            ConfigError: a stage cannot take what it is given, was told something else, or
                has no module: the same error at all stages, and nothing is left.
            RequestTimeoutError: a stage did not come; nothing is left.
            WorkerLostError: a stage that had agreed died or left; nothing is left.
        """
        with ExitStack() as undo:
            try:
                parts = self._parts(stage, example, undo)
            except SmboxError as error:
                self._refuse(error)
                raise
            undo.pop_all()
        self._stages.know_all()
        return parts

    def _parts(self, stage: StageLike, example: torch.Tensor | None, undo: ExitStack) -> Parts:
        given = self._taken() if self._stage else None
        try:
            given = given or micro_batch_of(example, self._plan.micro_batches)
            module = _module(stage)
            gives = output_of(module, given, is_last=self._behind is None)
        except ConfigError as error:
            raise ConfigError(f"stage {self._stage}: {error}") from error
        before = behind = None
        if self._behind is not None:
            reader = self._reader(self._behind.backward, gives, self._stage + 1, undo)
            self._settle(self._behind, gives)
            behind = self._ends(reader, self._behind.forward)
        if self._before is not None:
            reader = self._reader(self._before.forward, given, self._stage - 1, undo)
            before = self._ends(reader, self._before.backward)
            self._may_answer = False
            self._before.answer(self._answer())
        return Parts(module, given, before, behind)

    def _taken(self) -> Spec:
        """Wait for what the stage before offers."""
        self._before, offer = Boundary.await_offer(
            self._box, self._name, self._stage - 1, self._stages
        )
        if offer.refusal:
            self._before.forget()
            raise ConfigError(offer.refusal)
        self._may_answer = True
        if offer.plan != self._plan:
            raise ConfigError(
                f"stage {self._stage}: it was told {self._plan}, and stage {self._stage - 1}"
                f" {offer.plan}"
            )
        return offer.spec

    def _settle(self, behind: Boundary, gives: Spec) -> None:
        """Offer what this stage gives, and wait until all behind it agree."""
        self._may_offer = False
        behind.offer(Offer(self._plan, gives.shape, gives.dtype))
        try:
            refusal = behind.answered(self._stages)
        finally:
            behind.forget()
        if refusal:
            raise ConfigError(refusal)

    def _reader(self, name: str, spec: Spec, peer: int, undo: ExitStack) -> Reader:
        undo.callback(free_ring, self._box, name)
        return Reader(self._box, name, spec, self._plan.slots, self._stages, peer)

    def _ends(self, reader: Reader, name: str) -> Ends:
        """Join a reader with a writer of the same tensors."""
        region = self._stages.attached(name, reader.peer)
        writer = Writer(self._box, region, reader.spec, self._stages, reader.peer)
        return Ends(reader, writer, reader.peer)

    def _refuse(self, error: SmboxError) -> None:
        """Tell both neighbours, as far as they wait for this stage, why it does not work."""
        known = isinstance(error, ConfigError)
        refusal = error.message if known else f"stage {self._stage}: {error}"
        with suppress(SmboxError):
            if self._may_offer and self._behind is not None:
                self._behind.offer(Offer(self._plan, refusal=refusal))
            if self._may_answer and self._before is not None:
                self._before.answer(self._answer(refusal))

    def _answer(self, refusal: str = "") -> Answer:
        return Answer(self._stages.generation(self._stage), refusal)


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

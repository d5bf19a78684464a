"""Building a stage of a pipeline: its module, and its rings to both neighbours.

Every stage does this, in this order: wait for the offer of the upstream stage, compute shape
and dtype of the output, make the ring of gradients, make an offer to the downstream stage, wait
for its answer, make the ring of activations, answer the upstream stage. So a stage that has
answered can send to both neighbours. A stage that cannot be built, for whatever reason,
notifies both neighbours, which notify theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

import torch

from smbox import Box
from smbox.errors import ConfigError, SmboxError, WorkerLostError
from smbox.roster import regions_of
from smbox_torch.pipeline.agreement import (
    Answer,
    Boundary,
    Offer,
    Refusal,
    Settings,
    free_boundaries,
    output_of,
)
from smbox_torch.pipeline.arguments import StageLike, micro_batch_of, module_of
from smbox_torch.pipeline.ring import Reader, TensorSpec, Writer, free_ring
from smbox_torch.pipeline.stage_exit import StageExit
from smbox_torch.pipeline.stages import Stages
from smbox_torch.workers.joining import team_of
from smbox_torch.workers.team import JoinedTeam

__all__ = ["BuiltStage", "Link", "StageBuilder", "StageLike", "leave", "refuse_early"]


class Link(NamedTuple):
    """The two rings between a stage and one of its neighbours.

    Attributes:
        reader: receives from the neighbour.
        writer: sends to the neighbour.
    """

    reader: Reader
    writer: Writer


class BuiltStage(NamedTuple):
    """A stage that is ready to compute.

    Attributes:
        module: the module of the stage.
        input_spec: shape and dtype of the largest micro-batch that comes in.
        upstream: link to the previous stage; None at the first stage.
        downstream: link to the next stage; None at the last stage.
    """

    module: torch.nn.Module
    input_spec: TensorSpec
    upstream: Link | None
    downstream: Link | None

    @property
    def links(self) -> list[Link]:
        """The links of this stage, at most two."""
        return [link for link in (self.upstream, self.downstream) if link is not None]

    def shut_down(self, box: Box, exit_: StageExit) -> None:
        """Report an exit to both neighbours, then free the rings that this stage has made."""
        for link in self.links:
            link.writer.send_exit(exit_)
        for link in self.links:
            free_ring(box, link.reader.name)


class StageBuilder:
    """Builds one stage, in agreement with the others.

    Args:
        box: connection to the memory.
        name: name of the pipeline.
        stages: waits for the other stages.
        count: number of stages.
    """

    def __init__(self, box: Box, name: str, stages: Stages, count: int) -> None:
        self._box = box
        self._name = name
        self._stages = stages
        self._stage = stages.stage
        self._upstream: Boundary | None = None
        self._downstream: Boundary | None = None
        if self._stage + 1 < count:
            generation = stages.generation(self._stage)
            # The next stage may have refused already, in this generation.
            free_boundaries(
                box, name, lambda first, old: first == self._stage and old != generation
            )
            self._downstream = Boundary(box, name, self._stage, generation)
        self._readers: list[Reader] = []
        self._links: list[Link] = []
        self._upstream_settled = self._stage == 0
        self._downstream_settled = self._downstream is None
        self._has_offered = False

    def build(
        self, settings: Settings, stage: StageLike, example: torch.Tensor | None
    ) -> BuiltStage:
        """Build the stage.

        Args:
            settings: must be the same at all stages.
            stage: the module, or a function that returns it.
            example: a batch of the largest size; only the first stage needs it.

        Raises:
            ConfigError: a stage cannot process its input, has other settings or has no module.
                All stages raise the same error; no region is left.
            RequestTimeoutError: a stage did not start in time; no region is left.
            WorkerLostError: a stage died, left or failed after it had started; no region is
                left.
        """
        with ExitStack() as undo:
            try:
                with self._naming_cause():
                    built = self._build(settings, stage, example, undo)
                    self._stages.expect_all()
            except BaseException as error:
                self.refuse(error, late=isinstance(error, ConfigError))
                raise
            undo.pop_all()
        return built

    @contextmanager
    def _naming_cause(self) -> Iterator[None]:
        """Raise what a neighbour reported before it left, rather than that it left."""
        try:
            yield
        except WorkerLostError as error:
            cause = self._reported_error() if error.facts.get("how") == "left" else None
            if cause is None:
                raise
            raise cause from error

    def _reported_error(self) -> SmboxError | None:
        refusal = None if self._upstream is None else self._upstream.refusal()
        if refusal is not None:
            return refusal.error(self._stages)
        exits = filter(None, (reader.reported_exit() for reader in self._readers))
        return next(map(self._stages.exit_error, exits), None)

    def refuse(self, error: BaseException, *, late: bool) -> None:
        """Tell the neighbours that are alive why the pipeline cannot be built.

        Args:
            error: the error that ended this stage.
            late: leave the message for the downstream stage even if it has not started yet.
        """
        with suppress(SmboxError):
            exit_ = StageExit.from_error(error, self._stage)
            refusal = Refusal.of(error, self._stage)
            for link in self._links:
                link.writer.send_exit(exit_)
            if self._downstream is not None and not self._downstream_settled:
                is_alive = self._stages.is_alive(self._stage + 1)
                if is_alive or (late and not self._has_offered):
                    self._downstream.refuse_downstream(refusal)
                    if not is_alive:
                        self._stages.forget(self._stage + 1)
                else:
                    self._downstream.free()
            if not self._upstream_settled:
                self._refuse_upstream(refusal)

    def _refuse_upstream(self, refusal: Refusal) -> None:
        first = self._stage - 1
        is_alive = self._stages.is_alive(first)
        generation = self._stages.generation(first)
        upstream = self._upstream or Boundary(self._box, self._name, first, generation)
        if is_alive:
            upstream.refuse_upstream(refusal)
        else:
            upstream.free()

    def _build(
        self,
        settings: Settings,
        stage: StageLike,
        example: torch.Tensor | None,
        undo: ExitStack,
    ) -> BuiltStage:
        taken = self._wait_for_offer(settings) if self._stage else None
        try:
            taken = taken or micro_batch_of(example, settings.micro_batches)
            module = module_of(stage)
            output = output_of(module, taken, is_last=self._downstream is None)
        except ConfigError as error:
            raise ConfigError(f"stage {self._stage}: {error}") from error
        upstream = downstream = None
        if self._downstream is not None:
            name, peer = self._downstream.backward, self._stage + 1
            reader = self._reader(name, output, peer, settings, undo)
            self._settle(self._downstream, Offer(settings, output.shape, output.dtype))
            downstream = self._link(reader, self._downstream.forward)
        if self._upstream is not None:
            name, peer = self._upstream.forward, self._stage - 1
            reader = self._reader(name, taken, peer, settings, undo)
            upstream = self._link(reader, self._upstream.backward)
            self._upstream.answer(Answer(self._stages.generation(self._stage)))
            self._upstream_settled = True
            refusal = self._upstream.refusal()
            if refusal is not None:  # the upstream stage will not read the answer
                self._upstream.free()
                raise refusal.error(self._stages)
        return BuiltStage(module, taken, upstream, downstream)

    def _wait_for_offer(self, settings: Settings) -> TensorSpec:
        """Wait for the offer of the upstream stage; return the shape and dtype offered."""
        self._upstream, offer = Boundary.await_offer(
            self._box, self._name, self._stage - 1, self._stages
        )
        if isinstance(offer, Refusal):
            self._upstream.free()
            self._upstream_settled = True
            raise offer.error(self._stages)
        if offer.settings != settings:
            raise ConfigError(
                f"stage {self._stage} has other settings than stage {self._stage - 1}:"
                f" {settings} and {offer.settings}"
            )
        return offer.spec

    def _settle(self, downstream: Boundary, offer: Offer) -> None:
        """Offer this stage's output, and wait until all downstream stages agree."""
        self._has_offered = True
        downstream.offer(offer)
        refusal = downstream.await_answer(self._stages)
        downstream.free()  # after an error, refuse must find an answer that nobody has read
        self._downstream_settled = True
        if refusal is not None:
            raise refusal.error(self._stages)

    def _reader(
        self, name: str, spec: TensorSpec, peer: int, settings: Settings, undo: ExitStack
    ) -> Reader:
        undo.callback(free_ring, self._box, name)
        self._readers.append(Reader(self._box, name, spec, settings.slots, self._stages, peer))
        return self._readers[-1]

    def _link(self, reader: Reader, name: str) -> Link:
        """Join a reader with a writer to the same neighbour; ``name`` is the writer's ring."""
        region = self._stages.wait_for_region(name, reader.peer)
        link = Link(reader, Writer(self._box, region, self._stages, reader))
        self._links.append(link)
        return link


def refuse_early(
    box: Box, name: str, count: int, stage: int | None, error: ConfigError
) -> None:
    """Tell the stages that already wait for this one that its arguments are invalid.

    It joins the run for that. If no stage has started, it creates nothing.
    """
    with suppress(SmboxError):
        if regions_of(name)[0] not in {info.name for info in box.regions()}:
            return
        team = team_of(box, name, count, rank=stage)
        assert isinstance(team, JoinedTeam)
        try:
            refusal = ConfigError(f"stage {team.rank}: {error}")
            stages = Stages(box, team, count, 0.0)
            StageBuilder(box, name, stages, count).refuse(refusal, late=False)
            leave(box, name, stages)
        finally:
            team.leave()


def leave(box: Box, name: str, stages: Stages) -> None:
    """Leave the pipeline; the last stage that leaves frees what is left of it.

    A stage that died has freed nothing, and nobody reads the messages of a stage that the
    others count as dead.
    """
    ended = stages.leave()
    if ended is not None:
        with suppress(SmboxError):
            last = len(ended.words) - 1  # a region of another program may name a higher number
            free_boundaries(
                box, name, lambda stage, old: stage <= last and old <= ended.generation(stage)
            )

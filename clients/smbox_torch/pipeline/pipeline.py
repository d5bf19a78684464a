"""Pipeline: a model whose stages lie in different processes, on micro-batches of one batch.

Synchronous pipeline parallelism (GPipe, Huang et al. 2019, arXiv:1811.06965): a batch of n rows
is cut into m micro-batches x_1 .. x_m of n_i rows; stage s computes f_s of each. With the loss
l, a mean over rows, every stage's parameters w_s get the gradient of the whole batch:

    L = sum_i n_i / n * l(f_S(.. f_1(x_i)), y_i);    g_s = dL / dw_s,  summed in the order of i

as one process gets it that takes the micro-batches in turn, bit for bit: each stage sums in
that order, by GPipe's schedule and by 1F1B (``pipeline_schedule``). The optimizer is the user's
own, one for each stage. Activations and gradients go through rings of slots in the memory box
(``ring.py``): a put with a signal, and a credit that comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import torch

from smbox import Box
from smbox.errors import ConfigError, SmboxError, StepMismatchError
from smbox_torch.boxes import check_box
from smbox_torch.checks import lease, seconds
from smbox_torch.pipeline.batch import Batch, Loss
from smbox_torch.pipeline.building import Assembly, StageLike, refuse_early
from smbox_torch.pipeline.end import End
from smbox_torch.pipeline.given import (
    check_inputs,
    check_loss,
    check_stages,
    check_targets,
    check_untied,
    plan_of,
)
from smbox_torch.pipeline.schedule import SCHEDULES
from smbox_torch.pipeline.stages import Stages
from smbox_torch.workers.joining import LEASE_S, team_of
from smbox_torch.workers.team import JoinedTeam

__all__ = ["Pipeline", "PipelineStats"]

TIMEOUT_S: Final = 300.0
"""A stage may be busy elsewhere, evaluating or saving; one that died is noticed at once."""


@dataclass(frozen=True)
class PipelineStats:
    """What one stage counted since it was built.

    Attributes:
        batches: that it was trained with.
        held_max: most micro-batches that it kept for their backward at once.
        nbytes: of activations and gradients that it sent and received.
        waited_ms: how long it stood still for other stages, in milliseconds.
    """

    batches: int
    held_max: int
    nbytes: int
    waited_ms: float


class Pipeline:
    """One stage of a model that several processes compute together.

    All processes make it with the same arguments but ``stage``, and call the same methods for
    the same batches. An error inside a batch ends the pipeline at every stage: no parameter was
    changed by that batch at a stage that raises, and gradients are undefined.

    Args:
        box: the memory; all of the pipeline lies on one of its nodes.
        name: of the pipeline: prefix of its regions, and the run that its stages join.
        stages: for each stage a module, or a function that makes it, which only the process
            of that stage calls. A module takes and returns one tensor whose axis 0 is the
            batch; between stages it is of a floating-point dtype.
        example: a batch as large as any will be, for shape and dtype; at the first stage.
        loss: of outputs and targets, a mean over rows; at the last stage, for training.
        stage: number of this process; None: the launcher's rank, or the lowest that is free.
        micro_batches: into how many a batch is cut; one of fewer rows into as many as rows.
        schedule: "1f1b" or "gpipe".
        slots: activations, and gradients, that may be under way at each boundary.
        timeout_s: until a living stage that does not come is given up, in seconds.
        lease_s: seconds without renewal after which a stage counts as dead.

    Attributes:
        stage: number of this process.
        module: what it computes; its parameters are for this process's optimizer.

    Raises:
        TypeError, LimitError, ConfigError: impossible arguments, or stages that do not fit: one
            cannot take what the one before gives, was told something else, or shares a
            parameter with another; at all stages that have come, and nothing is left.
        RankTakenError: a living process has this stage; nothing is left.
        RequestTimeoutError: a stage did not come; nothing is left.
        WorkerLostError: a stage that had come died, failed or left; nothing is left.
    """

    def __init__(
        self,
        box: Box,
        name: str,
        stages: Sequence[StageLike],
        *,
        example: torch.Tensor | None = None,
        loss: Loss | None = None,
        stage: int | None = None,
        micro_batches: int = 4,
        schedule: str = "1f1b",
        slots: int = 2,
        timeout_s: float = TIMEOUT_S,
        lease_s: float = LEASE_S,
    ) -> None:
        check_box(box)
        count, number = check_stages(name, stages, stage)
        self._box = box.home_of(name)
        try:
            plan = plan_of(count, micro_batches, schedule, slots)
            timeout_s, lease_s = seconds("timeout_s", timeout_s), lease(lease_s)
            check_loss(loss)
            check_untied(stages)
        except ConfigError as error:
            refuse_early(self._box, name, count, number, error)
            raise
        team = team_of(self._box, name, count, rank=number, lease_s=lease_s)
        assert isinstance(team, JoinedTeam)
        try:
            self._stages = Stages(self._box, team, count, timeout_s)
            self.stage = self._stages.stage
            assembly = Assembly(self._box, name, self._stages, count)
            self._parts = assembly.run(plan, stages[self.stage], example)
        except BaseException:
            team.leave()
            raise
        self.module = self._parts.module
        self._team = team
        self._plan, self._loss = plan, loss
        self._number = self._trained = self._held_max = 0
        self._is_closed = False
        self._box.before_close(self.close)

    @property
    def is_first(self) -> bool:
        """Whether this stage takes the inputs."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage takes the targets, and returns outputs."""
        return self.stage == self._plan.stages - 1

    def forward_backward(
        self, inputs: torch.Tensor | None = None, targets: torch.Tensor | None = None
    ) -> float:
        """Compute loss and gradients of a batch; gradients are added to ``parameter.grad``.

        Args:
            inputs: the batch; the first stage uses it.
            targets: one for each row; the last stage uses it.

        Returns:
            The loss of the batch, the same at every stage.

        Raises:
            LayoutMismatchError: inputs or targets are missing or do not fit; nothing moved.
                Targets for another number of rows than the first stage's: the pipeline ended.
            ConfigError: closed, in ``torch.inference_mode``, or no ``loss`` at the last stage;
                nothing moved. The loss wants no gradient: the pipeline ended.
            WorkerLostError: a stage died, failed or left, and is named; the pipeline ended.
            RequestTimeoutError: a living stage did not come; the pipeline ended.
            StepMismatchError: the stage before did something else; the pipeline ended.
            LeaseLostError: another process has this stage; the pipeline ended.
        """
        self._check_ready(inputs)
        if torch.is_inference_mode_enabled():
            raise ConfigError(
                "torch.inference_mode() computes no gradients: train outside of it, and"
                " evaluate by forward()"
            )
        if self.is_last:
            if self._loss is None:
                raise ConfigError("the last stage needs loss= to train")
            known = len(inputs) if self.is_first and inputs is not None else None
            check_targets(targets, known)
        with self._ending_on_error(), torch.enable_grad():
            batch = self._begin(inputs, targets, is_training=True)
            tasks = SCHEDULES[self._plan.schedule](
                self.stage, self._plan.stages, len(batch.sizes)
            )
            batch.train(tasks, targets if self.is_last else None, self._loss)
            self._trained += 1
            self._held_max = max(self._held_max, batch.held_max)
            self._team.tell(self._team.begins_at + self._trained)
        return batch.loss

    def forward(self, inputs: torch.Tensor | None = None) -> torch.Tensor | None:
        """Compute the outputs of a batch, without gradients, in the mode of each module.

        Args:
            inputs: the batch; the first stage uses it.

        Returns:
            The outputs at the last stage, in order; None at the others, which do not wait for
            it: they are done when all of the batch is on its way.

        Raises:
            SmboxError: as ``forward_backward``.
        """
        self._check_ready(inputs)
        with self._ending_on_error(), torch.no_grad():
            return self._begin(inputs, None, is_training=False).outputs()

    def stats(self) -> PipelineStats:
        """Return what was counted."""
        ends = [end for both in self._parts.boundaries for end in (both.reader, both.writer)]
        return PipelineStats(
            batches=self._trained,
            held_max=self._held_max,
            nbytes=sum(end.nbytes for end in ends),
            waited_ms=1000.0 * self._stages.waited_s,
        )

    def close(self) -> None:
        """Leave the other stages, and free the regions that they need no more. Idempotent.

        Stages that wait for this one learn it at once.
        """
        self._close(End(self.stage, "left"))

    def _close(self, end: End) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._box.not_before_close(self.close)
        try:
            with suppress(SmboxError):  # the memory may be gone, and the regions with it
                self._parts.end(self._box, end, self._stages)
        finally:
            self._team.leave()

    def _begin(
        self, inputs: torch.Tensor | None, targets: torch.Tensor | None, *, is_training: bool
    ) -> Batch:
        """Begin a batch; all stages but the first hear from the one before how large it is."""
        self._team.check()
        before = self._parts.before
        if before is None:
            assert inputs is not None
            rows = len(inputs)
        else:
            header = before.reader.peek()
            rows = header.batch_rows
            if (header.batch, header.is_training) != (self._number, is_training):
                raise StepMismatchError(
                    f"stage {before.peer} and this one compute different batches: every stage"
                    " calls the same methods, in the same order",
                    stage=self.stage,
                    batch=self._number,
                    is_training=is_training,
                    found_batch=header.batch,
                    found_training=header.is_training,
                )
        if is_training and self.is_last:
            check_targets(targets, rows)
        number, self._number = self._number, self._number + 1
        mine = inputs if self.is_first else None
        return Batch(self._parts, number, rows, self._plan.micro_batches, mine)

    def _check_ready(self, inputs: torch.Tensor | None) -> None:
        if self._is_closed:
            raise ConfigError("the pipeline was closed, or ended by an error: make it again")
        if self.is_first:
            check_inputs(inputs, self._parts.given, self._plan.micro_batches)

    @contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        """End the pipeline if a batch fails: the other stages cannot go on in the middle."""
        try:
            yield
        except BaseException as error:
            self._close(End.behind(error, self.stage))
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._close(End.behind(error, self.stage))

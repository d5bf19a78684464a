"""Pipeline: synchronous pipeline parallelism, one process for each stage of a model.

GPipe (Huang et al. 2019, arXiv:1811.06965): a batch of n rows is cut into m micro-batches
x_1 .. x_m of n_i rows, and stage s computes f_s of each. The loss l is a mean over rows. The
parameters w_s of stage s get the gradient g_s of the batch's loss L:

    L = sum_i n_i / n * l(f_S(.. f_1(x_i)), y_i);    g_s = dL / dw_s,  summed in the order of i

The result equals, bit for bit, that of one process that computes the micro-batches one after
another: both schedules (``schedule.py``) sum gradients in the order of the micro-batches. Each
stage has its own optimizer, which the user makes. Activations and gradients go through rings of
slots in the memory box (``ring.py``), by puts with a signal and with flow-control credit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Self

import torch

from smbox import Box
from smbox.errors import ConfigError, SmboxError, StepMismatchError
from smbox.work import Exclusive
from smbox_torch.boxes import check_box
from smbox_torch.checks import lease, seconds
from smbox_torch.pipeline.arguments import (
    check_inputs,
    check_loss,
    check_settings,
    check_stages,
    check_targets,
    check_untied,
)
from smbox_torch.pipeline.batch import Batch, Loss
from smbox_torch.pipeline.building import StageBuilder, StageLike, leave, refuse_early
from smbox_torch.pipeline.schedule import SCHEDULES
from smbox_torch.pipeline.stage_exit import StageExit
from smbox_torch.pipeline.stages import Stages
from smbox_torch.workers.joining import LEASE_S, team_of
from smbox_torch.workers.team import JoinedTeam

__all__ = ["Pipeline", "PipelineStats"]

TIMEOUT_S: Final = 300.0
"""Long, because a stage may evaluate or save meanwhile. A dead stage is detected earlier."""


@dataclass(frozen=True)
class PipelineStats:
    """Counts of one stage since it was built.

    Attributes:
        batches: number of training batches.
        held_max: largest number of micro-batches held for their backward at one time.
        nbytes: bytes of activations and gradients sent and received.
        waited_ms: time spent waiting for other stages, in milliseconds.
    """

    batches: int
    held_max: int
    nbytes: int
    waited_ms: float


class Pipeline(Exclusive):
    """One stage of a model that is trained in several processes, one for each stage.

    Every process creates a Pipeline with the same arguments, except ``stage``, and then calls
    the same methods in the same order. The constructor returns when all stages are ready. An
    error during a batch ends the pipeline at every stage. At a stage that raises, the batch has
    changed no parameter, and the gradients are undefined.

    Args:
        box: connection to the memory. All regions of the pipeline lie on one of its nodes.
        name: name of the pipeline, the prefix of its regions and the run that stages join.
        stages: one entry for each stage: a module, or a function that returns the module and
            is called only in the process of that stage. A module maps one tensor to one tensor.
            Axis 0 is the batch. Tensors between stages have a floating-point dtype.
        example: a batch of the largest size, for its shape and dtype; at the first stage.
        loss: returns the mean over rows of outputs and targets; at the last stage, to train.
        stage: number of this stage, from 0; None: the launcher's rank, else the lowest free.
        micro_batches: number of micro-batches in a batch. A batch with fewer rows is cut into
            single rows.
        schedule: "1f1b" or "gpipe".
        slots: number of activations, and of gradients, in flight at each boundary.
        timeout_s: how long to wait for another stage that is alive, in seconds.
        lease_s: seconds without renewal after which a stage counts as dead.

    Attributes:
        stage: number of this stage, from 0.
        module: the module of this stage. Pass its parameters to this process's optimizer.

    Raises:
        TypeError, LimitError, ConfigError: an argument is invalid, or the stages do not match:
            a stage cannot process the output of the previous one, has other settings, or shares
            a parameter with another stage. All stages that have started raise it; no region is
            left.
        RankTakenError: another living process has this stage; no region is left.
        RequestTimeoutError: a stage did not start in time; no region is left.
        WorkerLostError: a stage died, failed or left after it had started; no region is left.
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
        count, rank = check_stages(name, stages, stage)
        self._box = box.home_of(name)
        try:
            settings = check_settings(count, micro_batches, schedule, slots)
            timeout_s, lease_s = seconds("timeout_s", timeout_s), lease(lease_s)
            check_loss(loss)
            check_untied(stages)
        except ConfigError as error:
            refuse_early(self._box, name, count, rank, error)
            raise
        team = team_of(self._box, name, count, rank=rank, lease_s=lease_s)
        assert isinstance(team, JoinedTeam)
        with ExitStack() as undo:
            undo.callback(team.leave)
            self._stages = Stages(self._box, team, count, timeout_s)
            undo.callback(leave, self._box, name, self._stages)
            self.stage = self._stages.stage
            builder = StageBuilder(self._box, name, self._stages, count)
            self._built = builder.build(settings, stages[self.stage], example)
            undo.pop_all()
        self.module = self._built.module
        self._name, self._team, self._settings, self._loss = name, team, settings, loss
        self._batches = self._trained = self._held_max = 0
        self._is_closed = False
        self.renew_locks()
        self._box.before_close(self, self.close)

    @property
    def is_first(self) -> bool:
        """Whether this is the first stage, which uses the inputs."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this is the last stage, which uses the targets and returns the outputs."""
        return self.stage == self._settings.stages - 1

    def forward_backward(
        self, inputs: torch.Tensor | None = None, targets: torch.Tensor | None = None
    ) -> float:
        """Compute the loss of a batch and add its gradients to ``parameter.grad``.

        Args:
            inputs: the batch. Only the first stage uses it.
            targets: one target for each row. Only the last stage uses them.

        Returns:
            The loss of the batch, the same number at every stage.

        Raises:
            LayoutMismatchError: inputs or targets are missing or do not match; nothing was
                sent. The number of targets differs from the first stage's number of rows; the
                pipeline has ended.
            ConfigError: the pipeline is closed, ``torch.inference_mode`` is on, or the last
                stage has no ``loss``; nothing was sent. The loss does not require gradients;
                the pipeline has ended.
            WorkerLostError: the named stage died, failed or left; the pipeline has ended.
            RequestTimeoutError: a living stage sent nothing in time; the pipeline has ended.
            StepMismatchError: the previous stage computes another batch or called another
                method; the pipeline has ended.
            LeaseLostError: another process has this stage; the pipeline has ended.
        """
        self._check_ready(inputs)
        if torch.is_inference_mode_enabled():
            raise ConfigError(
                "torch.inference_mode() computes no gradients: call forward_backward() outside"
                " of it, and evaluate with forward()"
            )
        if self.is_last:
            if self._loss is None:
                raise ConfigError("the last stage needs loss= to train")
            rows = len(inputs) if self.is_first and inputs is not None else None
            check_targets(targets, rows)
        with self._ending_on_error(), torch.enable_grad():
            batch = self._begin(inputs, targets, is_training=True)
            tasks = SCHEDULES[self._settings.schedule](
                self.stage, self._settings.stages, len(batch.sizes)
            )
            batch.train(tasks, targets if self.is_last else None, self._loss)
            self._trained += 1
            self._held_max = max(self._held_max, batch.held_max)
            self._team.tell(self._team.begins_at + self._trained)
        return batch.loss

    def forward(self, inputs: torch.Tensor | None = None) -> torch.Tensor | None:
        """Compute the outputs of a batch without gradients; training or evaluation mode stays.

        Args:
            inputs: the batch. Only the first stage uses it.

        Returns:
            The outputs, in the order of the rows, at the last stage; None at other stages,
            which return as soon as they have sent their activations.

        Raises:
            SmboxError: the errors of ``forward_backward``.
        """
        self._check_ready(inputs)
        with self._ending_on_error(), torch.no_grad():
            return self._begin(inputs, None, is_training=False).outputs()

    def stats(self) -> PipelineStats:
        """Return the counts of this stage."""
        rings = [ring for link in self._built.links for ring in (link.reader, link.writer)]
        return PipelineStats(
            batches=self._trained,
            held_max=self._held_max,
            nbytes=sum(ring.nbytes for ring in rings),
            waited_ms=1000.0 * self._stages.waited_s,
        )

    def close(self) -> None:
        """Leave the pipeline and free the regions that no other stage needs. Idempotent.

        Stages that wait for this one are notified at once.
        """
        self._close(StageExit(self.stage, "left"))

    def _close(self, exit_: StageExit) -> None:
        with self._lock:  # another thread, which closes the box, waits for this one
            if self._is_closed:
                return
            self._is_closed = True
            try:
                with suppress(SmboxError):  # the memory may be gone, and the regions with it
                    self._built.shut_down(self._box, exit_)
            finally:
                leave(self._box, self._name, self._stages)
                self._box.not_before_close(self)

    def _begin(
        self, inputs: torch.Tensor | None, targets: torch.Tensor | None, *, is_training: bool
    ) -> Batch:
        """Begin a batch. A later stage gets the number of rows from the previous stage."""
        self._team.check()
        upstream = self._built.upstream
        if upstream is None:
            assert inputs is not None
            rows = len(inputs)
        else:
            header = upstream.reader.peek()
            rows = header.batch_rows
            if (header.batch, header.is_training) != (self._batches, is_training):
                raise StepMismatchError(
                    f"stage {upstream.reader.peer} and this one compute different batches:"
                    " every stage must call the same methods in the same order",
                    stage=self.stage,
                    batch=self._batches,
                    is_training=is_training,
                    found_batch=header.batch,
                    found_training=header.is_training,
                )
        if is_training and self.is_last:
            check_targets(targets, rows)
        number, self._batches = self._batches, self._batches + 1
        own = inputs if self.is_first else None
        return Batch(self._built, number, rows, self._settings.micro_batches, own)

    def _check_ready(self, inputs: torch.Tensor | None) -> None:
        if self._is_closed:
            raise ConfigError("the pipeline was closed, or ended by an error: make it again")
        if self.is_first:
            check_inputs(inputs, self._built.input_spec, self._settings.micro_batches)

    @contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        """End the pipeline if a batch fails: no stage can continue in the middle of a batch."""
        try:
            yield
        except BaseException as error:
            self._close(StageExit.from_error(error, self.stage))
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        how = StageExit(self.stage, "left")
        self._close(how if error is None else StageExit.from_error(error, self.stage))

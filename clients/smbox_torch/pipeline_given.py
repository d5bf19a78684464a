"""What a user gives a pipeline, checked before anything moves. Pure."""

from __future__ import annotations

import math

import torch

from smbox.errors import ConfigError, LayoutMismatchError
from smbox_torch.adapter import dtype_name
from smbox_torch.pipeline_agreement import Plan
from smbox_torch.pipeline_ring import Spec
from smbox_torch.pipeline_schedule import SCHEDULES

__all__ = ["check_inputs", "check_plan", "check_targets", "micro_batch_of"]


def check_plan(plan: Plan) -> Plan:
    """Return a plan that can be carried out; ConfigError for any other."""
    if plan.schedule not in SCHEDULES:
        raise ConfigError(f"schedules are {', '.join(SCHEDULES)}", schedule=plan.schedule)
    for name in ("stages", "micro_batches", "slots"):
        if getattr(plan, name) < 1:
            raise ConfigError(f"{name}: at least one", given=getattr(plan, name))
    return plan


def micro_batch_of(batch: object, micro_batches: int) -> Spec:
    """Return what the largest micro-batch of a batch is.

    Raises:
        ConfigError: it is no tensor of at least one row.
    """
    if not isinstance(batch, torch.Tensor) or not batch.dim() or not len(batch):
        raise ConfigError("the first stage needs example=, a batch of at least one row")
    rows = math.ceil(len(batch) / micro_batches)
    return Spec((rows, *batch.shape[1:]), dtype_name(batch.dtype))


def check_inputs(inputs: object, wanted: Spec, micro_batches: int) -> None:
    """Raise LayoutMismatchError where the first stage cannot take a batch.

    Args:
        inputs: the batch.
        wanted: micro-batches that the pipeline was built for.
        micro_batches: into how many it is cut.
    """
    if not isinstance(inputs, torch.Tensor) or not inputs.dim() or not len(inputs):
        raise LayoutMismatchError(
            "the first stage needs inputs, a batch of at least one row", micro_batch=str(wanted)
        )
    found = micro_batch_of(inputs, micro_batches)
    if not wanted.takes(found):
        raise LayoutMismatchError(
            "inputs do not fit example=, which is as large as any batch",
            micro_batch=str(wanted),
            found=str(found),
        )


def check_targets(targets: object, rows: int | None) -> None:
    """Raise LayoutMismatchError where the last stage cannot use targets.

    Args:
        targets: of the batch.
        rows: of the batch; None: not known yet.
    """
    if not isinstance(targets, torch.Tensor) or not targets.dim():
        raise LayoutMismatchError("the last stage needs targets, one for each row")
    if rows is not None and len(targets) != rows:
        raise LayoutMismatchError(
            "there is one target for each row of the first stage's inputs",
            targets=len(targets),
            rows=rows,
        )

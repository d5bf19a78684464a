"""What a user gives a pipeline, checked before anything moves. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import torch

from smbox.errors import ConfigError, LayoutMismatchError
from smbox.head import check_prefix
from smbox_torch.adapter import dtype_name
from smbox_torch.checks import whole
from smbox_torch.pipeline.agreement import Plan
from smbox_torch.pipeline.ring import Spec
from smbox_torch.pipeline.schedule import SCHEDULES

__all__ = [
    "check_inputs",
    "check_loss",
    "check_stages",
    "check_targets",
    "check_untied",
    "micro_batch_of",
    "plan_of",
]

COUNT_MAX: Final = 2**31 - 1
"""More micro-batches or slots than any memory has room for."""


def check_stages(name: str, stages: object, stage: object) -> tuple[int, int | None]:
    """Return how many stages there are, and the number of this one as it was given.

    Raises:
        TypeError, LimitError: no name of a pipeline.
        ConfigError: no name of a pipeline, no list of stages, or no number of one.
    """
    check_prefix(name)
    if not isinstance(stages, Sequence | torch.nn.Sequential | torch.nn.ModuleList):
        raise ConfigError(
            "stages is a list: for each stage a module, or a function that makes it",
            given=type(stages).__name__,
        )
    count = _count("stages", len(stages))
    if stage is None:
        return count, None
    return count, _count("stage", stage, least=0, most=count - 1)


def plan_of(stages: int, micro_batches: object, schedule: object, slots: object) -> Plan:
    """Return a plan that can be carried out; ConfigError for any other."""
    if not isinstance(schedule, str) or schedule not in SCHEDULES:
        raise ConfigError(f"schedules are {', '.join(SCHEDULES)}", schedule=schedule)
    return Plan(
        stages, _count("micro_batches", micro_batches), schedule, _count("slots", slots)
    )


def check_loss(loss: object) -> None:
    """Raise ConfigError where a loss cannot be called."""
    if loss is not None and not callable(loss):
        raise ConfigError("loss is a function of outputs and targets", given=loss)


def check_untied(stages: Iterable[object]) -> None:
    """Raise ConfigError if two stages that are modules have the same parameter."""
    owners: dict[int, tuple[int, str]] = {}
    for number, stage in enumerate(stages):
        if not isinstance(stage, torch.nn.Module):
            continue
        for name, parameter in stage.named_parameters():
            owner, first = owners.setdefault(id(parameter), (number, name))
            if owner != number:
                raise ConfigError(
                    f"stages {owner} and {number} share a parameter ({first} and {name}): two"
                    " processes would train it apart. Put both layers into one stage, or give"
                    " each a parameter of its own"
                )


def _count(name: str, given: object, *, least: int = 1, most: int = COUNT_MAX) -> int:
    try:
        return whole(name, given, least=least, most=most)
    except TypeError as error:
        raise ConfigError(str(error), given=given) from error


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

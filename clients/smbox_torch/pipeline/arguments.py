"""Checks of a pipeline's arguments, inputs and targets. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch

from smbox.errors import ConfigError, LayoutMismatchError
from smbox_torch.adapter import dtype_name
from smbox_torch.checks import whole
from smbox_torch.pipeline.agreement import Settings
from smbox_torch.pipeline.ring import TensorSpec
from smbox_torch.pipeline.schedule import SCHEDULES
from smbox_torch.workers.claim import check_run_name

__all__ = [
    "StageLike",
    "check_inputs",
    "check_loss",
    "check_settings",
    "check_stages",
    "check_targets",
    "check_untied",
    "micro_batch_of",
    "module_of",
]

StageLike = torch.nn.Module | Callable[[], torch.nn.Module]
"""A module, or a function that returns it, called in the process of the stage."""

COUNT_MAX: Final = 2**31 - 1
"""More micro-batches or slots than any memory has room for."""


def check_stages(name: str, stages: object, stage: object) -> tuple[int, int | None]:
    """Return the number of stages and the given number of this one.

    Raises:
        TypeError, LimitError: ``name`` is not a valid name.
        ConfigError: ``name`` is not a valid name, ``stages`` is not a list, or ``stage`` is
            not the number of a stage.
    """
    check_run_name(name)
    if not isinstance(stages, Sequence | torch.nn.Sequential | torch.nn.ModuleList):
        raise ConfigError(
            "stages must be a list of modules, or of functions that return a module",
            given=type(stages).__name__,
        )
    count = _count("stages", len(stages))
    if stage is None:
        return count, None
    return count, _count("stage", stage, least=0, most=count - 1)


def check_settings(
    stages: int, micro_batches: object, schedule: object, slots: object
) -> Settings:
    """Return valid settings; raise ConfigError for invalid ones."""
    if not isinstance(schedule, str) or schedule not in SCHEDULES:
        raise ConfigError(f"schedule must be one of {', '.join(SCHEDULES)}", schedule=schedule)
    return Settings(
        stages, _count("micro_batches", micro_batches), schedule, _count("slots", slots)
    )


def check_loss(loss: object) -> None:
    """Raise ConfigError if a loss is not callable."""
    if loss is not None and not callable(loss):
        raise ConfigError("loss must be a function of outputs and targets", given=loss)


def check_untied(stages: Iterable[object]) -> None:
    """Raise ConfigError if two stages that are modules share a parameter."""
    owners: dict[int, tuple[int, str]] = {}
    for number, stage in enumerate(stages):
        if not isinstance(stage, torch.nn.Module):
            continue
        for name, parameter in stage.named_parameters():
            owner, first = owners.setdefault(id(parameter), (number, name))
            if owner != number:
                raise ConfigError(
                    f"stages {owner} and {number} share a parameter ({first} and {name}), but"
                    " each process would train its own copy. Put both layers into one stage,"
                    " or give each its own parameter"
                )


def _count(name: str, given: object, *, least: int = 1, most: int = COUNT_MAX) -> int:
    try:
        return whole(name, given, least=least, most=most)
    except TypeError as error:
        raise ConfigError(str(error), given=given) from error


def micro_batch_of(batch: object, micro_batches: int) -> TensorSpec:
    """Return shape and dtype of the largest micro-batch of a batch.

    Raises:
        ConfigError: ``batch`` is not a tensor with at least one row.
    """
    if not isinstance(batch, torch.Tensor) or not batch.dim() or not len(batch):
        raise ConfigError("the first stage needs example=, a batch of at least one row")
    rows = math.ceil(len(batch) / micro_batches)
    return TensorSpec((rows, *batch.shape[1:]), dtype_name(batch.dtype))


def check_inputs(inputs: object, expected: TensorSpec, micro_batches: int) -> None:
    """Raise LayoutMismatchError if the first stage cannot process a batch.

    Args:
        inputs: the batch.
        expected: the micro-batches that the pipeline was built for.
        micro_batches: number of micro-batches in a batch.
    """
    if not isinstance(inputs, torch.Tensor) or not inputs.dim() or not len(inputs):
        raise LayoutMismatchError(
            "the first stage needs inputs, a batch of at least one row",
            micro_batch=str(expected),
        )
    found = micro_batch_of(inputs, micro_batches)
    if not expected.accepts(found):
        raise LayoutMismatchError(
            "inputs do not match example=, which must be as large as the largest batch",
            micro_batch=str(expected),
            found=str(found),
        )


def check_targets(targets: object, rows: int | None) -> None:
    """Raise LayoutMismatchError if the last stage cannot use the targets.

    Args:
        targets: the targets of the batch.
        rows: number of rows of the batch; None if it is not known yet.
    """
    if not isinstance(targets, torch.Tensor) or not targets.dim():
        raise LayoutMismatchError("the last stage needs a tensor of targets, one for each row")
    if rows is not None and len(targets) != rows:
        raise LayoutMismatchError(
            "the number of targets differs from the number of rows at the first stage",
            targets=len(targets),
            rows=rows,
        )


def module_of(stage: StageLike) -> torch.nn.Module:
    """Return the module of a stage.

    Raises:
        ConfigError: the function fails, or the result is not a module.
    """
    if isinstance(stage, torch.nn.Module):
        return stage
    try:
        module = stage()
    except Exception as error:
        raise ConfigError(f"no module: {type(error).__name__}: {error}") from error
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(f"a stage must be a torch.nn.Module, not {type(module).__name__}")
    return module

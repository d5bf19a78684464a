"""Checks of user arguments: numbers, seconds, flags and models. Pure.

A wrong type raises TypeError and an invalid value raises ConfigError, as in all of smbox. An
invalid time in seconds raises ConfigError whatever its type, as for smbox's ``timeout_s``.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from numbers import Real
from typing import Any, Final

import numpy as np
import torch

from smbox.errors import ConfigError
from smbox.lease import check_lease

__all__ = [
    "MOST",
    "check_model",
    "check_optimizer",
    "check_parameters",
    "check_step_hooks",
    "flag",
    "lease",
    "momentum",
    "real",
    "seconds",
    "share",
    "whole",
]

MOST: Final = (1 << 63) - 1


def whole(name: str, value: Any, *, least: int = 1, most: int = MOST) -> int:
    """Return an integer within limits, as an int.

    Args:
        name: name of the argument, for the error.
        value: an int, or an integer of numpy or torch; not a bool or float.
        least: the smallest valid value.
        most: the largest valid value.

    Raises:
        TypeError: it is not an integer.
        ConfigError: it is too small or too large.
    """
    is_bool = isinstance(value, bool | np.bool_) or getattr(value, "dtype", None) == torch.bool
    try:
        number = None if is_bool else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if number < least:
        raise ConfigError(f"{name} must be at least {least}", **{name: number})
    if number > most:
        shown = number if number <= MOST else f"{number.bit_length()} bits"
        raise ConfigError(f"{name} must be at most {most}", **{name: shown})
    return number


def real(name: str, value: Any) -> float:
    """Return a real number, which may be infinite, as a float.

    Raises:
        TypeError: it is not a number, or is a bool.
        ConfigError: it is NaN, or too large for a float.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError as error:
        raise ConfigError(f"{name} is too large for a float") from error
    if number != number:  # noqa: PLR0124 - NaN
        raise ConfigError(f"{name} must be a number", **{name: number})
    return number


def share(name: str, value: Any) -> float:
    """Return a share, above 0 and at most 1; raises as ``real``, or ConfigError."""
    number = real(name, value)
    if not 0.0 < number <= 1.0:
        raise ConfigError(f"{name} must be above 0 and at most 1", **{name: number})
    return number


def momentum(value: Any) -> float:
    """Return a momentum, at least 0 and below 1; raises as ``real``, or ConfigError."""
    number = real("momentum", value)
    if not 0.0 <= number < 1.0:
        raise ConfigError("momentum must be at least 0 and below 1", momentum=number)
    return number


def seconds(name: str, value: Any) -> float:
    """Return a positive time in seconds, which may be infinite; otherwise raise ConfigError."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not float(value) > 0.0:  # also for NaN
        raise ConfigError(f"{name} is a positive number of seconds", **{name: value})
    return float(value)


def lease(value: Any) -> float:
    """Return ``lease_s``; raise ConfigError unless it is positive and finite."""
    return check_lease(seconds("lease_s", value))


def flag(name: str, value: Any) -> bool:
    """Return a bool; raise TypeError for any other type."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")
    return bool(value)


def check_optimizer(optimizer: Any) -> None:
    """Check that an optimizer can be wrapped.

    Raises:
        TypeError: it is not an optimizer of torch, but for example a model.
        ConfigError: see ``check_parameters``.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}"
        )
    check_parameters(each for group in optimizer.param_groups for each in group["params"])


def check_step_hooks(optimizer: torch.optim.Optimizer, algorithm: str) -> None:
    """Raise ConfigError if an optimizer has step hooks, for algorithms that ignore them.

    A step checks it again: hooks may be registered after wrapping.
    """
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:  # noqa: SLF001
        raise ConfigError(
            f"{algorithm} steps with the gradients of backward, so step hooks of the inner"
            f" optimizer would have no effect: register them with the {algorithm} object",
            optimizer=type(optimizer).__name__,
        )


def check_parameters(parameters: Iterable[torch.Tensor]) -> None:
    """Raise ConfigError for parameters whose values or memory cannot be replaced.

    These have no shape yet (lazy modules), are sparse, were created in
    ``torch.inference_mode``, or share memory.
    """
    members = list({id(parameter): parameter for parameter in parameters}.values())
    if any(map(torch.nn.parameter.is_lazy, members)):
        raise ConfigError(
            "a parameter has no shape yet: run one batch through the model, then wrap"
        )
    layouts = sorted({str(each.layout) for each in members} - {"torch.strided"})
    if layouts:
        raise ConfigError(
            "a parameter is not dense: make it dense (nn.Embedding(sparse=True) has a dense"
            " parameter with sparse gradients)",
            layouts=layouts,
        )
    if torch.is_inference_mode_enabled() or any(each.is_inference() for each in members):
        raise ConfigError(
            "torch.inference_mode allows no training: create and wrap the model outside of it"
        )
    if (shared := _sharing(members)) is not None:
        raise ConfigError(
            "two parameters share memory, and wrapping would separate them: tie them as one"
            " parameter (head.weight = embedding.weight), not by .data",
            shapes=[tuple(each.shape) for each in shared],
        )


def _sharing(tensors: Iterable[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return two tensors that share memory, or None; only dense tensors are compared."""
    dense = [each for each in tensors if _is_dense(each) and each.data_ptr()]
    dense.sort(key=lambda each: (str(each.device), each.data_ptr()))
    for one, other in itertools.pairwise(dense):
        if one.device == other.device and one.data_ptr() + one.nbytes > other.data_ptr():
            return one, other
    return None


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements fill the memory from its first to its last byte."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return False
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.numel() == 1 + sum((size - 1) * stride for size, stride in steps)


def check_model(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Check that ``model`` is None, or a model with parameters of the optimizer.

    Raises:
        TypeError: it is not a torch.nn.Module.
        ConfigError: it has none of the optimizer's parameters, or a buffer without values.
    """
    if model is None:
        return
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    own = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if own.isdisjoint(map(id, model.parameters())):
        raise ConfigError("model= has none of the optimizer's parameters: pass their model")
    if any(buffer.is_meta for buffer in model.buffers()):
        raise ConfigError(
            "a buffer of model= is on 'meta', without values: initialize it first"
        )

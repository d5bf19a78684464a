"""Server-side optimizers: steps that a region takes by itself, with its state in siblings.

Named operations and nothing else: no code of a client's ever runs at the node. All compute
in the region's own dtype, element by element; the defaults and the order of operations are
those of ``torch.optim``, so that a step here equals a step there.

    p parameters, g gradient, lr step size, t number of the step (from 1)

    MOMENTUM  m = mu m + g;  p -= lr m                          (torch.optim.SGD, dampening 0)
    NESTEROV  m = mu m + g;  p -= lr (g + mu m)                 (the same with nesterov=True)
    ADAGRAD   s = s + g g;   p -= lr g / (sqrt(s) + eps)        (Duchi et al. 2011)
    ADAM      m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g g       (Kingma and Ba, 1412.6980)
              p -= lr / (1-b1^t) m / (sqrt(v) / sqrt(1-b2^t) + eps)

A plain step is no operation of its own: ``accumulate(g, scale=-lr)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError

Array = NDArray[Any]
Parameters = Sequence[float]
PARAMETERS_MAX: Final = 4


class OptimizerCode(IntEnum):
    """Number of an optimizer in journals and messages; never reused, apart from kernels'."""

    MOMENTUM = 64
    NESTEROV = 65
    ADAGRAD = 66
    ADAM = 67


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One row of the table.

    Attributes:
        run: ``run(p, states, g, parameters, t)`` steps in place.
        parameters: names of its parameters, in order; at most four.
        states: names of its sibling regions, in order.
    """

    run: Callable[[Array, Sequence[Array], Array, Parameters, int], None]
    parameters: tuple[str, ...]
    states: tuple[str, ...]


def _momentum(p: Array, states: Sequence[Array], g: Array, by: Parameters, _t: int) -> None:
    (m,) = states
    lr, mu = _as(p, by[:2])
    np.multiply(m, mu, out=m)
    np.add(m, g, out=m)
    np.subtract(p, lr * m, out=p)


def _nesterov(p: Array, states: Sequence[Array], g: Array, by: Parameters, _t: int) -> None:
    (m,) = states
    lr, mu = _as(p, by[:2])
    np.multiply(m, mu, out=m)
    np.add(m, g, out=m)
    np.subtract(p, lr * (g + mu * m), out=p)


def _adagrad(p: Array, states: Sequence[Array], g: Array, by: Parameters, _t: int) -> None:
    (s,) = states
    lr, eps = _as(p, by[:2])
    np.add(s, g * g, out=s)
    np.subtract(p, lr * g / (np.sqrt(s) + eps), out=p)


def _adam(p: Array, states: Sequence[Array], g: Array, by: Parameters, t: int) -> None:
    m, v = states
    lr, beta1, beta2, eps = by
    step, root = lr / (1 - beta1**t), math.sqrt(1 - beta2**t)
    b1, b2, c1, c2, e, step_p, root_p = _as(
        p, (beta1, beta2, 1 - beta1, 1 - beta2, eps, step, root)
    )
    np.add(m * b1, g * c1, out=m)
    np.add(v * b2, g * g * c2, out=v)
    np.subtract(p, step_p * m / (np.sqrt(v) / root_p + e), out=p)


def _as(p: Array, values: Sequence[float]) -> list[Any]:
    """Round parameters to the elements' type, so that it computes in that type."""
    return [p.dtype.type(value) for value in values]


OPTIMIZERS: Final[dict[OptimizerCode, Optimizer]] = {
    OptimizerCode.MOMENTUM: Optimizer(_momentum, ("lr", "momentum"), ("momentum",)),
    OptimizerCode.NESTEROV: Optimizer(_nesterov, ("lr", "momentum"), ("momentum",)),
    OptimizerCode.ADAGRAD: Optimizer(_adagrad, ("lr", "eps"), ("squares",)),
    OptimizerCode.ADAM: Optimizer(_adam, ("lr", "beta1", "beta2", "eps"), ("mean", "squares")),
}


def check_parameters(code: OptimizerCode, parameters: Parameters) -> None:
    """Raise ConfigError unless these are the optimizer's parameters, finite and in range."""
    names = OPTIMIZERS[code].parameters
    if len(parameters) != len(names):
        raise ConfigError("an optimizer needs its parameters", optimizer=code.name, names=names)
    for name, value in zip(names, parameters, strict=True):
        below = 1.0 if name.startswith(("momentum", "beta")) else math.inf
        if not 0 <= value < below:
            raise ConfigError("out of range", optimizer=code.name, **{name: value})

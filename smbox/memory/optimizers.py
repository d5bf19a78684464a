"""Server-side optimizers: steps that a region takes by itself, with its state in siblings.

Named operations and nothing else: no code of a client's ever runs at the node. They are kernels
of smbox/native/kernels.h; all compute in the region's own type (float16 and bfloat16 in
float32, rounded once), element by element; the defaults and the order of operations are
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
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from smbox.errors import ConfigError

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
        parameters: names of its parameters, in order, lr first; at most four.
        defaults: of all but lr, which must be given.
        states: names of its sibling regions, in order.
    """

    parameters: tuple[str, ...]
    defaults: tuple[float, ...]
    states: tuple[str, ...]


OPTIMIZERS: Final[dict[OptimizerCode, Optimizer]] = {
    OptimizerCode.MOMENTUM: Optimizer(("lr", "momentum"), (0.9,), ("momentum",)),
    OptimizerCode.NESTEROV: Optimizer(("lr", "momentum"), (0.9,), ("momentum",)),
    OptimizerCode.ADAGRAD: Optimizer(("lr", "eps"), (1e-10,), ("squares",)),
    OptimizerCode.ADAM: Optimizer(
        ("lr", "beta1", "beta2", "eps"), (0.9, 0.999, 1e-8), ("mean", "squares")
    ),
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

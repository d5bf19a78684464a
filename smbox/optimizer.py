"""Optimizer: training steps computed at the memory node, on a region of parameters.

Workers send gradients and read parameters. Moments and step counts are in regions beside the
parameters, named ``NAME/adam.mean`` and so on, which all workers share. A step changes a
stripe's parameters and state together, so that no worker sees one without the other. The rules,
and their order of operations, are those of smbox/memory/kernels.py. For plain SGD use
``region.accumulate(gradient, scale=-lr)``.

    optimizer = box.optimizer(region, "adam", lr=1e-3)
    optimizer.step(gradient)
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np

from smbox.array import source_array
from smbox.errors import ConfigError, RegionFreedError
from smbox.handle import Handle
from smbox.memory.kernels import OPTIMIZERS, OptimizerCode, check_parameters
from smbox.memory.layout import Consistency
from smbox.paths import creating
from smbox.paths.pair import PathPair
from smbox.paths.requests import CreateRequest, Operation, RegionInfo
from smbox.region import Region
from smbox.verbs import operand_of
from smbox.wire.header import NO_SCALE
from smbox.wire.operands import PARAMETERS_MAX


class Optimizer:
    """A server-side optimizer on one region; thread-safe.

    Attributes:
        region: the parameters.
        states: the regions of the state, by name. The number of Adam's step is the count of
            commits to "squares": a put to it counts as a step.

    Args:
        paths: paths to the node, shared with the box.
        region: the parameters: a whole region of a float dtype and consistency "stripe".
        name: "momentum", "nesterov", "adagrad" or "adam".
        given: parameters by name: lr, momentum, eps, beta1, beta2,
            initial_accumulator_value.

    Raises:
        ConfigError: the name, parameters or region are invalid; nothing was created.
        LayoutMismatchError: a region with the name of the state has another layout.
        OutOfMemoryError: the node has too little memory left for the state.
        TypeError: ``region`` is not a region; nothing was created.
    """

    def __init__(
        self, paths: PathPair, region: Region, name: str, given: dict[str, float]
    ) -> None:
        if not isinstance(region, Region):
            raise TypeError(f"an optimizer steps a region, not {type(region).__name__}")
        self.region = region
        self._paths = paths
        self._code = code_of(name)
        settings = settings_of(self._code, given)
        self._parameters = tuple(parameters_in(self._code, settings).values())
        firsts = first_values(self._code, settings)
        _check_region(region, firsts)
        self.states = {
            state: self._state(name + f".{state}", value) for state, value in firsts.items()
        }

    def step(
        self, gradient: Any, *, lr: float | None = None, timeout_s: float | None = None
    ) -> None:
        """Take one step along ``gradient``; atomic per stripe, of parameters and state.

        Args:
            gradient: an array of the region's shape and dtype; for a float32 region also
                float16 or bfloat16.
            lr: learning rate of this step; None: the optimizer's.
            timeout_s: see smbox.region.

        Raises:
            ConfigError: ``lr`` is invalid; nothing was sent.
            LayoutMismatchError, RequestTimeoutError: see smbox.region.
        """
        self._paths.finish(self._step(gradient, lr), timeout_s)

    def step_nb(self, gradient: Any, *, lr: float | None = None) -> Handle[None]:
        """Start a ``step``; the gradient must not be modified until the handle is done."""
        return self._paths.begin(self._step(gradient, lr))

    def _step(self, gradient: Any, lr: float | None) -> Operation:
        info, shape = self.region.info, self.region.shape
        array = source_array(gradient, self.region.dtype, shape, may_be_narrower=True)
        given = self._parameters if lr is None else (_number("lr", lr), *self._parameters[1:])
        check_parameters(self._code, given)
        parameters = np.zeros(PARAMETERS_MAX)
        parameters[: len(given)] = given
        return Operation(
            info,
            "step",
            self._code,
            NO_SCALE,
            0,
            info.nbytes,
            array,
            operand_of(info.dtype, array),
            states=tuple(state.info for state in self.states.values()),
            parameters=parameters,
        )

    def free(self) -> None:
        """Free the state, for all workers; the parameters stay."""
        for state in self.states.values():
            with suppress(RegionFreedError):
                self._paths.control(state.info).free(state.info.address, self._paths.timeout_s)

    def _state(self, name: str, value: float) -> Region:
        return Region(self._paths, create_state(self._paths, self.region.info, name, value))

    def __repr__(self) -> str:
        return f"Optimizer({self.region.name!r}, {self._code.name.lower()})"


def create_state(paths: PathPair, beside: RegionInfo, name: str, value: float) -> RegionInfo:
    """Create a region of state beside the parameters, or return the existing one.

    Args:
        paths: paths to the node of the parameters.
        beside: the parameters.
        name: name of the state.
        value: first value of all elements of a new region.

    Raises:
        PeerLostError: the parameters lie in another memory; nothing was created.
        SmboxError: the node refuses the state.
    """
    paths.data(beside)  # raises if the state would be created in another memory
    request = CreateRequest(
        f"{beside.name}/{name}",
        beside.dtype,
        beside.shape,
        beside.kind,
        beside.consistency,
        init=value,
        exist_ok=True,
    )
    return creating.create(paths, request, None, None)


def code_of(name: str) -> OptimizerCode:
    """Return the code of an optimizer; ConfigError: no optimizer has this name."""
    found = {code.name.lower(): code for code in OptimizerCode}
    if name not in found:
        raise ConfigError(f"an optimizer is one of {', '.join(found)}", optimizer=name)
    return found[name]


def settings_of(code: OptimizerCode, given: dict[str, float]) -> dict[str, float]:
    """Return all settings of an optimizer, given or default, by name; ``lr`` comes first.

    Raises:
        ConfigError: a setting is unknown or out of range, or ``lr`` is missing.
    """
    row = OPTIMIZERS[code]
    defaults = row.parameters | row.initial
    if given.keys() - defaults or "lr" not in given:
        raise ConfigError(
            f"{code.name.lower()} takes {', '.join(defaults)}; lr must be given", given=[*given]
        )
    settings = {name: _number(name, value) for name, value in (defaults | given).items()}
    check_parameters(code, [*parameters_in(code, settings).values()])
    for name in row.initial:
        if not 0 <= settings[name] < math.inf:
            raise ConfigError(
                f"{name} must be finite and not negative",
                optimizer=code.name,
                **{name: given[name]},
            )
    return settings


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be a number", **{name: value}) from error


def parameters_in(code: OptimizerCode, settings: dict[str, float]) -> dict[str, float]:
    """Return the settings that a step takes, in the order of the optimizer's row."""
    return {name: settings[name] for name in OPTIMIZERS[code].parameters}


def first_values(code: OptimizerCode, settings: dict[str, float]) -> dict[str, float]:
    """Return the first value of each state, by name."""
    return {state: settings.get(name, 0.0) for state, name in OPTIMIZERS[code].states.items()}


def _check_region(region: Region, firsts: dict[str, float]) -> None:
    """Raise ConfigError if a region cannot be optimized, or cannot hold a first value."""
    info, dtype = region.info, region.dtype
    is_float = info.dtype.kind == "float"
    if not (region.shape == info.shape and is_float and info.consistency == Consistency.STRIPE):
        raise ConfigError(
            "an optimizer steps a whole region of floats, of consistency 'stripe'",
            region=info.name,
            dtype=str(dtype),
        )
    with np.errstate(over="ignore"):
        lost = {state: x for state, x in firsts.items() if not np.isfinite(dtype.type(x))}
    if lost:
        raise ConfigError("a state's first value exceeds the dtype", dtype=str(dtype), **lost)

"""Optimizer: a region that takes its training steps by itself, at the memory node.

Workers send gradients and read parameters; moments and step counts stay beside the region, in
sibling regions named ``NAME/adam.mean`` and the like, which all workers share. A step changes
a stripe's parameters and state together, so that no worker ever sees one without the other.
The rules, and their order of operations, are those of smbox/memory/kernels.py. For plain
SGD use ``region.accumulate(gradient, scale=-lr)``.

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
from smbox.paths.work import CreateRequest, Operation, RegionInfo
from smbox.region import Region
from smbox.verbs import operand_of


class Optimizer:
    """A server-side optimizer on one region; thread-safe.

    Attributes:
        region: the parameters.
        states: the regions of its state, by name.

    Args:
        paths: to the node, shared with the box.
        region: the parameters: a whole region of floats, of consistency "stripe".
        name: "momentum", "nesterov", "adagrad" or "adam".
        given: its parameters by name: lr, momentum, eps, beta1, beta2,
            initial_accumulator_value.

    Raises:
        ConfigError: name, parameters or region make no sense; nothing was created.
        LayoutMismatchError: state of this name exists with another layout.
        OutOfMemoryError: no room for the state.
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
        beginnings = beginnings_in(self._code, settings)
        _check_region(region)
        _check_held(beginnings, region)
        self.states = {
            state: self._state(f"{name}.{state}", value) for state, value in beginnings.items()
        }

    def step(
        self, gradient: Any, *, lr: float | None = None, timeout_s: float | None = None
    ) -> None:
        """Take one step along ``gradient``; parameters and state move together, by stripe.

        Args:
            gradient: of the region's shape and dtype.
            lr: step size of this step; None: the one given at the beginning.
            timeout_s: see region.py.
        """
        self._paths.finish(self._step(gradient, lr), timeout_s)

    def step_nb(self, gradient: Any, *, lr: float | None = None) -> Handle[None]:
        """Begin a ``step``; the gradient is untouchable until it is done."""
        return self._paths.begin(self._step(gradient, lr))

    def _step(self, gradient: Any, lr: float | None) -> Operation:
        info = self.region.info
        array = source_array(
            gradient, self.region.dtype, self.region.shape, may_be_narrower=True
        )
        parameters = self._parameters if lr is None else (float(lr), *self._parameters[1:])
        check_parameters(self._code, parameters)
        return Operation(
            info,
            "step",
            self._code,
            1.0,
            0,
            info.nbytes,
            array,
            operand_of(info.dtype, array),
            states=tuple(state.info for state in self.states.values()),
            parameters=parameters,
        )

    def free(self) -> None:
        """Free the state, for all workers; the parameters stay."""
        timeout_s = self._paths.timeout_s
        for state in self.states.values():
            control = self._paths.control(state.info)
            with suppress(RegionFreedError):
                control.free(state.info.address, timeout_s)

    def _state(self, name: str, value: float) -> Region:
        info = create_state(self._paths, self.region.info, name, value)
        return Region(self._paths, info)

    def __repr__(self) -> str:
        return f"Optimizer({self.region.name!r}, {self._code.name.lower()})"


def create_state(paths: PathPair, beside: RegionInfo, name: str, value: float) -> RegionInfo:
    """Create state beside a region, or find it.

    Args:
        paths: to the node of the region.
        beside: the region.
        name: of the state.
        value: of all its elements where it is new.

    Raises:
        PeerLostError: the region lies in another memory; nothing was made.
        SmboxError: the node refuses the state.
    """
    paths.data(beside)  # or the state would be made in another memory
    request = CreateRequest(
        f"{beside.name}/{name}",
        beside.dtype,
        beside.shape,
        beside.kind,
        beside.consistency,
        value,
        exist_ok=True,
    )
    return creating.create(paths, request, None, None)


def code_of(name: str) -> OptimizerCode:
    """Return the optimizer of a name; ConfigError: there is none."""
    found = {code.name.lower(): code for code in OptimizerCode}
    if name not in found:
        raise ConfigError(f"an optimizer is one of {', '.join(found)}", optimizer=name)
    return found[name]


def settings_of(code: OptimizerCode, given: dict[str, float]) -> dict[str, float]:
    """Return all settings of an optimizer by name, as given or by default; ``lr`` is the first.

    Raises:
        ConfigError: an unknown one, one out of range, or no ``lr``.
    """
    row = OPTIMIZERS[code]
    defaults = dict(zip(row.parameters[1:], row.defaults, strict=True))
    defaults |= {name: default for name, _, default in row.initial}
    takes = ("lr", *defaults)
    if set(given) - set(takes) or "lr" not in given:
        raise ConfigError(
            f"{code.name.lower()} takes {', '.join(takes)}; lr must be given", given=[*given]
        )
    settings = {name: float((defaults | given)[name]) for name in takes}
    check_parameters(code, [*parameters_in(code, settings).values()])
    for name, _, _ in row.initial:
        if not 0 <= settings[name] < math.inf:
            raise ConfigError("out of range", optimizer=code.name, **{name: given[name]})
    return settings


def parameters_in(code: OptimizerCode, settings: dict[str, float]) -> dict[str, float]:
    """Return what a step takes of all settings, in the order of the optimizer's row."""
    return {name: settings[name] for name in OPTIMIZERS[code].parameters}


def beginnings_in(code: OptimizerCode, settings: dict[str, float]) -> dict[str, float]:
    """Return what each state of an optimizer begins as, by all settings, where it is new."""
    row = OPTIMIZERS[code]
    return dict.fromkeys(row.states, 0.0) | {
        state: settings[name] for name, state, _ in row.initial
    }


def _check_held(initial: dict[str, float], region: Region) -> None:
    """Raise ConfigError if a state's first value is infinite in the region's dtype."""
    dtype = np.dtype(region.dtype)
    with np.errstate(over="ignore"):
        lost = {state: x for state, x in initial.items() if not np.isfinite(dtype.type(x))}
    if lost:
        raise ConfigError("a state's first value does not fit", dtype=str(dtype), **lost)


def _check_region(region: Region) -> None:
    info = region.info
    is_whole = region.extent.first == 0 and region.shape == info.shape
    is_float = info.dtype.kind == "float"
    if not (is_whole and is_float and info.consistency == Consistency.STRIPE):
        raise ConfigError(
            "an optimizer steps a whole region of floats, of consistency 'stripe'",
            region=info.name,
            dtype=str(np.dtype(region.dtype)),
        )

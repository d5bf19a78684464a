"""A server-side optimizer without a memory node: whole-array steps under the model's lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from smbox.array import source_array
from smbox.memory.kernels import OptimizerCode
from smbox.testing.kernels import stepped
from smbox.testing.model_region import ModelRegion, Shared, Stored

__all__ = ["ModelOptimizer"]


class ModelOptimizer:
    """Steps a region, as ``smbox.Optimizer`` does.

    Args:
        shared: the memory of the region.
        note: called with each step.
        code: code of the optimizer.
        parameters: all its parameters, by name; ``lr`` first.
        region: the parameters.
        states: the regions of its state, by name.
        kept: contents of the states.
    """

    def __init__(
        self,
        shared: Shared,
        note: Callable[[str], None],
        code: OptimizerCode,
        parameters: dict[str, float],
        region: Stored,
        states: Mapping[str, ModelRegion],
        kept: list[Stored],
    ) -> None:
        self.states = states
        self._shared = shared
        self._note = note
        self._code = code
        self._parameters = parameters
        self._region = region
        self._kept = kept

    def step(self, gradient: Any, *, lr: float | None = None) -> None:
        """Take one step along ``gradient``."""
        p = self._region.data
        source = source_array(gradient, p.dtype, p.shape, may_be_narrower=True)
        by = self._parameters | ({} if lr is None else {"lr": lr})
        with self._shared.changed:
            self._note("step")
            number = self._kept[-1].version + 1
            stored = (self._region, *self._kept)
            states = [kept.data for kept in self._kept]
            found = stepped(self._code, p, states, source, [*by.values()], number)
            for kept, new in zip(stored, found, strict=True):
                kept.data[...] = new
                kept.version += 1
            self._shared.changed.notify_all()

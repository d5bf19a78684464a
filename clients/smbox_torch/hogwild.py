"""Hogwild: workers of one host step on one shared model without any lock.

Niu, Recht, Re, Wright: Hogwild!, NIPS 2011, arXiv:1106.5730. x the model, in memory that all
workers map; g_i the gradient that worker i computed from whatever x was while it read it:

    x = x - lr * g_i                  element by element, whoever else writes at that moment

The paper shows near-optimal convergence for sparse gradients. With dense ones two steps may
overwrite each other's element: such losses are tolerated, not repaired. No update crosses a
socket: parameters are views of a region with ``consistency="none"``.

Sparse gradients, as of ``nn.Embedding(sparse=True)``, are the paper's case: a step stores to
the rows it touches and to no other, so two workers seldom meet.

Variant: steps of a torch optimizer on whole batches instead of the paper's single coordinates.
Its state is ``shared`` (one momentum, one Adam ``step`` that counts everybody's steps) or
``private``.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch

from smbox.box import Box
from smbox.errors import ConfigError
from smbox_torch.flat import check_views, unique
from smbox_torch.hogwild_state import SharedState, share
from smbox_torch.phase import Phase
from smbox_torch.stats import Recorder, Stats
from smbox_torch.wrapped import WrappedOptimizer

__all__ = ["Hogwild"]


class Hogwild(WrappedOptimizer):
    """An optimizer whose parameters are the one model that all workers of a host change.

    The model begins as the first worker's; whoever comes later finds what it has become. It
    cannot be moved to another device or dtype afterwards: ``step`` raises ConfigError then.

    Args:
        optimizer: does the steps, in place; its parameters must be on the CPU.
        box: of a memory node on this host.
        name: of the run: prefix of the regions.
        state: whether the optimizer's state is one for all ("shared": SGD with momentum,
            Adagrad, Adam, AdamW) or each worker's own ("private").

    Raises:
        ConfigError: this process cannot map the memory, a parameter is on another device, or
            the state cannot be shared.
        LayoutMismatchError: another model runs under this name.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        box: Box,
        name: str,
        *,
        state: Literal["shared", "private"] = "private",
    ) -> None:
        super().__init__(optimizer)
        self._parameters = unique(p for g in optimizer.param_groups for p in g["params"])
        if any(parameter.device.type != "cpu" for parameter in self._parameters):
            raise ConfigError(
                "Hogwild's parameters are mapped memory: keep the model on the CPU"
            )
        if state not in {"shared", "private"}:
            raise ConfigError("state is 'shared' or 'private'", state=state)
        self._views = self._share(box, name)
        self._state = (
            SharedState(box, f"{name}.state", optimizer) if state == "shared" else None
        )
        self._phase = Phase(box, name)
        self._recorder = Recorder()
        self._install()

    def _share(self, box: Box, name: str) -> list[torch.Tensor]:
        """Return the model that the parameters become views of."""
        return share(box, name, self._parameters)

    def _install(self) -> None:
        """Make the parameters the views."""
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.data = view

    def _advance(self) -> None:
        check_views(self._parameters, self._views, "the shared memory")
        self._phase.use()
        self.inner.step()
        self._recorder.steps += 1

    def stats(self) -> Stats:
        """Return what was counted: this worker's steps; nothing is exchanged."""
        return self._recorder.snapshot()

    def state_dict(self) -> dict[str, Any]:
        """Return the model and the optimizer's state as this worker sees them now."""
        return {
            "inner": copy.deepcopy(self.inner.state_dict()),  # others go on changing it
            "parameters": [parameter.detach().clone() for parameter in self._parameters],
            "origin": self._phase.origin,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken.

        What is shared is restored by one of the workers that load, and only before the first
        step of any; the others wait for it.

        Raises:
            ConfigError: it belongs to another algorithm; nothing was changed.
            RequestTimeoutError: the worker that restores seems dead.
        """
        if not {"inner", "parameters"} <= state_dict.keys() or "algorithm" in state_dict:
            raise ConfigError(
                "this state belongs to another algorithm", algorithm=state_dict.get("algorithm")
            )
        self.inner.load_state_dict(state_dict["inner"])
        self._adopt()
        restoring = self._phase.restoring(state_dict.get("origin"))
        with restoring as is_mine, torch.no_grad():
            if is_mine:
                saved = state_dict["parameters"]
                for parameter, values in zip(self._parameters, saved, strict=True):
                    parameter.copy_(values)
            if self._state is not None:
                if is_mine:
                    self._state.store()
                self._state.install()

    def close(self) -> None:
        """Take a copy of the model and leave: from then on its parameters are private."""
        self._views = [parameter.detach().clone() for parameter in self._parameters]
        self._install()
        if self._state is not None:
            self._state.detach()

"""Evaluation of the center in a worker's own model, between ``eval`` and ``train``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from smbox_torch.center import Center
from smbox_torch.joined import FINISH_TIMEOUT_S, JoinedOptimizer
from smbox_torch.own_values import OwnValues

__all__ = ["EvaluatingOptimizer"]


class EvaluatingOptimizer(JoinedOptimizer):
    """Base of optimizers whose workers train models of their own around a center.

    The methods are those of schedule-free optimizers, which training frameworks call.
    """

    _own: OwnValues

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do one step; see JoinedOptimizer.

        Raises:
            ConfigError: the model holds the center, since :meth:`eval`; nothing happened.
        """
        self._own.check()
        return super().step(closure)

    @torch.no_grad()
    def eval(self) -> None:
        """Put the center into the model, to evaluate or save it; the worker's values are kept.

        The model keeps what it was given until :meth:`train`; ``step`` and exchanges raise
        ConfigError meanwhile, and ``state_dict`` tells the worker's own values as ever.

        Raises:
            SmboxError: the center cannot be read; the model is as it was.
        """
        if self._own.are_kept:
            return
        self._own.keep()
        try:
            self._take_center()
        except BaseException:
            self._own.give_back()
            raise

    @torch.no_grad()
    def train(self) -> None:
        """Put the worker's own values back into the model; harmless if they are there."""
        self._own.give_back()

    def finish(self, *, timeout_s: float = FINISH_TIMEOUT_S) -> None:
        """End the run together with the others, in either mode; see JoinedOptimizer."""
        self.train()
        super().finish(timeout_s=timeout_s)

    def close(self, *, exchange: bool = True) -> None:
        """Leave the run, in either mode; see JoinedOptimizer."""
        self.train()
        super().close(exchange=exchange)

    def _take_center(self) -> None:
        for center in self._evaluated():
            center.take()

    def _evaluated(self) -> Iterator[Center]:
        """Iterate over what is evaluated: parameters, then buffers if they are exchanged."""
        raise NotImplementedError

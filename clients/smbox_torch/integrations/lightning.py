"""Adapter for Lightning: a callback that makes a Trainer one worker of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from functools import partial
from typing import Any

from smbox.box import Box
from smbox.errors import ConfigError, SmboxError
from smbox_torch.optimizer.wrapper import BoxOptimizer
from smbox_torch.world import World

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
    from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy
    from lightning.pytorch.utilities import rank_zero_only
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "smbox_torch.integrations.lightning needs lightning: pip install 'smbox[frameworks]'",
        name="lightning",
    ) from error

__all__ = ["BoxCallback"]


class BoxCallback(Callback):
    """Makes a Trainer with one device one worker of a run. All workers validate.

    Only rank 0 is ``is_global_zero``: it saves, logs and shows progress. Construct the callback
    before Lightning's loggers write.

    Args:
        algorithm: an algorithm with a center, for example EASGD; wraps the module's optimizers.
        box: the memory.
        name: name of the run; the second optimizer's is NAME.1, and so on.
        finish_timeout_s: longest wait for the other workers at the end, in seconds; None: wait
            as long as one that has not finished is alive.
        **options: more arguments of the algorithm; ``model`` is the module, for the first
            optimizer.
    """

    optimizers: Sequence[BoxOptimizer] = ()
    _has_finished = False  # in this ``fit``
    _center: dict[str, Any] | None = None  # at the exception that ended ``fit``

    def __init__(
        self,
        algorithm: Callable[..., BoxOptimizer],
        box: Box,
        name: str,
        *,
        finish_timeout_s: float | None = None,
        **options: Any,
    ) -> None:
        self._finish_timeout_s = finish_timeout_s
        self._wrap = algorithm, box, name, options
        rank_zero_only.rank = World.from_env(os.environ).rank  # loggers begin before ``setup``

    def setup(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """Move before the other callbacks, which may average the weights that they find.

        The Trainer gets the rank of this worker; its ``world_size`` stays 1.
        """
        trainer.callbacks.remove(self)
        trainer.callbacks.insert(0, self)
        strategy, rank = trainer.strategy, World.from_env(os.environ).rank
        if isinstance(strategy, SingleDeviceStrategy) and strategy.global_rank != rank:
            strategy.global_rank = rank
            kind = type(strategy)  # it says that a single device is always the first process
            strategy.__class__ = type(kind.__name__, (kind,), {"is_global_zero": False})

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Wrap the optimizers, before Lightning loads a checkpoint.

        Raises:
            ConfigError: the strategy is one for several devices, or the Trainer searches a
                learning rate or batch size; nothing was changed.
        """
        strategy = trainer.strategy
        if not isinstance(strategy, SingleDeviceStrategy):
            raise ConfigError('a worker must be a Trainer with devices=1 and strategy="auto"')
        if any(isinstance(c, BatchSizeFinder | LearningRateFinder) for c in trainer.callbacks):
            raise ConfigError(
                "the trial steps of a search (Tuner, LearningRateFinder, BatchSizeFinder) would"
                " be steps of the run: search in a Trainer without this callback"
            )
        self.leave()  # what an earlier fit joined
        self._center, self._has_finished = None, False
        algorithm, box, name, options = self._wrap
        options = {"model": pl_module, **options}
        for index, each in enumerate(strategy.optimizers):
            run = f"{name}.{index}" if index else name
            self.optimizers = [*self.optimizers, algorithm(each, box, run, **options)]
            options["model"] = None  # the first one has all buffers
        strategy.optimizers = [*self.optimizers]
        # on_save_checkpoint would miss checkpoints that have only weights
        vars(strategy)["lightning_module_state_dict"] = partial(self._center_of, strategy)
        self._max_epochs = trainer.max_epochs

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        """End the run before an epoch that a callback added, as SWA does for batch norms."""
        self.on_train_batch_start()
        if self.optimizers and trainer.current_epoch == self._max_epochs:
            self.on_train_end()
            trainer.strategy.optimizers = [each.inner for each in self.optimizers]

    def on_validation_start(self, *_: Any) -> None:
        """Load the center into the model; it stays there for a checkpoint that may follow."""
        for each in self.optimizers:
            each.eval()

    def on_train_batch_start(self, *_: Any) -> None:
        """Restore the worker's own values, which callbacks may average."""
        for each in self.optimizers:
            each.train()

    on_train_epoch_end = on_train_batch_start

    def on_train_end(self, *_: Any) -> None:
        """Wait for the others, and leave the center in the model; raises as ``finish``."""
        for each in () if self._has_finished else self.optimizers:
            each.finish(timeout_s=self._finish_timeout_s)
        self._has_finished = True

    on_fit_end = on_train_end  # without steps left to train there is no on_train_end

    def on_exception(self, trainer: Trainer, *_: Any) -> None:
        """Leave the run, so that no worker waits; a checkpoint that follows has the center."""
        if self.optimizers:
            try:
                with suppress(SmboxError):  # the exception may be the loss of the memory
                    self._center = deepcopy(self._center_of(trainer.strategy))
            finally:  # a device without room for the batch has none for the copy, either
                self.leave()

    def leave(self) -> None:
        """Leave the run without an exchange; another ``fit`` joins again."""
        left, self.optimizers = self.optimizers, ()
        with ExitStack() as stack:
            for each in left:
                stack.callback(each.close, exchange=False)

    def _center_of(self, strategy: Strategy) -> Any:
        """Return the module's state with the center, for a checkpoint."""
        if self._center is not None:
            return self._center
        self.on_validation_start()  # the next batch of the training restores the own values
        return type(strategy).lightning_module_state_dict(strategy)

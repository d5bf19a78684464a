"""Adapter for the Hugging Face Trainer: wraps its optimizer, and lets only rank 0 save.

Trainer calls its optimizer's ``eval`` before an evaluation and ``train`` before a step. Rank 0
saves the center, and a callback leaves the center in the model at the end. Each call of
``train`` joins the run, and leaves it at the end or after an exception.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from smbox.box import Box
from smbox.errors import ConfigError
from smbox_torch.integrations.accelerate import check, number
from smbox_torch.optimizer.wrapper import BoxOptimizer
from smbox_torch.world import World

try:
    from transformers import Trainer, TrainerCallback, set_seed
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "smbox_torch.integrations.transformers needs transformers:"
        " pip install 'smbox[frameworks]'",
        name="transformers",
    ) from error

__all__ = ["attach"]


def attach(
    trainer: Trainer,
    algorithm: Callable[..., BoxOptimizer],
    box: Box,
    name: str,
    *,
    finish_timeout_s: float | None = None,
    **options: Any,
) -> None:
    """Make a trainer one worker of a run; call it once, before ``trainer.train``.

    Each worker's seed is the trainer's plus the rank, and so is its data seed, if there is one.
    All workers evaluate. Rank 0 prints and saves, and all workers resume from its checkpoint.

    Args:
        trainer: a Trainer, or an instance of a derived class.
        algorithm: an algorithm with a center, such as EASGD; wraps the trainer's optimizer.
        box: the memory.
        name: name of the run.
        finish_timeout_s: longest wait for the other workers at the end, in seconds; None: wait
            as long as one that has not finished is alive.
        **options: more arguments of the algorithm; ``model`` is the trainer's model.

    Raises:
        ConfigError: the trainer was attached before, the processes of transformers communicate
            with each other, or the trainer would save or load the best model, which differs
            among workers; nothing was changed.
    """
    args, rank = trainer.args, World.from_env(os.environ).rank
    _check(trainer)
    number(trainer.accelerator)
    args.seed += rank
    if args.data_seed is not None:
        args.data_seed += rank
    set_seed(args.seed)
    callback = BoxCallback(finish_timeout_s)
    trainer.callback_handler.callbacks.insert(0, callback)  # others then find the center
    create, train = trainer.create_optimizer, trainer.train

    def create_wrapped(model: Any = None) -> Any:
        create() if model is None else create(model)  # a derived class may take no model
        if callback.optimizer is None:
            owner = trainer.model if model is None else model
            made = algorithm(trainer.optimizer, box, name, model=owner, **options)
            callback.optimizer = trainer.optimizer = made
        return trainer.optimizer

    def train_and_leave(*args: Any, **kwargs: Any) -> Any:
        if trainer.hp_search_backend is not None:
            raise ConfigError("trials would share a center: use a Trainer that is not attached")
        try:
            return train(*args, **kwargs)
        finally:
            callback.leave(trainer)

    trainer.create_optimizer, trainer.train = create_wrapped, train_and_leave
    trainer.save_model = partial(callback.save, trainer.save_model)
    if rank:
        _keep_from_saving(trainer)


def _keep_from_saving(trainer: Trainer) -> None:
    """Let a rank above 0 neither save nor load the random numbers of rank 0."""
    trainer._load_rng_state = lambda _: None  # noqa: SLF001 - Trainer has no other hook
    trainer._save_checkpoint = lambda *_, **__: None  # noqa: SLF001
    trainer.callback_handler.on_save = lambda _, __, control: control
    for each in trainer.callback_handler.callbacks:
        if (manager := getattr(each, "jit_manager", None)) is not None:
            manager.execute_jit_checkpoint = lambda: None  # it makes a folder


def _check(trainer: Trainer) -> None:
    """Raise ConfigError if a trainer cannot be attached; see ``attach``."""
    check(trainer.accelerator)
    if any(isinstance(each, BoxCallback) for each in trainer.callback_handler.callbacks):
        raise ConfigError(
            "this trainer was attached before: call train() again, or make a new Trainer"
        )
    if trainer.args.load_best_model_at_end or trainer.args.save_strategy == "best":
        raise ConfigError(
            "the best model differs among workers: save by steps or epochs, without"
            " load_best_model_at_end"
        )


class BoxCallback(TrainerCallback):
    """The first callback of one worker: the others find the center in on_save and at the end.

    Args:
        finish_timeout_s: see ``attach``.
    """

    optimizer: BoxOptimizer | None = None

    def __init__(self, finish_timeout_s: float | None) -> None:
        self._finish_timeout_s = finish_timeout_s

    def leave(self, trainer: Trainer) -> None:
        """Leave the run, so that no worker waits for this one; the trainer may join again."""
        if self.optimizer is not None:
            left, self.optimizer = self.optimizer, None
            trainer.optimizer = left.inner  # the next evaluation uses the model as it is
            left.close(exchange=False)

    def save(self, save: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Save the center, and restore the worker's own values if the model had them."""
        if not self.optimizer or not (own := self.optimizer._own) or own.are_saved:  # noqa: SLF001
            return save(*args, **kwargs)
        self.optimizer.eval()
        save(*args, **kwargs)
        return self.optimizer.train()

    def on_train_begin(self, *_: Any, train_dataloader: Any, **__: Any) -> None:
        """Add the rank to the seed of a sampler that gets none from Trainer."""
        sampler: Any = getattr(train_dataloader, "batch_sampler", None)
        if getattr(sampler, "dp_size", None) == 1:  # of transformers' "batch_rebalance"
            sampler.seed += World.from_env(os.environ).rank

    def on_save(self, *_: Any, **__: Any) -> None:
        """Leave the center in the model for callbacks that save it, too."""
        if self.optimizer is not None:
            self.optimizer.eval()  # the next step of the training calls train()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Wait for the others, and leave the center in the model; raises as ``finish``."""
        if self.optimizer is not None:
            self.optimizer.finish(timeout_s=self._finish_timeout_s)

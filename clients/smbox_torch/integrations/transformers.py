"""Adapter for the Hugging Face Trainer: wraps its optimizer, and lets only rank 0 save.

Trainer calls its optimizer's ``eval`` before an evaluation and ``train`` before a step. A
callback lets rank 0 save the center, and leaves the center in the model at the end. Each call
of ``train`` joins the run, and leaves it at the end or after an exception.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from smbox.box import Box
from smbox.errors import ConfigError
from smbox_torch.integrations.accelerate import check, number
from smbox_torch.optimizer.wrapper import BoxOptimizer
from smbox_torch.world import World

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, set_seed
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
    trainer.add_callback(callback)
    create, train = trainer.create_optimizer, trainer.train

    def create_wrapped(model: Any = None) -> Any:
        create() if model is None else create(model)  # a derived class may take no model
        if callback.optimizer is None:
            owner = trainer.model if model is None else model
            made = algorithm(trainer.optimizer, box, name, model=owner, **options)
            callback.optimizer = trainer.optimizer = made
        return trainer.optimizer

    def train_and_leave(*args: Any, **kwargs: Any) -> Any:
        _demand_no_search(trainer)
        trainer.add_callback(trainer.pop_callback(callback))  # it comes after all others
        try:
            return train(*args, **kwargs)
        finally:
            callback.leave(trainer)

    trainer.create_optimizer, trainer.train = create_wrapped, train_and_leave
    if rank:  # a checkpoint has the random numbers of rank 0
        trainer._load_rng_state = lambda _: None  # noqa: SLF001 - Trainer has no other hook


def _check(trainer: Trainer) -> None:
    """Raise ConfigError if a trainer cannot be attached; see ``attach``."""
    check(trainer.accelerator)
    if any(isinstance(each, BoxCallback) for each in trainer.callback_handler.callbacks):
        raise ConfigError(
            "this trainer was attached before: call train() again, or make a new Trainer"
        )
    args = trainer.args
    if args.load_best_model_at_end or args.save_strategy == "best":
        raise ConfigError(
            "the best model differs among workers: save by steps or epochs, without"
            " load_best_model_at_end"
        )


def _demand_no_search(trainer: Trainer) -> None:
    if trainer.hp_search_backend is not None:
        raise ConfigError(
            "each trial of a hyperparameter search would begin with the center of the last one:"
            " search with a Trainer that is not attached"
        )


class BoxCallback(TrainerCallback):
    """The callback of one worker: saves the center, and waits for the others at the end.

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

    def on_step_end(
        self, _: Any, __: Any, control: TrainerControl, *, optimizer: Any, **___: Any
    ) -> None:
        """Load the center into the model before it is saved; let only rank 0 save."""
        if World.from_env(os.environ).rank:
            control.should_save = False
        elif control.should_save:
            optimizer.eval()  # the next step of the training calls train()

    on_epoch_end = on_log = on_evaluate = on_step_end

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Wait for the others, and leave the center in the model; raises as ``finish``."""
        if self.optimizer is not None:
            self.optimizer.finish(timeout_s=self._finish_timeout_s)

"""Hugging Face Trainer: its optimizer wrapped where it makes it, and who evaluates and saves.

Trainer calls its optimizer's ``eval`` before an evaluation and ``train`` before a step. A
callback does the rest: the center is saved, by rank 0, and the model is the center in the end.
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
    """Let a trainer be one worker of a run; call it before ``trainer.train``.

    Each worker's seed is the trainer's plus its rank. All workers evaluate; rank 0 prints and
    saves, and all resume from its checkpoint.

    Args:
        trainer: a Trainer, or of a class derived from it.
        algorithm: one with a center, as EASGD; wraps the optimizer that the trainer makes.
        box: the memory.
        name: of the run.
        finish_timeout_s: longest wait for the others at the end; None: as long as one of them
            lives that has not come.
        **options: further ones of the algorithm; ``model`` is the trainer's.

    Raises:
        ConfigError: transformers has joined its processes by itself, or the trainer is to
            save or load what is best: workers would differ; nothing was changed.
    """
    args = trainer.args
    check(trainer.accelerator)
    if args.load_best_model_at_end or args.save_strategy == "best":
        raise ConfigError(
            "workers find different models the best: save by steps or epochs, and leave"
            " load_best_model_at_end out"
        )
    number(trainer.accelerator)
    args.seed += World.from_env(os.environ).rank
    set_seed(args.seed)
    callback = BoxCallback(finish_timeout_s)
    trainer.add_callback(callback)
    create = trainer.create_optimizer

    def create_wrapped(model: Any = None) -> Any:
        made = create(model)
        if callback.optimizer is None:
            owner = trainer.model if model is None else model
            made = algorithm(made, box, name, model=owner, **options)
            callback.optimizer = trainer.optimizer = made
        return made

    trainer.create_optimizer = create_wrapped


class BoxCallback(TrainerCallback):
    """What a worker does at the steps and at the end of a trainer.

    Args:
        finish_timeout_s: as of ``attach``.
    """

    optimizer: BoxOptimizer | None = None

    def __init__(self, finish_timeout_s: float | None) -> None:
        self._finish_timeout_s = finish_timeout_s

    def on_step_end(
        self, _: Any, __: Any, control: TrainerControl, *, optimizer: Any, **___: Any
    ) -> None:
        """Put the center into the model that is saved next; let only rank 0 save."""
        if World.from_env(os.environ).rank:
            control.should_save = False
        elif control.should_save:
            optimizer.eval()  # the next step of the training calls train()

    on_epoch_end = on_step_end

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Meet the others, and leave the center in the model; raises as ``finish``."""
        if self.optimizer is not None:
            self.optimizer.finish(timeout_s=self._finish_timeout_s)

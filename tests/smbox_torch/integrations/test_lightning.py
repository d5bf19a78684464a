"""Lightning's Trainer as a worker that validates, loses its memory, or has rank 1."""

from __future__ import annotations

from collections.abc import Callable

WORKERS = """
import os
from pathlib import Path
import torch
import smbox
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from smbox_torch import EASGD
from smbox_torch.integrations.lightning import BoxCallback

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.center = self.layer.weight.detach().clone()  # until the first exchange

    def training_step(self, batch, _):
        return self.layer(batch).square().sum()

    def validation_step(self, *_):
        assert torch.equal(self.layer.weight, self.center)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Cuts(Callback):
    def on_train_batch_end(self, *_):
        box.close()
        raise KeyError("of the loop")

class Full(Callback):
    def on_train_batch_end(self, _, model, *__):
        model.state_dict = self.fail
        raise KeyError("of the loop")

    def fail(self, *_, **__):
        raise MemoryError("of the copy")

def fit(workers, *more, logger=False):
    callbacks.append(BoxCallback(EASGD, box, "run", workers=workers, period=8))
    trainer = Trainer(accelerator="cpu", max_epochs=1, logger=logger, enable_progress_bar=False,
                      enable_model_summary=False, enable_checkpointing=False,
                      callbacks=[callbacks[-1], *more])
    data = torch.utils.data.DataLoader(torch.ones(1, 2))
    trainer.fit(Model(), data, data)
    return trainer

callbacks = []
with smbox.local("64MiB") as box, pytest.raises(KeyError, match="of the loop"):
    fit(1, Cuts())
with smbox.local("64MiB") as box:
    with pytest.raises(MemoryError, match="of the copy"):
        fit(1, Full())
    with smbox.join(box, "run") as member:
        assert member.rank == 0  # the worker has left
os.environ.update(SMBOX_RANK="1", SMBOX_WORLD_SIZE="2")
with smbox.local("64MiB") as box:
    log = CSVLogger("logs", version=0)
    trainer = fit(smbox.join(box, "run", rank=1), logger=log)
    trainer.save_checkpoint("saved.ckpt")
    Path("of_rank_0.ckpt").touch()
    trainer.strategy.remove_checkpoint("of_rank_0.ckpt")
assert (trainer.is_global_zero, trainer.global_rank, trainer.world_size) == (False, 1, 1)
assert not Path("saved.ckpt").exists()
assert Path("of_rank_0.ckpt").exists()
assert not Path("logs").exists()  # rank 0 writes there
"""


def test_it_validates_the_center_hides_no_error_and_saves_and_logs_only_at_rank_0(
    run: Callable[..., None],
):
    run(WORKERS, "lightning")


SHOWS = """
from contextlib import redirect_stdout
from io import StringIO

class Tested(Model):
    def test_step(self, *_):
        self.log("loss", 1.0)

os.environ.update(SMBOX_RANK="1", SMBOX_WORLD_SIZE="2")
with smbox.local("64MiB") as box, redirect_stdout(StringIO()) as shown:
    callback = BoxCallback(EASGD, box, "run", workers=smbox.join(box, "run", rank=1))
    trainer = Trainer(accelerator="cpu", max_epochs=1, logger=False, callbacks=[callback],
                      enable_checkpointing=False)
    data = torch.utils.data.DataLoader(torch.ones(4, 2))
    trainer.fit(Tested(), data)
    trainer.test(Tested(), data)
assert not shown.getvalue(), shown.getvalue()
"""


def test_only_rank_0_shows_progress_a_summary_and_results(run: Callable[..., None]):
    begin, _, _ = WORKERS.partition("class Cuts")
    run(begin + SHOWS, "lightning")


REFUSED = """
from lightning.pytorch.callbacks import LearningRateFinder

with smbox.local("64MiB") as box, pytest.raises(smbox.ConfigError, match="trial steps of a"):
    callback = BoxCallback(EASGD, box, "run", workers=1)
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False,
                      callbacks=[LearningRateFinder(), callback])
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(1, 2)))
os.environ.update(SMBOX_RANK="1", SMBOX_WORLD_SIZE="2")
with smbox.local("64MiB") as box, pytest.raises(smbox.ConfigError, match='strategy="auto"'):
    callback = BoxCallback(EASGD, box, "run", workers=smbox.join(box, "run", rank=1))
    trainer = Trainer(accelerator="cpu", devices=1, strategy="ddp", logger=False,
                      enable_progress_bar=False, enable_model_summary=False,
                      enable_checkpointing=False, callbacks=[callback])
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(1, 2)))
"""


def test_a_search_and_a_strategy_for_several_devices_are_refused(run: Callable[..., None]):
    """The rank of such a strategy cannot be set, so every worker would save."""
    begin, _, _ = WORKERS.partition("class Cuts")
    run(begin + REFUSED, "lightning")

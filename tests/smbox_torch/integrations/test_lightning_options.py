"""Lightning's options that save or average weights, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable

BEGIN = """
import os
from pathlib import Path
import torch
import smbox
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from smbox_torch import EASGD
from smbox_torch.integrations.lightning import BoxCallback

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(2, 1)
        self.first = self.layer.weight.detach().clone()

    def training_step(self, batch, _):
        return self.layer(batch).square().sum()

    validation_step = training_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.utils.data.DataLoader(torch.ones(2, 2))

def fit(*callbacks, workers=1, saves=False):
    wrapping = [BoxCallback(EASGD, box, "run", workers=workers, period=8)] if workers else []
    trainer = Trainer(accelerator="cpu", max_epochs=2, logger=False, enable_progress_bar=False,
                      enable_model_summary=False, enable_checkpointing=saves,
                      callbacks=[*wrapping, *callbacks])
    model = Model()
    trainer.fit(model, data, data)
    return model, trainer
"""

WEIGHTS = """
Model.get_extra_state = lambda _: {"of": "the script"}

class Saves(Callback):
    def on_train_batch_end(self, trainer, *_):
        step = trainer.global_step
        trainer.save_checkpoint(f"{step}.ckpt", weights_only=step < 4)

with smbox.local("64MiB") as box:
    model, _ = fit(Saves())  # without an exchange before the end
for step in (1, 2, 3, 4):
    saved = torch.load(f"{step}.ckpt", weights_only=False)["state_dict"]
    assert torch.equal(saved["layer.weight"], model.first), step
    assert saved["_extra_state"] == {"of": "the script"}
"""

LINK = """
os.environ.update(SMBOX_RANK="1", SMBOX_WORLD_SIZE="2")
with smbox.local("64MiB") as box:
    fit(ModelCheckpoint(".", save_last="link"), workers=smbox.join(box, "run", rank=1),
        saves=True)
assert not [*Path().glob("*.ckpt")]
"""

EPOCHS = """
class Looks(Callback):
    def on_train_batch_end(self, _, model, *__):
        self.own = model.layer.weight.detach().clone()

    def on_train_epoch_end(self, _, model):
        assert torch.equal(model.layer.weight, self.own)

    def on_train_epoch_start(self, trainer, model):
        if trainer.current_epoch:
            assert torch.equal(model.layer.weight, self.own)

with smbox.local("64MiB") as box:
    # it validates between the last batch of an epoch and its end
    averaged, _ = fit(Looks(), EMAWeightAveraging(decay=0.5, update_starting_at_epoch=0))
plain, _ = fit(EMAWeightAveraging(decay=0.5, update_starting_at_epoch=0), workers=None)
assert torch.equal(averaged.layer.weight, plain.layer.weight)
"""


SEVERAL = """
class Pair(Model):
    automatic_optimization = False
    shared = False

    def __init__(self):
        super().__init__()
        self.other = torch.nn.Linear(2, 1)
        self.begun = {name: each.clone() for name, each in self.state_dict().items()}

    def training_step(self, batch, _):
        for each, layer in zip(self.optimizers(), (self.layer, self.other), strict=True):
            each.zero_grad()
            self.manual_backward(layer(batch).square().sum())
            each.step()

    def configure_optimizers(self):
        layers = self.layer, self.layer if self.shared else self.other
        return [torch.optim.SGD(each.parameters(), lr=0.1) for each in layers]

class Saves(Callback):
    def on_train_epoch_end(self, trainer, model):
        trainer.save_checkpoint("saved.ckpt")

Model = Pair
with smbox.local("64MiB") as box:
    model, _ = fit(Saves())
    saved = torch.load("saved.ckpt", weights_only=False)["state_dict"]
    for name, ended in model.state_dict().items():
        assert torch.equal(saved[name], model.begun[name]), name  # the center, before finish
        assert not torch.equal(ended, model.begun[name]), name
        region = "run.float32" if name.startswith("layer") else "run.1.float32"
        assert ended.flatten()[0] in box.attach(region).get(), name
    Pair.shared = True
    with pytest.raises(ConfigError, match="share"):
        fit()
    with smbox.join(box, "run") as member:
        assert member.rank == 0  # the first optimizer has left
"""


def test_a_checkpoint_of_weights_only_has_the_center(run: Callable[..., None]):
    run(BEGIN + WEIGHTS, "lightning")


def test_only_rank_0_links_the_last_checkpoint(run: Callable[..., None]):
    run(BEGIN + LINK, "lightning")


def test_callbacks_average_the_own_values_at_both_ends_of_an_epoch(run: Callable[..., None]):
    run(BEGIN + EPOCHS, "lightning")


def test_each_of_several_optimizers_has_a_run(run: Callable[..., None]):
    run(BEGIN + SEVERAL, "lightning")

"""A worker under Lightning's StochasticWeightAveraging, which writes weights and statistics."""

from __future__ import annotations

from collections.abc import Callable

AVERAGE = """
import torch
import smbox
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging
from smbox_torch import Downpour
from smbox_torch.integrations.lightning import BoxCallback

class Model(LightningModule):
    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(2, 1))

    def training_step(self, batch, _):
        return self.layers(batch).square().sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def averaged(layers, *wrapping):
    torch.manual_seed(0)
    averaging = StochasticWeightAveraging(swa_lrs=0.1, swa_epoch_start=1)
    trainer = Trainer(accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, enable_model_summary=False,
                      callbacks=[averaging, *wrapping])
    model = Model(*layers())
    trainer.fit(model, torch.utils.data.DataLoader(torch.eye(2).repeat(2, 1), 2))
    return torch.cat([value.flatten() for value in model.state_dict().values()])

for layers in (lambda: [], lambda: [torch.nn.BatchNorm1d(2)]):
    with smbox.local("64MiB") as box:
        found = averaged(layers, BoxCallback(Downpour, box, "run", workers=1))
    torch.testing.assert_close(found, averaged(layers))
"""


def test_weights_that_another_callback_averages_stay_in_the_model(run: Callable[..., None]):
    run(AVERAGE, "lightning")

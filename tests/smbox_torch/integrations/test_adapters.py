"""What the adapters refuse, each in a process of its own: frameworks keep much per process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from smbox_torch import integrations

REFUSALS = {
    "an accelerate that has joined its processes": (
        "accelerate",
        """
from smbox_torch.integrations.accelerate import connect

class Joined:
    num_processes = 2

with pytest.raises(ConfigError, match="average beside smbox"):
    connect(Joined())
""",
    ),
    "a Trainer that keeps what is best": (
        "transformers",
        """
import torch
from transformers import Trainer, TrainingArguments
from smbox_torch import EASGD
from smbox_torch.integrations.transformers import attach

class Model(torch.nn.Linear):
    def forward(self, x, labels=None):
        return {"loss": super().forward(x).sum()}

for saving in ("best", "steps"):
    settings = TrainingArguments("out", use_cpu=True, report_to="none", eval_strategy="steps",
                                 metric_for_best_model="loss", save_strategy=saving,
                                 load_best_model_at_end=saving == "steps")
    trainer = Trainer(Model(2, 1), settings, train_dataset=[], eval_dataset=[])
    seed = settings.seed
    with pytest.raises(ConfigError, match="best"):
        attach(trainer, EASGD, ModelBox(), "run")
    assert settings.seed == seed
""",
    ),
    "a Trainer that is attached already, or searches": (
        "transformers",
        """
import torch
from transformers import Trainer, TrainingArguments
from smbox_torch import EASGD
from smbox_torch.integrations.transformers import attach

settings = TrainingArguments("out", use_cpu=True, report_to="none", save_strategy="no")
trainer = Trainer(torch.nn.Linear(2, 1), settings, train_dataset=[])
attach(trainer, EASGD, ModelBox(), "run")
with pytest.raises(ConfigError, match="attached before"):
    attach(trainer, EASGD, ModelBox(), "other")
trainer.hp_search_backend = "optuna"  # as hyperparameter_search sets it
with pytest.raises(ConfigError, match="is not attached"):
    trainer.train(trial={})
""",
    ),
    "a Lightning module without an optimizer": (
        "lightning",
        """
import torch
from lightning.pytorch import LightningModule, Trainer
from smbox_torch import EASGD
from smbox_torch.integrations.lightning import BoxCallback

class Without(LightningModule):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, _):
        pass

    def configure_optimizers(self):
        return None

box = ModelBox()
trainer = Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
                  enable_progress_bar=False, enable_model_summary=False,
                  callbacks=[BoxCallback(EASGD, box, "run")])
with pytest.raises(ConfigError, match="none of the optimizer's parameters"):
    trainer.fit(Without(), [torch.zeros(1, 2)])
assert box.regions() == []
""",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_it_refuses(case: str, run: Callable[..., None]):
    name, code = REFUSALS[case]
    run(code, name)


@pytest.mark.parametrize("name", ["accelerate", "lightning", "ray", "transformers"])
def test_a_missing_framework_is_named_with_its_cure(
    name: str, run: Callable[..., None], preloaded: str
):
    extra = "ray" if name == "ray" else "frameworks"
    code = f"""
sys.modules[{name!r}] = None
with pytest.raises(ModuleNotFoundError, match=r"smbox\\[{extra}\\]") as raised:
    import smbox_torch.integrations.{name}
assert raised.value.name == {name!r}
"""
    run(code, *["accelerate"] * (name == "transformers"), python=preloaded)


def test_the_package_needs_no_framework(run: Callable[..., None]):
    assert integrations.__doc__
    frameworks = ("accelerate", "lightning", "ray", "transformers")
    code = f"import smbox_torch.integrations\nassert not set({frameworks!r}) & set(sys.modules)"
    run(code, python=sys.executable)

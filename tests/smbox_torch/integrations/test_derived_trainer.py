"""A Trainer of a derived class, in a process of its own: frameworks keep much per process."""

from __future__ import annotations

from collections.abc import Callable

DERIVED = """
import torch
from transformers import Trainer, TrainingArguments
import smbox
from smbox_torch import Downpour
from smbox_torch.integrations.transformers import attach

class Model(torch.nn.Linear):
    def forward(self, x):
        return {"loss": super().forward(x).square().sum()}

class Own(Trainer):
    def create_optimizer(self):  # as Trainer calls it, which needs no result
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)

settings = TrainingArguments("out", use_cpu=True, report_to="none", save_strategy="no",
                             disable_tqdm=True, max_steps=2, lr_scheduler_type="constant")
with smbox.local("64MiB") as box:
    plain, worker = Model(2, 1), Model(2, 1)
    worker.load_state_dict(plain.state_dict())
    for model in (plain, worker):
        trainer = Own(model, settings, train_dataset=[{"x": torch.ones(2)}] * 4)
        if model is worker:
            attach(trainer, Downpour, box, "run", workers=1)
        trainer.train()
    assert torch.equal(worker.weight, plain.weight)
    assert [each.name for each in box.regions() if each.name.startswith("run")]
"""


def test_a_derived_trainer_creates_its_own_optimizer(run: Callable[..., None]):
    run(DERIVED, "transformers")

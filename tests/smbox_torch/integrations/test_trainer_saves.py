"""Who saves what in a Trainer, whichever way it is asked to; in processes of their own."""

from __future__ import annotations

from collections.abc import Callable

BEGIN = """
import os
from pathlib import Path
import torch
import smbox
from safetensors.torch import load_file
from transformers import Trainer, TrainerCallback, TrainingArguments
from smbox_torch import EASGD
from smbox_torch.integrations.transformers import attach

class Model(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 1)
        self.first = self.weight.detach().clone()  # the center until the end

    def forward(self, x):
        return {"loss": super().forward(x).square().sum()}

def train(*callbacks, rank=0, **options):
    model, data = Model(), [{"x": torch.ones(2)}] * 24
    settings = TrainingArguments("out", use_cpu=True, report_to="none", disable_tqdm=True,
                                 optim="sgd", learning_rate=0.1, max_steps=3, **options)
    trainer = Trainer(model, settings, train_dataset=data, callbacks=[*callbacks])
    for each in callbacks:
        each.trainer = trainer
    with smbox.local("64MiB") as box:
        member = smbox.join(box, "run", rank=rank)
        attach(trainer, EASGD, box, "run", workers=member, period=8)
        trainer.train()
    return model

def saved(folder):
    return load_file(f"out/{folder}/model.safetensors")["weight"]
"""

OTHERS = """
class Saves(TrainerCallback):
    def on_step_end(self, _, state, __, *, model, **___):
        own = model.weight.detach().clone()
        self.trainer.save_model(f"out/step-{state.global_step}")
        assert torch.equal(model.weight, own)

    def on_save(self, _, __, ___, *, model, **____):
        assert torch.equal(model.weight, model.first)

    def on_train_end(self, _, __, ___, *, model, **____):
        self.trainer.save_model("out/end")

model = train(Saves(), save_strategy="steps", save_steps=2)
for folder in ("step-1", "step-2", "step-3", "checkpoint-2"):
    assert torch.equal(saved(folder), model.first), folder
assert torch.equal(saved("end"), model.weight)  # the final center
"""

JUST_IN_TIME = """
class Asks(TrainerCallback):
    def __init__(self, event):
        setattr(self, event, self.ask)

    def ask(self, _, state, *__, **___):
        if state.global_step == 1:
            for each in self.trainer.callback_handler.callbacks:
                if hasattr(each, "jit_manager"):  # as after SIGTERM
                    each.jit_manager.is_checkpoint_requested = True

class Steps(TrainerCallback):
    def on_train_end(self, _, state, *__, **___):
        assert state.global_step == 2

for event in ("on_step_begin", "on_step_end"):  # before a step, and at the next begin
    model = train(Asks(event), Steps(), save_strategy="no", enable_jit_checkpoint=True)
    assert torch.equal(saved("checkpoint-1"), model.first), event
    Path("out/checkpoint-1/model.safetensors").unlink()
os.environ.update(SMBOX_RANK="1", SMBOX_WORLD_SIZE="2")
os.rename("out", "rank0")
train(Asks("on_step_end"), Steps(), rank=1, save_strategy="no", enable_jit_checkpoint=True)
assert not [*Path("out").glob("checkpoint*")]
"""


def test_others_that_save_find_the_center(run: Callable[..., None]):
    run(BEGIN + OTHERS, "transformers")


def test_a_just_in_time_checkpoint_has_the_center_of_rank_0(run: Callable[..., None]):
    run(BEGIN + JUST_IN_TIME, "transformers")

"""How the frameworks' trainers join and leave a run, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

BEGIN_EASGD = "import torch\nimport smbox\nfrom smbox_torch import EASGD\n"

MODELS = {
    "lightning": """
from lightning.pytorch import Callback, LightningModule, Trainer
from smbox_torch.integrations.lightning import BoxCallback

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, _):
        return self.layer(batch).square().sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Fails(Callback):
    def on_train_batch_end(self, *_):
        raise KeyError("of the loop")
""",
    "transformers": """
from transformers import Trainer, TrainerCallback, TrainingArguments
from smbox_torch.integrations.transformers import attach

class Model(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 1)

    def forward(self, x):
        return {"loss": super().forward(x).square().sum()}

class Fails(TrainerCallback):
    def on_step_end(self, *_, **__):
        raise KeyError("of the loop")
""",
}
"""A model, and a callback that fails."""

ENDS = {
    "lightning": """
def train(name, **options):
    callback = BoxCallback(EASGD, box, name, workers=2, **options)
    Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
            callbacks=[callback]).fit(Model(), torch.utils.data.DataLoader(torch.ones(2, 2)))
""",
    "transformers": """
def train(name, **options):
    settings = TrainingArguments("out", use_cpu=True, report_to="none", save_strategy="no",
                                 disable_tqdm=True, max_steps=2)
    trainer = Trainer(Model(), settings, train_dataset=[{"x": torch.ones(2)}] * 4)
    attach(trainer, EASGD, box, name, workers=2, **options)
    trainer.train()
""",
}
"""Train the one worker that comes first of two, under a name."""

SLOW = """
import logging, threading, warnings
import torch
import smbox
from smbox import meeting
from smbox.errors import RequestTimeoutError
from smbox_torch import EASGD
warnings.simplefilter("ignore")
meeting.MEET_TIMEOUT_S, meeting.WARNING_INTERVAL_S = 0.1, 0.5

class Told(logging.Handler):
    def emit(self, record):
        told.append(record.getMessage())
        threading.Thread(target=slow.leave).start()

told = []
logging.getLogger("smbox.meeting").addHandler(Told())
with smbox.local("64MiB") as box:
    slow = smbox.join(box, "patient", rank=1, expected=2, lease_s=60.0)
    train("patient")  # the other one comes behind the limit for those who never came
    assert "waits for rank 1 (host" in told[0], told
    slow = smbox.join(box, "hasty", rank=1, expected=2, lease_s=60.0)
    with pytest.raises(RequestTimeoutError, match="rank 1"):
        train("hasty", finish_timeout_s=0.1)
"""

TRAINERS = {
    "lightning": """
class Script:
    def __init__(self, name, *more):
        torch.manual_seed(0)
        self.model, self.fails = Model(), more
        callbacks = [BoxCallback(Downpour, box, name, workers=1)] if name else []
        self.trainer = Trainer(
            accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
            callbacks=[*callbacks, *more])

    def train(self):
        self.trainer.fit(self.model, torch.utils.data.DataLoader(torch.ones(2, 2)))
        self.trainer.fit_loop.max_epochs += 1

    def mend(self):
        self.trainer.callbacks.remove(*self.fails)

    @property
    def weight(self):
        return self.model.layer.weight
""",
    "transformers": """
class Script:
    def __init__(self, name, *more):
        torch.manual_seed(0)
        settings = TrainingArguments("out", use_cpu=True, report_to="none", save_strategy="no",
                                     disable_tqdm=True, max_steps=2, optim="sgd")
        data = [{"x": torch.ones(2)}] * 4
        self.trainer = Trainer(Model(), settings, train_dataset=data, callbacks=[*more])
        self.fails = more
        if name:
            attach(self.trainer, Downpour, box, name, workers=1)

    def train(self):
        self.trainer.train()

    def mend(self):
        self.trainer.remove_callback(*self.fails)

    @property
    def weight(self):
        return self.trainer.model.weight
""",
}

AGAIN = """
with smbox.local("64MiB") as box:
    plain, twice = Script(None), Script("twice")
    for each in (plain, twice):
        each.train()
        each.train()
    assert torch.equal(twice.weight, plain.weight)
    failing = Script("failed", Fails())
    with pytest.raises(KeyError):
        failing.train()
    next_one = Script("failed")  # while the first one still exists
    next_one.train()
    failing.mend()
    failing.train()
"""

CHECKPOINT = """
from lightning.pytorch.callbacks import ModelCheckpoint

with smbox.local("64MiB") as box:
    wrapping = BoxCallback(EASGD, box, "run", workers=1, period=8)
    saving = ModelCheckpoint(".", "exception", save_on_exception=True)
    model = Model()
    center = model.layer.weight.detach().clone()
    trainer = Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False,
                      enable_model_summary=False, callbacks=[wrapping, saving, Fails()])
    with pytest.raises(KeyError):
        trainer.fit(model, torch.utils.data.DataLoader(torch.ones(2, 2)))
    (saved,) = pathlib.Path().glob("exception*.ckpt")
    weights = torch.load(saved, weights_only=False)["state_dict"]
    assert torch.equal(weights["layer.weight"], center)
    joining = Model()
    with EASGD(joining.configure_optimizers(), box, "run", workers=1, period=8):
        assert torch.equal(joining.layer.weight, center)  # without steps of the one that left
"""

SAVING = """
from safetensors.torch import load_file

class Saves(TrainerCallback):
    def __init__(self, event):
        setattr(self, event, self.save)

    def save(self, _, state, control, **__):
        control.should_save = state.global_step == 1

settings = TrainingArguments("out", use_cpu=True, report_to="none", save_strategy="no",
                             disable_tqdm=True, max_steps=2, logging_steps=1)
for event in ("on_step_end", "on_log", "on_epoch_end"):
    with smbox.local("64MiB") as box:
        model = Model()
        center = model.weight.detach().clone()
        trainer = Trainer(model, settings, train_dataset=[{"x": torch.ones(2)}] * 4)
        attach(trainer, EASGD, box, "run", workers=1, period=8)
        trainer.add_callback(Saves(event))
        trainer.train()
    assert torch.equal(load_file("out/checkpoint-1/model.safetensors")["weight"], center), event
"""

STOPPED = """
settings = TrainingArguments("out", use_cpu=True, report_to="none", save_strategy="no",
                             disable_tqdm=True, max_steps=2)
with smbox.local("64MiB") as box:
    model, data = Model(), [{"x": torch.ones(2)}] * 4
    center = model.weight.detach().clone()
    trainer = Trainer(model, settings, train_dataset=data, eval_dataset=data,
                      callbacks=[Fails()])
    attach(trainer, EASGD, box, "run", workers=1, period=8)
    with pytest.raises(KeyError):
        trainer.train()
    own, joining = model.weight.detach().clone(), Model()
    with EASGD(torch.optim.SGD(joining.parameters()), box, "run", workers=1, period=8):
        assert torch.equal(joining.weight, center)  # without steps of the one that left
trainer.evaluate()
assert torch.equal(model.weight, own)
"""

RESUMING = """
import os

class Draws(TrainerCallback):
    def on_step_begin(self, *_, **__):
        drawn.append(torch.rand(()).item())

def train(rank, **resuming):
    os.environ.update(SMBOX_RANK=str(rank), SMBOX_WORLD_SIZE="2")
    settings = TrainingArguments("out", use_cpu=True, report_to="none", save_steps=1,
                                 disable_tqdm=True, max_steps=3)
    trainer = Trainer(Model(), settings, train_dataset=[{"x": torch.ones(2)}] * 16,
                      callbacks=[Draws()])
    with smbox.local("64MiB") as box:
        attach(trainer, EASGD, box, "run", workers=smbox.join(box, "run", rank=rank))
        assert trainer.accelerator.process_index == rank
        assert trainer.is_world_process_zero() == (rank == 0)
        trainer.train(**resuming)

drawn = []
train(0)
first = drawn.copy()
drawn.clear()
train(0, resume_from_checkpoint="out/checkpoint-1")
assert drawn == first[1:]
drawn.clear()
saved = os.stat("out/checkpoint-3/rng_state.pth").st_mtime_ns
train(1, resume_from_checkpoint="out/checkpoint-1")
assert os.stat("out/checkpoint-3/rng_state.pth").st_mtime_ns == saved  # rank 0 saves
assert not set(drawn) & set(first), (drawn, first)
"""

ENDED = """
def fit(**resuming):
    callback, model = BoxCallback(EASGD, box, "run", workers=1, period=8), Model()
    trainer = Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False,
                      enable_checkpointing=False, enable_model_summary=False,
                      callbacks=[callback])
    trainer.fit(model, torch.utils.data.DataLoader(torch.ones(4, 2)), **resuming)
    (optimizer,) = callback.optimizers
    (center,) = optimizer.center.values().values()
    assert torch.equal(model.layer.weight.flatten(), center[:2])
    assert optimizer.member.members() == []
    trainer.save_checkpoint("last.ckpt")

for resuming in ({}, {"ckpt_path": "last.ckpt"}):
    with smbox.local("64MiB") as box:
        fit(**resuming)
"""


@pytest.mark.parametrize("name", ENDS)
def test_the_end_waits_for_a_slow_worker(name: str, run: Callable[..., None]):
    run(f"import torch\nfrom smbox_torch import EASGD\n{MODELS[name]}{ENDS[name]}{SLOW}", name)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_trains_again_and_leaves_the_run_after_an_error(
    name: str, run: Callable[..., None]
):
    begin = "import torch\nimport smbox\nfrom smbox_torch import Downpour\n"
    run(begin + MODELS[name] + TRAINERS[name] + AGAIN, name)


def test_a_checkpoint_of_an_exception_has_the_center(run: Callable[..., None]):
    run("import pathlib\n" + BEGIN_EASGD + MODELS["lightning"] + CHECKPOINT, "lightning")


def test_a_checkpoint_has_the_center_whichever_callback_asks_for_it(run: Callable[..., None]):
    run(BEGIN_EASGD + MODELS["transformers"] + SAVING, "transformers")


def test_an_evaluation_after_an_error_uses_the_own_values(run: Callable[..., None]):
    run(BEGIN_EASGD + MODELS["transformers"] + STOPPED, "transformers")


def test_workers_that_resume_draw_different_random_numbers(run: Callable[..., None]):
    run(BEGIN_EASGD + MODELS["transformers"] + RESUMING, "transformers")


def test_a_fit_without_steps_ends_as_others(run: Callable[..., None]):
    run(BEGIN_EASGD + MODELS["lightning"] + ENDED, "lightning")

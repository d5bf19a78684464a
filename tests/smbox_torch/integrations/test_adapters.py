"""What the adapters refuse, each in a process of its own: frameworks keep much per process."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from smbox_torch import integrations

REFUSALS = {
    "an accelerate that has joined its processes": (
        "accelerate",
        """
from smbox_torch.integrations.accelerate import connect

class Joined:
    num_processes = 2

with pytest.raises(ConfigError, match="smbox run"):
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

settings = TrainingArguments("out", use_cpu=True, report_to="none", eval_strategy="steps",
                             save_strategy="best", metric_for_best_model="loss")
trainer = Trainer(Model(2, 1), settings, train_dataset=[], eval_dataset=[])
seed = settings.seed
with pytest.raises(ConfigError, match="best"):
    attach(trainer, EASGD, ModelBox(), "run")
assert settings.seed == seed
""",
    ),
    "a Lightning module of two optimizers": (
        "lightning",
        """
import torch
from lightning.pytorch import LightningModule, Trainer
from smbox_torch import EASGD
from smbox_torch.integrations.lightning import BoxCallback

class Two(LightningModule):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, _):
        pass

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]

box = ModelBox()
trainer = Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
                  enable_progress_bar=False, enable_model_summary=False,
                  callbacks=[BoxCallback(EASGD, box, "run")])
with pytest.raises(ConfigError, match="one optimizer"):
    trainer.fit(Two(), [torch.zeros(1, 2)])
assert box.regions() == []
""",
    ),
}
ENDS = {
    "lightning": """
from lightning.pytorch import LightningModule, Trainer
from smbox_torch.integrations.lightning import BoxCallback

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, _):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def train(name, **options):
    callback = BoxCallback(EASGD, box, name, workers=2, **options)
    Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
            callbacks=[callback]).fit(Model(), torch.utils.data.DataLoader(torch.ones(2, 2)))
""",
    "transformers": """
from transformers import Trainer, TrainingArguments
from smbox_torch.integrations.transformers import attach

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x):
        return {"loss": self.layer(x).sum()}

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

AGAIN = """
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
import smbox
from smbox_torch import Downpour
from smbox_torch.integrations.transformers import attach

class Model(torch.nn.Linear):
    def forward(self, x):
        return {"loss": super().forward(x).square().sum()}

class Fails(TrainerCallback):
    def on_step_end(self, *_, **__):
        raise KeyError("of the loop")

def trainer():
    torch.manual_seed(0)
    settings = TrainingArguments("out", use_cpu=True, report_to="none", save_strategy="no",
                                 disable_tqdm=True, max_steps=2, optim="sgd")
    return Trainer(Model(2, 1), settings, train_dataset=[{"x": torch.ones(2)}] * 4)

def attached(name):
    found = trainer()
    attach(found, Downpour, box, name, workers=1)
    return found

plain = trainer()
with smbox.local("64MiB") as box:
    twice = attached("twice")
    for each in (plain, twice):
        each.train()
        each.train()
    assert torch.equal(twice.model.weight, plain.model.weight)
    with pytest.raises(ConfigError, match="attached before"):
        attach(twice, Downpour, box, "other", workers=1)
    failing = attached("failed")
    failing.add_callback(Fails)
    with pytest.raises(KeyError):
        failing.train()
    next_one = attached("failed")  # while the first one still exists
    next_one.train()
    failing.remove_callback(Fails)
    failing.train()
"""

BEGIN = """
import sys
import pytest
from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
"""


def run(code: str, folder: object = None, python: str = sys.executable) -> str:
    done = subprocess.run(
        [python, "-c", BEGIN + code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("case", REFUSALS)
def test_it_refuses(case: str, preloaded: str, tmp_path: object):
    name, code = REFUSALS[case]
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"needs {name}: pip install 'smbox[frameworks]'")
    run(code, tmp_path, preloaded)


@pytest.mark.parametrize("name", ENDS)
def test_the_end_waits_for_a_slow_worker(name: str, preloaded: str, tmp_path: object):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"needs {name}: pip install 'smbox[frameworks]'")
    run(f"import torch\nfrom smbox_torch import EASGD\n{ENDS[name]}{SLOW}", tmp_path, preloaded)


def test_a_trainer_trains_again_and_leaves_the_run_after_an_error(preloaded: str, tmp_path):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers: pip install 'smbox[frameworks]'")
    run(AGAIN, tmp_path, preloaded)


@pytest.mark.parametrize("name", ["accelerate", "lightning", "ray", "transformers"])
def test_a_missing_framework_is_named_with_its_cure(name: str, preloaded: str):
    extra = "ray" if name == "ray" else "frameworks"
    code = f"""
sys.modules[{name!r}] = None
with pytest.raises(ModuleNotFoundError, match=r"smbox\\[{extra}\\]") as raised:
    import smbox_torch.integrations.{name}
assert raised.value.name == {name!r}
"""
    if name == "transformers" and importlib.util.find_spec("accelerate") is None:
        pytest.skip("needs accelerate: pip install 'smbox[frameworks]'")
    run(code, python=preloaded)


def test_the_package_needs_no_framework():
    assert integrations.__doc__
    frameworks = ("accelerate", "lightning", "ray", "transformers")
    code = f"import smbox_torch.integrations\nassert not set({frameworks!r}) & set(sys.modules)"
    run(code)

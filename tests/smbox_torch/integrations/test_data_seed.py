"""Workers of a Trainer read different batches, whatever seeds its arguments set."""

from __future__ import annotations

from collections.abc import Callable

ORDERS = """
import os
import torch
import smbox
from transformers import Trainer, TrainingArguments
from smbox_torch import EASGD
from smbox_torch.integrations.transformers import attach

class Model(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1)

    def forward(self, x):
        order.extend(x.flatten().tolist())
        return {"loss": super().forward(x).square().sum()}

def order_of(rank, **more):
    order.clear()
    os.environ.update(SMBOX_RANK=str(rank), SMBOX_WORLD_SIZE="2")
    settings = TrainingArguments("out", use_cpu=True, report_to="none", save_strategy="no",
                                 disable_tqdm=True, max_steps=2, data_seed=7, **more)
    data = [{"x": torch.full((1,), float(number)), "input_ids": [1]} for number in range(16)]
    trainer = Trainer(Model(), settings, train_dataset=data)
    with smbox.local("64MiB") as box:
        attach(trainer, EASGD, box, "run", workers=smbox.join(box, "run", rank=rank))
        trainer.train()
    assert sorted(order) == list(range(16))
    assert settings.data_seed == 7 + rank
    return [*order]

order = []
for more in ({}, {"train_sampling_strategy": "batch_rebalance"}):
    assert order_of(0, **more) != order_of(1, **more), more
"""


def test_workers_with_a_data_seed_read_in_different_orders(run: Callable[..., None]):
    run(ORDERS, "transformers")

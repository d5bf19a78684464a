"""trainer_gpt2.py on many workers.

    smbox run --per-node 2 examples/scripts/trainer_gpt2_smbox.py --output gpt2

The lines that differ from trainer_gpt2.py are those of docs/your_script.md.
"""

from __future__ import annotations

import argparse
import os

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from smbox_torch import EASGD, connect
from smbox_torch.integrations.transformers import attach


class Counting(Dataset):
    """Sequences that count up from somewhere, in steps of one to three."""

    def __init__(self, vocabulary, length, first, limit):
        self.items = [
            (torch.arange(length) * (1 + i % 3) + i) % vocabulary for i in range(first, limit)
        ]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return {"input_ids": self.items[index], "labels": self.items[index]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="gpt2")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()

    vocabulary, length = 96, 24
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=length, n_embd=48, n_layer=2, n_head=4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    args = TrainingArguments(
        output_dir=options.output,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_steps=options.steps,
        learning_rate=3e-3,
        lr_scheduler_type="linear",
        warmup_steps=5,
        logging_steps=options.every,
        eval_strategy="steps",
        eval_steps=options.every,
        save_strategy="steps",
        save_steps=options.every,
        save_total_limit=2,
        report_to="none",
        use_cpu=True,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Counting(vocabulary, length, 0, 2000),
        eval_dataset=Counting(vocabulary, length, 2000, 2064),
    )
    attach(trainer, EASGD, connect(), "gpt2")
    trainer.train(resume_from_checkpoint=options.resume)
    print(f"evaluated loss {trainer.evaluate()['eval_loss']:.4f}")
    trainer.save_model(os.path.join(options.output, "final"))


if __name__ == "__main__":
    main()

"""accelerate_digits.py on many workers.

    smbox run --per-node 2 examples/scripts/accelerate_digits_smbox.py --output digits

The lines that differ from accelerate_digits.py are those of docs/your_script.md.
"""

from __future__ import annotations

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from smbox_torch import EASGD
from smbox_torch.integrations.accelerate import connect


def loaders(batch_size):
    raw = load_digits()
    x = torch.tensor(raw.images, dtype=torch.float32)[:, None] / 16.0
    y = torch.tensor(raw.target, dtype=torch.int64)
    train_set, test_set = TensorDataset(x[:1400], y[:1400]), TensorDataset(x[1400:], y[1400:])
    return DataLoader(train_set, batch_size, shuffle=True), DataLoader(test_set, 200)


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 16, 10),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="digits")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    set_seed(args.seed)
    train_loader, test_loader = loaders(batch_size=16)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    optimizer = EASGD(optimizer, connect(accelerator), "digits", model=model)
    steps = args.epochs * len(train_loader) // 2
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    model, optimizer, train_loader, test_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, test_loader, scheduler
    )
    first = 0
    checkpoint = os.path.join(args.output, "checkpoint")
    if args.resume:
        accelerator.load_state(checkpoint)
        first = scheduler.scheduler.last_epoch // (len(train_loader) // 2)
        accelerator.print(f"resumed at epoch {first}")

    for epoch in range(first, args.epochs):
        model.train()
        optimizer.train()
        total = 0.0
        for x, y in train_loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                total += loss.item()
        model.eval()
        optimizer.eval()
        right = 0
        for x, y in test_loader:
            with torch.no_grad():
                predictions = model(x).argmax(dim=1)
            predictions, y = accelerator.gather_for_metrics((predictions, y))
            right += (predictions == y).sum().item()
        accuracy = right / len(test_loader.dataset)
        accelerator.print(
            f"epoch {epoch} loss {total / len(train_loader):.4f} accuracy {accuracy:.1%}"
        )
        accelerator.save_state(checkpoint)
    optimizer.optimizer.finish()


if __name__ == "__main__":
    main()

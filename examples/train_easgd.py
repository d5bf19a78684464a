"""The training of train.py on many workers that a center ties together: EASGD.

    smbox run --per-node 2 --on-failure continue examples/train_easgd.py

The lines that differ from train.py are those of docs/your_script.md.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import smbox
from smbox_torch import EASGD


def digits() -> tuple[Dataset, Dataset]:
    raw = load_digits()
    x = torch.tensor(raw.images, dtype=torch.float32)[:, None] / 16.0
    y = torch.tensor(raw.target, dtype=torch.int64)
    return TensorDataset(x[:1400], y[:1400]), TensorDataset(x[1400:], y[1400:])


def cifar(root: str) -> tuple[Dataset, Dataset]:
    from torchvision import datasets, transforms  # noqa: PLC0415 - not needed for digits

    read = transforms.ToTensor()
    train, test = (datasets.CIFAR10(root, train=part, transform=read) for part in (True, False))
    return train, test


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cifar", help="folder of torchvision's CIFAR10 (needs torchvision)")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.seed()  # other weights and another order in every process
    train, test = cifar(args.cifar) if args.cifar else digits()
    model = nn.Sequential(
        nn.Conv2d(3 if args.cifar else 1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = EASGD(optimizer, smbox.connect(), "pictures")
    for _ in range(args.epochs):
        for x, y in DataLoader(train, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    optimizer.finish()
    with torch.no_grad():
        right = [model(x).argmax(dim=1) == y for x, y in DataLoader(test, batch_size=500)]
    print(f"accuracy {torch.cat(right).float().mean():.1%}")


if __name__ == "__main__":
    main()

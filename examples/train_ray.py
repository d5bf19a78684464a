"""Training on a Ray cluster: memory nodes are actors, and workers are tasks.

python examples/train_ray.py
python examples/train_ray.py --workers 8 --memory-nodes 2    # on a cluster: ray job submit
"""

from __future__ import annotations

import argparse

import ray
import torch
from sklearn.datasets import load_digits
from torch import nn

import smbox_torch
from smbox_torch import EASGD
from smbox_torch.integrations.ray import MemoryNodes


def train(epochs: int, lr: float) -> float:
    """Be one worker; returns the accuracy of the center on pictures that nobody trained on."""
    torch.set_num_threads(1)
    raw = load_digits()
    x = torch.tensor(raw.data, dtype=torch.float32) / 16.0
    y = torch.tensor(raw.target, dtype=torch.int64)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    optimizer = EASGD(optimizer, smbox_torch.connect(), "digits")
    for _ in range(epochs):
        for batch in torch.randperm(1400).split(16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    optimizer.finish()
    with torch.no_grad():
        return (model(x[1400:]).argmax(dim=1) == y[1400:]).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory-nodes", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()

    ray.init()  # the cluster of RAY_ADDRESS, else one of this host alone
    with MemoryNodes(args.memory_nodes, memory="64MiB") as nodes:
        job = (train, args.epochs, args.lr)
        accuracies = nodes.run(*job, workers=args.workers, on_failure="restart")
    for rank, accuracy in enumerate(accuracies):
        print(f"rank {rank}: accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()

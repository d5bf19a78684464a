"""Train for a number of steps: a worker that is started again does only those that it misses.

    smbox run --per-node 2 --on-failure restart examples/train_restart.py

A loop over epochs would begin with the first epoch again; ``optimizer.steps`` goes on where the
worker that died had last exchanged with the center.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, TensorDataset

from smbox_torch import EASGD, connect


def batches(x: torch.Tensor, y: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """Go through the data again and again, in another order each time."""
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    while True:
        yield from loader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200, help="of each worker")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(256, 4)
    y = x @ torch.tensor([[2.0], [-3.0], [1.0], [0.5]])
    model = torch.nn.Linear(4, 1)
    optimizer = EASGD(torch.optim.SGD(model.parameters(), lr=0.05), connect(), "restart")
    first, data = optimizer.steps, batches(x, y)
    while optimizer.steps < args.steps:
        features, target = next(data)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(features), target).backward()
        optimizer.step()
    print(f"rank {optimizer.rank} did steps {first} to {optimizer.steps}", flush=True)
    optimizer.finish()


if __name__ == "__main__":
    main()

"""Elastic averaging of a PyTorch model: the training loop is the usual one.

    python examples/easgd.py

Each worker has half of a small regression problem; the center ends near its solution.
"""

from __future__ import annotations

import multiprocessing

import torch

import smbox
from smbox_torch import EASGD

WORKERS = 2
STEPS = 150
TRUE_WEIGHT = torch.tensor([[2.0, -3.0, 1.0]])


def train(address: str, rank: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    x = torch.randn(256, 3)
    y = x @ TRUE_WEIGHT.T
    model = torch.nn.Linear(3, 1, bias=False)
    with smbox.connect(address) as box:
        inner = torch.optim.SGD(model.parameters(), lr=0.05)
        opt = EASGD(inner, box, "linear", period=5, workers=WORKERS)
        for _ in range(STEPS):
            opt.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            opt.step()
        opt.finish(timeout_s=100.0)
        if rank == 0:
            found = [round(value, 1) for value in model.weight.detach().flatten().tolist()]
            print("center", found, "true", TRUE_WEIGHT.flatten().tolist())


def main() -> None:
    with smbox.local(memory="64MiB") as box:
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=train, args=(box.address, r)) for r in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main()

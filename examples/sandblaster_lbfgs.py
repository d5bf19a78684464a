"""Sandblaster L-BFGS on the digits: a coordinator, two equal workers and a slow one.

python examples/sandblaster_lbfgs.py

The vectors of L-BFGS stay at the memory node: the coordinator sends commands. Workers fetch
portions of the data, so the slow one does fewer. torch's L-BFGS does the same for comparison.
"""

from __future__ import annotations

import functools
import multiprocessing
import time

import torch
from torch import nn

import smbox
from smbox_torch import Sandblaster, SandblasterWorker
from smbox_torch.demo.digits import load

digits = functools.cache(load)

PORTIONS, WORKERS, STEPS = 12, 3, 60
PENALTY, SLOW_S = 1e-3, 0.02


def model() -> nn.Linear:
    """Logistic regression of ten classes; convex with the penalty below."""
    made = nn.Linear(64, 10, dtype=torch.float64)
    for parameter in made.parameters():
        nn.init.zeros_(parameter)
    return made


def loss_of(net: nn.Linear, portion: int) -> torch.Tensor:
    """The share of a portion in the mean loss and in PENALTY / 2 |w|^2."""
    train, _ = digits()
    x, y = (part[portion::PORTIONS] for part in (train.x.flatten(1).double(), train.y))
    loss = nn.functional.cross_entropy(net(x), y, reduction="sum") / len(train)
    square = sum(parameter.square().sum() for parameter in net.parameters())
    return loss + PENALTY / 2 / PORTIONS * square


def work(address: str, rank: int) -> None:
    """Compute portions until the coordinator ends the run."""
    torch.set_num_threads(1)
    net = model()
    digits()  # it takes a while, and all begin together

    def loss(portion: int) -> torch.Tensor:
        time.sleep(SLOW_S if rank == 0 else 0)
        return loss_of(net, portion)

    with smbox.connect(address) as box:
        box.barrier("start", WORKERS + 1, timeout_s=60.0)
        SandblasterWorker(box, net.parameters(), rank=rank).run(loss)


def alone() -> float:
    """The minimum by torch's L-BFGS in one process."""
    net = model()
    told = {"max_iter": 300, "tolerance_grad": 1e-9, "line_search_fn": "strong_wolfe"}
    lbfgs = torch.optim.LBFGS(net.parameters(), **told)

    def closure() -> torch.Tensor:
        lbfgs.zero_grad()
        loss = sum(loss_of(net, portion) for portion in range(PORTIONS))
        loss.backward()
        return loss

    lbfgs.step(closure)
    return closure().item()


def main() -> None:
    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    net = model()
    with smbox.local(memory="64MiB") as box:
        team = [context.Process(target=work, args=(box.address, r)) for r in range(WORKERS)]
        for worker in team:
            worker.start()
        with Sandblaster(
            box, net.parameters(), workers=WORKERS, portions=PORTIONS
        ) as optimizer:
            box.barrier("start", WORKERS + 1, timeout_s=60.0)
            for step in range(STEPS):
                done = optimizer.step()
                if step % 10 == 9:
                    print(f"iteration {step + 1}: loss {done.loss:.6f}")
            optimizer.load()
        for worker in team:
            worker.join()
        print("portions by worker:", optimizer.portions.added)
    _, held_out = digits()
    right = net(held_out.x.flatten(1).double()).argmax(1) == held_out.y
    print(f"held-out accuracy {right.float().mean():.1%}")
    print("within 0.1 % of torch's minimum :", done.loss < 1.001 * alone())


if __name__ == "__main__":
    main()

"""The worker of the demo: trains on its shard of the digits with HybridSGD.

The launcher runs ``python -m smbox_torch.demo.worker FOLDER`` with the worker's rank in the
environment. The worker reports its progress to the launcher, and writes its results to FOLDER.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import smbox
from smbox_torch.boxes import BoxLike
from smbox_torch.demo import digits
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.workers.reporter import Reporter
from smbox_torch.world import World

__all__ = ["Outcome", "Settings", "train"]

END_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Settings:
    """The settings that all workers of the demo share.

    Attributes:
        steps: number of steps of each worker.
        batch: number of pictures in one worker's step.
        period: steps between two exchanges with the center.
        overlap: overlap the exchange with the computation of the next gradients.
        lr: learning rate.
        momentum: momentum of the wrapped optimizer.
        look: steps between two points of a curve.
    """

    steps: int = 240
    batch: int = 16
    period: int = 5
    overlap: bool = True
    lr: float = 0.05
    momentum: float = 0.9
    look: int = 20


@dataclass
class Outcome:
    """The results of one worker.

    Attributes:
        rank: rank of the worker.
        samples: number of pictures it has trained on.
        curve: points of (step, loss, accuracy on the held-out digits).
        center: final accuracy of the center; None if this worker does not compute it.
        exchange: statistics of the exchanges with the center, as of ``Stats.as_dict``.
        gradients: statistics of the gradient rounds inside the node.
    """

    rank: int
    samples: int = 0
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    center: float | None = None
    exchange: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, Any] = field(default_factory=dict)


def train(
    world: World,
    box: BoxLike | None,
    settings: Settings,
    data: tuple[digits.Digits, digits.Digits],
    reporter: Reporter,
) -> Outcome:
    """Train one worker to the end of the run.

    Args:
        world: place of the worker in the run.
        box: the memory; only the root of a node needs one.
        settings: settings of the run.
        data: training and held-out pictures.
        reporter: receives the progress.
    """
    shard, held_out = data[0].shard(world.rank, world.world_size), data[1]
    model = digits.network()
    sgd = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum)
    outcome = Outcome(world.rank, samples=settings.steps * settings.batch)
    with HybridSGD(
        sgd,
        box,
        "demo",
        period=settings.period,
        overlap=settings.overlap,
        model=model,
        world=world,
    ) as optimizer:
        each = digits.batches(shard, settings.batch, settings.steps, seed=world.rank)
        for step, (x, y) in enumerate(each, start=1):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step % settings.look == 0:
                point = step, loss.item(), digits.accuracy(model, held_out)
                outcome.curve.append(point)
                _tell(reporter, optimizer, *point)
    # The optimizer is closed, so this node's last exchange is in the center.
    outcome.exchange = optimizer.stats().as_dict()
    outcome.gradients = optimizer.sync_stats().as_dict()
    if box is not None and world.is_group_root:
        outcome.center = _center(optimizer, box, world, held_out)
    return outcome


def _tell(
    reporter: Reporter, optimizer: HybridSGD, step: int, loss: float, accuracy: float
) -> None:
    stats = optimizer.stats()
    reporter.report(
        step=step,
        loss=loss,
        accuracy=f"{accuracy:.1%}",
        staleness=stats.staleness_mean,
        exchange_ms=stats.exchange_ms / max(1, stats.exchanges),
    )


def _center(optimizer: HybridSGD, box: BoxLike, world: World, held_out: digits.Digits) -> float:
    """Return the center's accuracy after all nodes have done their last exchange."""
    nodes = world.groups
    assert nodes is not None  # the launcher sets it
    box.barrier("demo.end", nodes, timeout_s=END_TIMEOUT_S)
    model = digits.network()
    optimizer.center_into(model)
    return digits.accuracy(model, held_out)


def main(folder: Path) -> None:
    """Train with the environment's settings and write the outcome to ``folder/RANK.json``."""
    torch.set_num_threads(1)
    world = World.from_env(os.environ)
    settings = Settings(**json.loads((folder / "settings.json").read_text()))
    box = smbox.connect() if world.is_group_root else None
    reporter = Reporter.from_env(os.environ)
    try:
        outcome = train(world, box, settings, digits.load(), reporter)
    finally:
        if box is not None:
            box.close()
    (folder / f"{world.rank}.json").write_text(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

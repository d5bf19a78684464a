"""The worker of the demo: trains on its shard of the digits with HybridSGD.

Run by the launcher, which tells it its place: ``python -m smbox_torch.demo.worker
FOLDER``. The worker tells its launcher how far it is, and leaves its figures in FOLDER.
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
    """What all workers of the demo agree on.

    Attributes:
        steps: of each worker.
        batch: pictures of one worker's step.
        period: steps between two exchanges with the center.
        overlap: hide the exchange behind the next gradients.
        lr: learning rate.
        momentum: of the optimizer inside.
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
    """Figures of one worker.

    Attributes:
        rank: of the worker.
        samples: pictures it has trained on.
        curve: points of (step, loss, accuracy on the held-out digits).
        center: accuracy of the center in the end; None where this worker cannot know it.
        exchange: counts of exchanges with the center, as ``Stats.as_dict``.
        gradients: counts of rounds of gradients inside the node.
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
        world: who it is.
        box: the memory; only the root of a node needs one.
        settings: of the run.
        data: training and held-out pictures.
        reporter: is told how far it is.
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
    # Closed, this node's last exchange is in the center.
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
    """Return the center's accuracy, when all nodes have done their last exchange."""
    nodes = world.groups
    assert nodes is not None  # the launcher tells it
    # Versions instead of a barrier, whose answers the node would keep: 16 MiB for each of us.
    ended = box.create("demo.end", shape=1, exist_ok=True)
    ended.accumulate([1.0])
    ended.wait(nodes, timeout_s=END_TIMEOUT_S)
    model = digits.network()
    optimizer.center_into(model)
    return digits.accuracy(model, held_out)


def main(folder: Path) -> None:
    """Train as the environment says and leave the outcome in ``folder/RANK.json``."""
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

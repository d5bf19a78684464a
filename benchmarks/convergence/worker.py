"""One worker of one run: ``python worker.py FOLDER``, started by sweep.py.

It reads FOLDER/settings.json and leaves its figures in FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import task
import torch
from torch import nn
from ways import KINDS, Trainer, Way, schedule

import smbox
from smbox_torch.elastic import StabilityWarning
from smbox_torch.hybrid import HybridSGD
from smbox_torch.reporter import Reporter
from smbox_torch.world import World

MEET_TIMEOUT_S = 600.0
LOOK_PICTURES = 500
REPORTS = 50


@dataclass(frozen=True)
class Settings:
    """What all workers of a run agree on.

    Attributes:
        way: fields of a Way.
        seed: of network, shards' order and all else.
        epochs: how often the workers together see every picture.
        share: of the training set.
        cache: folder of decoded pictures.
        looks: points of the curve of accuracy.
        test_pictures: judged in the end; None: all.
    """

    way: dict[str, Any]
    seed: int
    epochs: float
    share: float
    cache: str
    looks: int = 10
    test_pictures: int | None = None


@dataclass
class Found:
    """Figures of one worker.

    Attributes:
        rank: of the worker.
        began_s: when all had met, of the host's monotonic clock.
        ended_s: when its steps were done.
        cpu_s: of this process between the two, without the looks.
        samples: pictures trained on.
        loss: mean of the last tenth of the steps; None if it is no number any more.
        accuracy: on the test set in the end, of what the way judges by; rank 0 alone.
        curve: points of (share of the steps, accuracy of rank 0's own model).
        stats: of exchanges, as ``Stats.as_dict``.
        group: of rounds of gradients inside a node, of HybridSGD.
    """

    rank: int
    began_s: float = 0.0
    ended_s: float = 0.0
    cpu_s: float = 0.0
    samples: int = 0
    loss: float | None = None
    accuracy: float | None = None
    curve: list[tuple[float, float]] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    group: dict[str, Any] = field(default_factory=dict)


class Run:
    """One worker's part of a run.

    Args:
        settings: of the run.
        world: who this worker is.
        box: where workers meet and exchange.
    """

    def __init__(self, settings: Settings, world: World, box: smbox.Box) -> None:
        self.settings = settings
        self.way = Way(**settings.way)
        self.world = world
        self.box = box
        train, self.test = task.load(Path(settings.cache), settings.share)
        self.steps = self.way.steps(len(train), settings.epochs)
        self.shard = train.shard(world.rank, world.world_size)
        self.model = task.network(seed=settings.seed)
        self.found = Found(world.rank, samples=self.steps * self.way.batch)

    def train(self, reporter: Reporter) -> Found:
        """Train to the end and return the figures."""
        trainer = KINDS[self.way.kind](self.way, self.model, self.box)
        self._meet("start")
        self._loop(trainer, reporter)
        self._count(trainer)
        trainer.settle()
        self._meet("end")
        if self.world.rank == 0:
            trainer.center()
            pictures = self.test.first(self.settings.test_pictures or len(self.test))
            self.found.accuracy = task.accuracy(self.model, pictures)
        self._meet("judged")
        trainer.close()
        return self.found

    def _meet(self, where: str) -> None:
        self.box.barrier(where, self.world.world_size, timeout_s=MEET_TIMEOUT_S)

    def _loop(self, trainer: Trainer, reporter: Reporter) -> None:
        seed = 1000 * self.settings.seed + self.world.rank
        losses: list[float] = []
        self.found.began_s, began_cpu_s = time.monotonic(), time.process_time()
        each = task.batches(self.shard, self.way.batch, self.steps, seed=seed)
        for step, (x, y) in enumerate(each, start=1):
            self._set_lr(trainer, (step - 1) / self.steps)
            trainer.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(trainer.forward(x), y)
            loss.backward()
            trainer.optimizer.step()
            if step > 0.9 * self.steps:
                losses.append(loss.item())
            if self._is_due(step, REPORTS):
                reporter.report(step=step, steps=self.steps, loss=loss.item())
            if self.world.rank == 0 and self._is_due(step, self.settings.looks):
                began_cpu_s += self._look(step)
        self.found.ended_s = time.monotonic()
        self.found.cpu_s = time.process_time() - began_cpu_s
        mean = sum(losses) / len(losses)
        self.found.loss = mean if math.isfinite(mean) else None

    def _set_lr(self, trainer: Trainer, done: float) -> None:
        for group in trainer.optimizer.param_groups:
            group["lr"] = schedule(self.way.lr, done)

    def _is_due(self, step: int, times: int) -> bool:
        """Tell whether a step is one of so many, evenly spread ones."""
        return step * times // self.steps > (step - 1) * times // self.steps

    def _look(self, step: int) -> float:
        """Add a point to the curve; returns the CPU time that it took, in seconds."""
        began_s = time.process_time()
        accuracy = task.accuracy(self.model, self.test.first(LOOK_PICTURES))
        self.found.curve.append((step / self.steps, accuracy))
        return time.process_time() - began_s

    def _count(self, trainer: Trainer) -> None:
        """Take down what was exchanged; DDP, which does not count, by the ring's formula."""
        optimizer = trainer.optimizer
        if hasattr(optimizer, "stats"):
            self.found.stats = optimizer.stats().as_dict()
        if isinstance(optimizer, HybridSGD):
            self.found.group = optimizer.sync_stats().as_dict()
        if self.way.kind == "ddp":
            nbytes = sum(p.nbytes for p in self.model.parameters())
            each = 4 * (self.way.workers - 1) * nbytes // self.way.workers
            self.found.stats = {"exchanges": self.steps, "nbytes": self.steps * each}


def main(folder: Path) -> None:
    """Do this worker's part as the environment says."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", StabilityWarning)  # one way is there to leave the bound
    settings = Settings(**json.loads((folder / "settings.json").read_text()))
    world = World.from_env(os.environ)
    with smbox.connect() as box:
        found = Run(settings, world, box).train(Reporter.from_env(os.environ))
    (folder / f"{world.rank}.json").write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

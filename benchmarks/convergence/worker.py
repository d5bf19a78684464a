"""One worker of one run: ``python worker.py FOLDER``, started by sweep.py.

It reads FOLDER/run.json and leaves its figures in FOLDER/RANK.json.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import signal
import sys
import time
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where result_files.py is

import task
import torch
from parts import parts
from rows import Settings
from torch import nn
from trainers import KINDS, Trainer, schedule

import smbox
from smbox_torch import StabilityWarning

MEET_TIMEOUT_S = 300.0
LOOK_PICTURES = 1000
FORWARD_TO_GRADIENT = 3.0
"""Backward takes about twice as long as forward. It is not measured: it may meet the others."""

PROGRESS = "progress"
"""Counter of rank 0's progress, in percent."""


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
        accuracy: of what the row is judged by, in the end; rank 0 alone.
        curve: rank 0's looks on validation pictures at what the row is judged by, as (share of
            the run, seconds since the beginning without looks, accuracy).
        error: what ended this worker before its steps were done, in scenarios.
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
    curve: list[tuple[float, float, float]] = field(default_factory=list)
    error: str = ""
    stats: dict[str, Any] = field(default_factory=dict)
    group: dict[str, Any] = field(default_factory=dict)


class Run:
    """One worker's part of a run.

    Args:
        settings: of the run.
        cache: folder of decoded pictures.
        rank: of this worker.
        box: where workers meet and exchange.
    """

    def __init__(self, settings: Settings, cache: Path, rank: int, box: smbox.Box) -> None:
        self.settings = settings
        self.row = settings.row
        self.kind = KINDS[self.row.kind]
        self.cache = cache
        self.rank = rank
        self.box = box
        train, self.validation = task.load(cache, settings.share)
        samples = settings.samples(len(train))
        self.parts = parts(self.row, samples, pace=self.kind.pace, fate=self.kind.fate)
        self.part = self.parts[rank]
        self.shard = train.shard(rank, self.row.workers)
        self.model = task.network(self.row.network, seed=settings.seed)
        self.judged = copy.deepcopy(self.model)
        self.found = Found(rank)
        self._began_cpu_s = 0.0

    def train(self) -> Found:
        """Train to the end and return the figures.

        Raises:
            SmboxError: the run failed, and it is not one of a scenario.
        """
        trainer = self.kind.build(self.row, self.model, self.box)
        if self.part.first == 0.0:
            self._meet("start", sum(part.first == 0.0 for part in self.parts))
        try:
            self._loop(trainer)
            self._count(trainer)
            trainer.settle()
            self._meet("end", sum(part.ends for part in self.parts))
        except smbox.SmboxError as error:
            if self.row.scenario == "none":
                raise
            self.found.error = f"{type(error).__name__}: {error}".splitlines()[0]
            self._stop_clocks()
        self._judge(trainer)
        if not self.found.error:
            self._meet("judged", sum(part.ends for part in self.parts))
        with contextlib.suppress(*([smbox.SmboxError] if self.found.error else [])):
            trainer.close()
        return self.found

    def _meet(self, where: str, parties: int) -> None:
        self.box.barrier(where, parties, timeout_s=MEET_TIMEOUT_S)

    def _loop(self, trainer: Trainer) -> None:
        seed = 1000 * self.settings.seed + self.rank
        losses: list[float] = []
        part = self.part
        self.found.began_s, self._began_cpu_s = time.monotonic(), time.process_time()
        looked_s = 0.0
        each = task.batches(self.shard, self.row.batch, part.steps, seed=seed)
        for step, (x, y) in enumerate(each, start=1):
            self._set_lr(trainer, part.done(step))
            trainer.optimizer.zero_grad()
            loss = self._gradients(trainer, x, y)
            trainer.optimizer.step()
            self.found.samples += len(y)
            if step > 0.9 * part.steps:
                losses.append(loss.item())
            if self.rank == 0 and self._is_due(step, 100):
                self.box.counter(PROGRESS).add(1)
            if self.rank == 0 and self._is_due(step, self.settings.looks):
                cpu_s = time.process_time()
                looked_s += self._look(trainer, step, looked_s)
                self._began_cpu_s += time.process_time() - cpu_s
        if part.is_killed:
            os.kill(os.getpid(), signal.SIGKILL)
        self._stop_clocks()
        mean = sum(losses) / len(losses)
        self.found.loss = mean if math.isfinite(mean) else None

    def _stop_clocks(self) -> None:
        self.found.ended_s = time.monotonic()
        self.found.cpu_s = time.process_time() - self._began_cpu_s

    def _gradients(self, trainer: Trainer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Do forward and backward, and as a slow worker sleep for the rest of its time."""
        began_s = time.monotonic()
        loss = nn.functional.cross_entropy(trainer.forward(x), y)
        gradient_s = FORWARD_TO_GRADIENT * (time.monotonic() - began_s)
        if self.part.slowness > 1.0:
            time.sleep((self.part.slowness - 1.0) * gradient_s)
        loss.backward()
        return loss

    def _set_lr(self, trainer: Trainer, done: float) -> None:
        for group in trainer.optimizer.param_groups:
            group["lr"] = schedule(self.row.lr, done)

    def _is_due(self, step: int, times: int) -> bool:
        """Tell whether a step is one of so many, evenly spread ones."""
        return step * times // self.part.steps > (step - 1) * times // self.part.steps

    def _look(self, trainer: Trainer, step: int, looked_s: float) -> float:
        """Add a point to the curve; returns the time that it took, in seconds."""
        began_s = time.monotonic()
        trainer.shared_into(self.judged)
        accuracy = task.accuracy(self.judged, self.validation.first(LOOK_PICTURES))
        spent_s = began_s - self.found.began_s - looked_s
        self.found.curve.append((self.part.done(step + 1), spent_s, accuracy))
        return time.monotonic() - began_s

    def _judge(self, trainer: Trainer) -> None:
        """Judge what the row shares: the center, or the common model."""
        if self.rank != 0:
            return
        try:
            trainer.shared_into(self.judged)
        except smbox.SmboxError:
            if not self.found.error:
                raise
            self.judged.load_state_dict(self.model.state_dict())
        is_test = self.settings.judged_on == "test"
        pictures = task.load_test(self.cache) if is_test else self.validation
        count = self.settings.judged_pictures or len(pictures)
        self.found.accuracy = task.accuracy(self.judged, pictures.first(count))

    def _count(self, trainer: Trainer) -> None:
        """Take down what was exchanged; DDP, which does not count, by the ring's formula."""
        optimizer = trainer.optimizer
        if hasattr(optimizer, "stats"):
            self.found.stats = optimizer.stats().as_dict()
        if hasattr(optimizer, "sync_stats"):
            self.found.group = optimizer.sync_stats().as_dict()
        if self.row.kind == "ddp":
            nbytes = sum(p.nbytes for p in self.model.parameters())
            each = 4 * (self.row.workers - 1) * nbytes // self.row.workers
            self.found.stats = {
                "exchanges": self.part.steps,
                "nbytes": self.part.steps * each,
            }


def main(folder: Path) -> None:
    """Do this worker's part as the environment says."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", StabilityWarning)  # one row is there to leave the bound
    told = json.loads((folder / "run.json").read_text())
    rank = int(os.environ["RANK"])
    with smbox.connect() as box:
        found = Run(
            Settings.from_json(told["settings"]), Path(told["cache"]), rank, box
        ).train()
    (folder / f"{rank}.json").write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

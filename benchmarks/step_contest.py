"""Blocks of training steps in turns: plain torch, an algorithm, plain torch, and so on.

``python step_contest.py '{"names": [...], "rounds": 30, "transport": "shm"}'`` is one worker of
``step_overhead.py``, which sets torchrun's variables; the last line that it prints is what it
measured, as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

import torch
from step_profile import CATEGORIES, Profile
from torch import nn

import smbox
from smbox_torch import EASGD, SSP, Downpour, HybridSGD, SyncGroup

WORKERS: Final = 2
BLOCK_STEPS: Final = 20
"""A multiple of the longest period, so that every block has as many exchanges."""

PLAIN_MS: Final = 3.0
"""What a plain step takes; the batch is as large as that needs on this machine."""

BATCH_FIRST: Final = 64
CALIBRATIONS: Final = 3
BLOCKS: Final = 5
WIDTHS: Final = (256, 512, 512, 256, 10)
TIMEOUT_S: Final = 300.0

Build = Callable[[torch.optim.Optimizer, nn.Module, smbox.Box, str], Any]
Wrap = Callable[[torch.optim.Optimizer, nn.Module], Any]


@dataclass(frozen=True)
class Algorithm:
    """An algorithm that is measured.

    Attributes:
        build: wraps the optimizer; is given model, box and a name for the regions.
        goal: most overhead, as a share of a plain step; None: it has no goal of its own.
        overlaps: name of the same without overlap.
    """

    build: Build
    goal: float | None = None
    overlaps: str | None = None


def _easgd(**options: Any) -> Build:
    return lambda sgd, model, box, name: EASGD(sgd, box, name, model=model, **options)


def _hybrid(**options: Any) -> Build:
    return lambda sgd, model, box, name: HybridSGD(sgd, box, name, model=model, **options)


ALGORITHMS: Final = {
    "EASGD, period 10": Algorithm(_easgd(period=10), 0.04),
    "EASGD, period 10, overlap": Algorithm(
        _easgd(period=10, overlap=True), overlaps="EASGD, period 10"
    ),
    "EASGD, period 1": Algorithm(_easgd(period=1), 0.15),
    "EASGD, period 1, overlap": Algorithm(
        _easgd(period=1, overlap=True), overlaps="EASGD, period 1"
    ),
    "HybridSGD, period 10": Algorithm(_hybrid(period=10), 0.20),
    "HybridSGD, period 10, overlap": Algorithm(
        _hybrid(period=10, overlap=True), overlaps="HybridSGD, period 10"
    ),
    "HybridSGD, period 1": Algorithm(_hybrid(period=1), 0.20),
    "HybridSGD, period 1, overlap": Algorithm(
        _hybrid(period=1, overlap=True), overlaps="HybridSGD, period 1"
    ),
    "SyncGroup": Algorithm(
        lambda sgd, model, _box, name: SyncGroup(sgd, model, name=name), 0.20
    ),
    "Downpour": Algorithm(
        lambda sgd, model, box, name: Downpour(sgd, box, name, model=model), 0.20
    ),
    "SSP": Algorithm(lambda sgd, model, box, name: SSP(sgd, box, name, model=model), 0.20),
}


@dataclass
class Times:
    """What was measured of one algorithm, of all workers and rounds.

    Attributes:
        plain_ms: steps of the plain blocks, each block's mean, in milliseconds.
        own_ms: steps of the algorithm's blocks, as many.
        shares: of categories in the time of a plain step.
    """

    plain_ms: list[float] = field(default_factory=list)
    own_ms: list[float] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        """Return the algorithm's steps as multiples of the plain ones, block by block."""
        return [own / plain for own, plain in zip(self.own_ms, self.plain_ms, strict=True)]


class Training:
    """A network, its optimizer, and steps with one batch.

    Args:
        batch: samples of a step.
        wrap: makes the optimizer that steps of the plain one; None: that is it.
    """

    def __init__(self, batch: int, wrap: Wrap | None = None) -> None:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for before, after in pairwise(WIDTHS):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.model = nn.Sequential(*layers[:-1])
        self.x = torch.randn(batch, WIDTHS[0])
        self.y = torch.randint(0, WIDTHS[-1], (batch,))
        sgd = torch.optim.SGD(self.model.parameters(), lr=0.001, momentum=0.9)
        self.optimizer: Any = sgd if wrap is None else wrap(sgd, self.model)

    def steps(self) -> float:
        """Do a block of steps; return the mean time of one, in milliseconds."""
        began_s = time.perf_counter()
        for _ in range(BLOCK_STEPS):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(self.x), self.y).backward()
            self.optimizer.step()
        return 1000.0 * (time.perf_counter() - began_s) / BLOCK_STEPS

    def close(self) -> None:
        """Leave what the algorithm shares."""
        if hasattr(self.optimizer, "close"):
            self.optimizer.close()


class Contest:
    """One worker's part of the measurement.

    Args:
        box: where the workers meet and exchange.
        names: of the algorithms.
    """

    def __init__(self, box: smbox.Box, names: Sequence[str]) -> None:
        self._box = box
        batch = self._calibrated()
        self._plain = Training(batch)
        self._all = {
            name: Training(batch, self._wrapping(ALGORITHMS[name].build, f"step{index}"))
            for index, name in enumerate(names)
        }
        self.times = {name: Times() for name in names}

    def _calibrated(self) -> int:
        """Find the batch with which a plain step takes PLAIN_MS; the same for all workers."""
        batch = BATCH_FIRST
        for attempt in range(CALIBRATIONS):
            training = Training(batch)
            self._block(training)  # the first one also allocates memory
            step_ms = statistics.median(self._block(training) for _ in range(BLOCKS))
            wishes = self._box.counter(f"batch{attempt}")
            wishes.add(max(1, round(batch * PLAIN_MS / step_ms)))
            self._meet()
            batch = wishes.value // WORKERS
        return batch

    def _wrapping(self, build: Build, name: str) -> Wrap:
        return lambda sgd, model: build(sgd, model, self._box, name)

    def measure(self, rounds: int) -> dict[str, Times]:
        """Time the blocks, then sample them; the first round only warms up."""
        for number in range(1 + rounds):
            for name, training in self._all.items():
                plain_ms, own_ms = self._block(self._plain), self._block(training)
                if number:
                    self.times[name].plain_ms.append(plain_ms)
                    self.times[name].own_ms.append(own_ms)
        for name, training in self._all.items():
            profile = Profile()
            for _ in range(rounds):
                self._meet()
                with profile.sampling():
                    training.steps()
            plain_s = statistics.median(self.times[name].plain_ms) / 1000.0
            whole_s = rounds * BLOCK_STEPS * plain_s
            self.times[name].shares = {
                each: profile.seconds[each] / whole_s for each in CATEGORIES
            }
        for training in self._all.values():
            training.close()
        return self.times

    def _block(self, training: Training) -> float:
        self._meet()
        return training.steps()

    def _meet(self) -> None:
        self._box.barrier("step", WORKERS, timeout_s=TIMEOUT_S)


def main(names: Sequence[str], rounds: int, transport: str) -> None:
    """Be one worker, as the environment says."""
    torch.set_num_threads(1)
    with smbox.connect(transport=transport) as box:
        found = Contest(box, names).measure(rounds)
    print(json.dumps({name: asdict(times) for name, times in found.items()}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))

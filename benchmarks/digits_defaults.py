"""Measures the defaults of EAMSGD, MDownpour, HogWild++ and the server's Adagrad on the digits.

python benchmarks/digits_defaults.py eamsgd|mdownpour|hogwild_pp|adagrad
    [--epochs 20] [--seeds 0,1,2]

Four workers with batches of 8 pictures take turns in one process, in a random order that the
seed decides, so a run repeats exactly and needs one core. The learning rate rises over the
first twentieth of a run and falls linearly to zero. A table of Markdown goes to the standard
output: medians over the seeds of the shared model's accuracy on the held-out digits, in
percent, and of its loss on the training set. "-" is a run whose loss was no number.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import command_line
import numpy as np
import torch
from torch import nn

from smbox.testing.model_box import ModelBox
from smbox.testing.solo import solo_box, solo_boxes
from smbox_torch.demo import digits
from smbox_torch.downpour.mdownpour import MDownpour
from smbox_torch.downpour.server_downpour import ServerDownpour
from smbox_torch.elastic.eamsgd import EAMSGD
from smbox_torch.hogwild.hogwild_pp import HogwildPP
from smbox_torch.world import World

WORKERS, BATCH = 4, 8
WARM_UP = 0.05
MEMORY_NBYTES = 64 << 20


@dataclass(frozen=True)
class Found:
    """What a run reached.

    Attributes:
        accuracy: of the shared model on the held-out digits.
        loss: of the shared model on the training set, in evaluation mode.
    """

    accuracy: float
    loss: float


Worker = tuple[nn.Module, torch.optim.Optimizer]
Team = Iterator[tuple[list[Worker], Callable[[nn.Module], None]]]
Settings = dict[str, Any]


def eamsgd(seed: int, *, momentum: float, rate: float, period: int) -> Team:
    """Four workers of EAMSGD; ``rate`` is lr / (1 - momentum)."""
    box, team = ModelBox(), []
    for number in range(WORKERS):
        model = digits.network(seed=seed)
        sgd = torch.optim.SGD(model.parameters(), lr=rate * (1 - momentum))
        settings = {"momentum": momentum, "period": period, "workers": WORKERS}
        client = box.client(f"w{number}")
        team.append((model, EAMSGD(sgd, client, "run", model=model, **settings)))
    yield team, team[0][1].center_into


def mdownpour(seed: int, *, momentum: float, rate: float) -> Team:
    """Four workers of MDownpour; ``rate`` is lr / (1 - momentum) of each worker."""
    box, team = ModelBox(), []
    for number in range(WORKERS):
        model = digits.network(seed=seed)
        sgd = torch.optim.SGD(model.parameters(), lr=rate * (1 - momentum))
        settings = {"momentum": momentum, "workers": WORKERS}
        client = box.client(f"w{number}")
        team.append((model, MDownpour(sgd, client, "run", model=model, **settings)))
    yield team, team[0][1].center_into


def hogwild_pp(seed: int, *, tolerance: float, lr: float, delay: int) -> Team:
    """Two clusters of two workers; SGD with momentum 0.9."""
    with solo_boxes(MEMORY_NBYTES) as opener, solo_box(opener) as box:
        team = []
        for number in range(WORKERS):
            model = digits.network(seed=seed)
            sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
            world = World(number, number, WORKERS, WORKERS)
            settings = {"tolerance": tolerance, "update_delay": delay, "world": world}
            wrapped = HogwildPP(sgd, box, "run", clusters=2, model=model, **settings)
            team.append((model, wrapped))
        try:
            yield team, team[0][1].center_into
        finally:
            for _, wrapped in team:
                wrapped.close()


def adagrad(seed: int, *, initial: float, lr: float) -> Team:
    """Four workers that push to Adagrad at the server."""
    box, team = ModelBox(), []
    for number in range(WORKERS):
        model = digits.network(seed=seed)
        sgd = torch.optim.SGD(model.parameters(), lr=lr)
        settings = {"settings": {"initial_accumulator_value": initial}, "workers": WORKERS}
        client = box.client(f"w{number}")
        team.append((model, ServerDownpour(sgd, client, "run", model=model, **settings)))
    yield team, team[0][1].center_into


TABLES: dict[str, tuple[Callable[..., Team], dict[str, tuple[Any, ...]]]] = {
    "eamsgd": (
        eamsgd,
        {
            "momentum": (0.9, 0.95, 0.99),
            "period": (1, 10, 64),
            "rate": (0.05, 0.1, 0.2, 0.5),
        },
    ),
    "mdownpour": (
        mdownpour,
        {"momentum": (0.9, 0.95, 0.99), "rate": (0.01, 0.03, 0.1, 0.3)},
    ),
    "hogwild_pp": (
        hogwild_pp,
        {
            "tolerance": (0.0, 1e-5, 1e-4, 1e-3, 1e-2),
            "delay": (4, 64),
            "lr": (0.01, 0.02, 0.05),
        },
    ),
    "adagrad": (
        adagrad,
        {"initial": (0.0, 0.1), "lr": (0.003, 0.01, 0.03, 0.1, 0.3)},
    ),
}
"""By name: what makes the workers, and the settings to try; the last are the columns."""


def train(
    make: Callable[..., Team], settings: Settings, seed: int, epochs: float
) -> Found | None:
    """Train the workers in turns; None where a loss was no number."""
    data, held_out = digits.load(seed=seed)
    steps = round(epochs * len(data) / (WORKERS * BATCH))
    order = np.random.default_rng(seed).permutation(np.repeat(np.arange(WORKERS), steps))
    shards = [
        digits.batches(data.shard(number, WORKERS), BATCH, steps, seed=1000 * seed + number)
        for number in range(WORKERS)
    ]
    for team, shared_into in make(seed, **settings):
        highest = [group["lr"] for _, optimizer in team for group in optimizer.param_groups]
        for done, number in enumerate(order.tolist()):
            model, optimizer = team[number]
            for group in optimizer.param_groups:
                group["lr"] = schedule(highest[number], done / len(order))
            if not _step(model, optimizer, *next(shards[number])):
                return None
        judged = digits.network(seed=seed)
        shared_into(judged)
        return Found(digits.accuracy(judged, held_out), _loss(judged, data))
    return None


def schedule(lr: float, done: float) -> float:
    """Return the learning rate when this share of the steps is done."""
    return lr * min(1.0, done / WARM_UP) * min(1.0, (1.0 - done) / (1.0 - WARM_UP))


def _step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> bool:
    """Do a step; tell whether the loss before it was a number."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return math.isfinite(loss.item())


@torch.no_grad()
def _loss(model: nn.Module, data: digits.Digits) -> float:
    model.eval()
    return nn.functional.cross_entropy(model(data.x), data.y).item()


def cell(found: Sequence[Found | None]) -> str:
    """Return accuracy and loss of a cell: medians over the seeds."""
    good = [each for each in found if each is not None]
    if len(good) < len(found):
        return "-"
    accuracy = 100 * statistics.median(each.accuracy for each in good)
    return f"{accuracy:.1f} / {statistics.median(each.loss for each in good):.4f}"


def table(name: str, seeds: Sequence[int], epochs: float) -> None:
    """Print the table, row by row."""
    make, tried = TABLES[name]
    *rows, columns = tried
    heads = [*rows, *(f"{columns} {value:g}" for value in tried[columns])]
    print(f"| {' | '.join(heads)} |\n|{' --: |' * len(heads)}")
    for values in itertools.product(*(tried[row] for row in rows)):
        given = dict(zip(rows, values, strict=True))
        cells = [f"{value:g}" for value in values]
        for value in tried[columns]:
            settings = given | {columns: value}
            cells.append(cell([train(make, settings, seed, epochs) for seed in seeds]))
        print(f"| {' | '.join(cells)} |", flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """Train with every setting and every seed and print the table."""
    parser = command_line.parser(__doc__, seeds="0,1,2")
    parser.add_argument("name", choices=sorted(TABLES))
    parser.add_argument("--epochs", type=float, default=20.0)
    read = parser.parse_args(words)
    torch.set_num_threads(1)
    table(read.name, read.seeds, read.epochs)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The demo's task over several seeds: HybridSGD 2 x 2 beside one process on as many pictures.

python benchmarks/digits_seeds.py [--epochs 40] [--seeds 0,1,2,3,4] [--page docs/digits.md]

Seeds decide which digits are held out, the first weights and the order of the batches. Both
sides train the demo's network with the demo's settings. The page says for which run it stands.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import command_line
import pages
import torch
from rich.console import Console
from torch import nn

import smbox
from smbox_torch.demo import digits
from smbox_torch.demo.worker import Settings
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.launching.cluster import Plan
from smbox_torch.launching.display import Display
from smbox_torch.launching.launcher import Launcher
from smbox_torch.world import World

NODES, PER_NODE = 2, 2
WORKERS = NODES * PER_NODE
MEMORY = "256MiB"
"""Each tcp channel that fetches needs some 16 MiB for answers."""

MEET_TIMEOUT_S = 300.0


HEAD = ("seed", "HybridSGD", "one process", "difference", "s", "s, one", "MiB with the center")
PAGE = """\
# Digits: the demo's task over several seeds

The table compares HybridSGD, on {nodes} simulated nodes with {per_node} workers each, with one
process that sees equally many pictures. The task is that of `smbox demo`: scikit-learn's
digits, {epochs:g} epochs, {samples:,} pictures per run, batches of {settings.batch}. Workers
exchange with the center every {settings.period} steps over tcp. The learning rate is
{settings.lr:g}, momentum {settings.momentum:g}; torch {torch}. The seed selects the 360
held-out digits, the first weights and the order of the batches. All processes share the {cores}
cores of one host, one thread each, so compare the accuracies, not the seconds.

{table}

Means: HybridSGD {hybrid:.2f} %, one process {one:.2f} %. The difference is {difference:+.2f}
points on average, from {least:+.2f} to {most:+.2f}. One held-out digit is 0.28 points.

To repeat the runs: `python benchmarks/digits_seeds.py --epochs {epochs:g} --seeds {seeds}`.
"""


@dataclass
class Found:
    """What one side reached with one seed.

    Attributes:
        accuracy: on the held-out digits, of the center or of the one process.
        samples: pictures trained on.
        seconds: from the first step to the last.
        nbytes: moved between the nodes' roots and the center; 0 without one.
    """

    accuracy: float
    samples: int
    seconds: float
    nbytes: int = 0


def steps_of(settings: Settings, epochs: float) -> int:
    """Return the steps of each of the workers, so that together they see all so often."""
    train, _ = digits.load()
    return max(1, round(epochs * len(train) / (WORKERS * settings.batch)))


def _train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    shard: digits.Digits,
    settings: Settings,
    steps: int,
    seed: int,
) -> float:
    """Do the steps; returns the seconds they took."""
    began_s = time.monotonic()
    for x, y in digits.batches(shard, settings.batch, steps, seed=seed):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return time.monotonic() - began_s


def alone(settings: Settings, seed: int) -> Found:
    """Train one process on as many pictures as all workers see."""
    train, held_out = digits.load(seed=seed)
    model = digits.network(seed=seed)
    sgd = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum)
    steps = WORKERS * settings.steps
    seconds = _train(model, sgd, train, settings, steps, 1000 * seed + WORKERS)
    return Found(digits.accuracy(model, held_out), steps * settings.batch, seconds)


def worker(settings: Settings, seed: int, world: World, box: smbox.Box) -> Found | None:
    """Train one of the workers; the first one judges the center.

    Args:
        settings: of the demo.
        seed: of the run.
        world: who this worker is.
        box: where the nodes' roots exchange and all meet.
    """
    train, held_out = digits.load(seed=seed)
    model = digits.network(seed=seed)
    sgd = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum)
    shard = train.shard(world.rank, world.world_size)
    with HybridSGD(sgd, box, "digits", period=settings.period, model=model) as optimizer:
        _meet(box, "start", world)
        order = 1000 * seed + world.rank
        seconds = _train(model, optimizer, shard, settings, settings.steps, order)
        _meet(box, "end", world)
        if world.rank != 0:
            return None
        nbytes = NODES * optimizer.stats().nbytes
        optimizer.center_into(model)
    samples = world.world_size * settings.steps * settings.batch
    return Found(digits.accuracy(model, held_out), samples, seconds, nbytes)


def _meet(box: smbox.Box, where: str, world: World) -> None:
    box.barrier(where, world.world_size, timeout_s=MEET_TIMEOUT_S)


def together(settings: Settings, seed: int) -> Found:
    """Train HybridSGD's workers.

    Raises:
        RuntimeError: a worker failed; the message holds what the workers printed.
    """
    said = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="smbox-digits-") as folder:
        told = {"settings": asdict(settings), "seed": seed}
        (Path(folder) / "settings.json").write_text(json.dumps(told))
        command = (sys.executable, __file__, "--worker", folder)
        plan = Plan(command, nodes=NODES, per_node=PER_NODE, memory=MEMORY)
        display = Display([rank // PER_NODE for rank in range(WORKERS)], Console(file=said))
        code = Launcher(plan, display, os.environ).run()
        if code:
            raise RuntimeError(f"a worker failed ({code}):\n{said.getvalue()}")
        return Found(**json.loads((Path(folder) / "found.json").read_text()))


def page(found: dict[int, tuple[Found, Found]], epochs: float, settings: Settings) -> str:
    """Return docs/digits.md: a row per seed, and the means."""
    hybrid, one = ([100 * each[side].accuracy for each in found.values()] for side in range(2))
    difference = [a - b for a, b in zip(hybrid, one, strict=True)]
    return PAGE.format(
        nodes=NODES,
        per_node=PER_NODE,
        epochs=epochs,
        samples=next(iter(found.values()))[0].samples,
        settings=settings,
        cores=os.cpu_count(),
        torch=torch.__version__,
        table=pages.table(HEAD, [_row(seed, *each) for seed, each in found.items()], words=0),
        hybrid=statistics.fmean(hybrid),
        one=statistics.fmean(one),
        difference=statistics.fmean(difference),
        least=min(difference),
        most=max(difference),
        seeds=",".join(map(str, found)),
    )


def _row(seed: int, hybrid: Found, one: Found) -> tuple[str, ...]:
    return (
        str(seed),
        f"{hybrid.accuracy:.2%}",
        f"{one.accuracy:.2%}",
        f"{100 * (hybrid.accuracy - one.accuracy):+.2f}",
        f"{hybrid.seconds:.1f}",
        f"{one.seconds:.1f}",
        f"{hybrid.nbytes / 2**20:.1f}",
    )


def _be_worker(folder: Path) -> None:
    told: dict[str, Any] = json.loads((folder / "settings.json").read_text())
    world = World.from_env(os.environ)
    with smbox.connect() as box:
        found = worker(Settings(**told["settings"]), told["seed"], world, box)
    if found is not None:
        (folder / "found.json").write_text(json.dumps(asdict(found)))


def main(words: Sequence[str] | None = None) -> None:
    """Train both sides with every seed and write the page."""
    parser = command_line.parser(__doc__, seeds="0,1,2,3,4")
    parser.add_argument("--epochs", type=float, default=40.0)
    parser.add_argument("--page", type=Path, default=Path("docs/digits.md"))
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    read = parser.parse_args(words)
    torch.set_num_threads(1)
    if read.worker is not None:
        _be_worker(read.worker)
        return
    base = Settings()
    settings = Settings(steps=steps_of(base, read.epochs))
    found = {}
    for seed in read.seeds:
        found[seed] = together(settings, seed), alone(settings, seed)
        hybrid, one = found[seed]
        print(f"seed {seed}: HybridSGD {hybrid.accuracy:.2%}, one process {one.accuracy:.2%}")
    read.page.write_text(page(found, read.epochs, settings))


if __name__ == "__main__":
    main()

"""One process of a row: it trains some batches and prints its figures as JSON.

python benchmarks/local_parallelism/work.py ROW [--data FILE] [--tiny]

``measure.py`` starts it, with torchrun's variables and the address of a memory node.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pictures
import psutil
import torch
from plan import ROWS, Row
from torch import nn

import smbox
from smbox_torch import Pipeline, SyncGroup

Step = Callable[[torch.Tensor, torch.Tensor], float]
MIB = 1 << 20
MEET_TIMEOUT_S = 300.0


def layers(row: Row, *, is_tiny: bool) -> nn.Sequential:
    """Return the network as a sequence of layers; a tiny one has the same number of them."""
    torch.manual_seed(0)
    if is_tiny:
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=8), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 28 * 28, 3)
        )
    import torchvision  # noqa: PLC0415 - slow to import

    net = getattr(torchvision.models, row.model)(num_classes=pictures.CLASSES)
    return nn.Sequential(*net.features, net.avgpool, nn.Flatten(), *net.classifier)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of every row."""
    return torch.optim.SGD(module.parameters(), lr=0.001, momentum=0.9)


def alone(net: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """Return a step of plain training; ``optimizer`` may average over processes."""

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def piped(pipe: Pipeline) -> Step:
    """Return a step of a pipeline's stage."""
    optimizer = sgd(pipe.module)

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = pipe.forward_backward(x, y)
        optimizer.step()
        return loss

    return step


def run(row: Row, box: smbox.Box, data: Path | None, *, is_tiny: bool) -> dict[str, object]:
    """Train, and return this process's figures."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(row.threads)
    pixels, classes = pictures.load(row.pictures, data)
    if row.kind == "pipeline":
        cut = 2 if is_tiny else row.cut

        def stage(part: slice) -> nn.Module:
            return layers(row, is_tiny=is_tiny)[part]

        with Pipeline(
            box,
            row.name,
            [lambda: stage(slice(cut)), lambda: stage(slice(cut, None))],
            example=pixels[: row.batch],
            loss=nn.functional.cross_entropy,
            micro_batches=row.micro_batches,
        ) as pipe:
            return timed(row, box, piped(pipe), pixels, classes, pipe)
    net = layers(row, is_tiny=is_tiny)
    if row.kind == "one":
        return timed(row, box, alone(net, sgd(net)), pixels, classes)
    with SyncGroup(sgd(net), net) as group:
        mine = slice(rank, None, row.processes)  # of every batch, since that divides a batch
        return timed(row, box, alone(net, group), pixels[mine], classes[mine], group)


def timed(
    row: Row,
    box: smbox.Box,
    step: Step,
    pixels: torch.Tensor,
    classes: torch.Tensor,
    waiting: Pipeline | SyncGroup | None = None,
) -> dict[str, object]:
    """Do a first batch, meet the others, and time the batches behind it.

    Args:
        row: what is run.
        box: the memory, for meeting.
        step: trains one batch.
        pixels: of this process.
        classes: of these.
        waiting: tells how long this process stood still for others.
    """
    size = row.batch // row.processes if row.kind == "processes" else row.batch
    x, y = pixels.split(size), classes.split(size)
    step(x[0], y[0])
    box.barrier(f"{row.name}-begin", row.processes, timeout_s=MEET_TIMEOUT_S)
    waited_ms = waiting.stats().waited_ms if waiting else 0.0
    cpu_s, began_s = time.process_time(), time.monotonic()
    for number in range(1, row.batches):
        loss = step(x[number], y[number])
    ended_s, cpu_s = time.monotonic(), time.process_time() - cpu_s
    waited_ms = waiting.stats().waited_ms - waited_ms if waiting else 0.0
    box.barrier(f"{row.name}-end", row.processes, timeout_s=MEET_TIMEOUT_S)
    memory = psutil.Process().memory_full_info()
    box.barrier(f"{row.name}-measured", row.processes, timeout_s=MEET_TIMEOUT_S)
    return {
        "began_s": began_s,
        "ended_s": ended_s,
        "cpu_s": cpu_s,
        "waited_s": waited_ms / 1000.0,
        "loss": loss,
        "pss_mib": memory.pss / MIB,
        "rss_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Run one process of a row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("row", choices=list(ROWS))
    parser.add_argument("--sizes", required=True, help="JSON: batch, batches")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tiny", action="store_true")
    read = parser.parse_args()
    row = ROWS[read.row].sized(**json.loads(read.sizes))
    with smbox.connect() as box:
        print(json.dumps(run(row, box, read.data, is_tiny=read.tiny)))


if __name__ == "__main__":
    main()

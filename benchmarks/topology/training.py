"""One worker of the experiment: trains a given way, and tells its controller how fast.

python -m topology.training SETTINGS

SETTINGS are JSON: fields of ``rows.Settings``. It prints a line of JSON with what it has built,
waits for a line on its standard input, trains, and prints its figures.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any

import torch
from torch import nn

import smbox
from smbox_torch import EASGD, HybridSGD, SyncGroup
from smbox_torch.averaging.box_group import BoxGroup
from smbox_torch.topology.measuring import boxes_of
from smbox_torch.world import World

PIXELS, CLASSES = 784, 10
ALONE = 12
"""Computations that are timed before the workers begin."""


def built(told: dict[str, Any], model: nn.Module, box: smbox.Box) -> Any:
    """Wrap the optimizer in the way that the settings name."""
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    way, period = told["way"], told["period"]
    if way == "auto":
        return HybridSGD(sgd, box, "run", groups="auto", period=period)
    if way == "easgd":
        return EASGD(sgd, box, "run", period=period)
    world = World.from_env(os.environ)
    node = boxes_of(box)[box.nodes[0].node_id]
    group = BoxGroup(node, "run", range(world.world_size), world.rank, timeout_s=300.0)
    return SyncGroup(sgd, world=world, group=group)


def main() -> None:
    """Train as told."""
    told = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden, batch = told["hidden"], told["batch"]
    model = nn.Sequential(nn.Linear(PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
    x, y = torch.randn(batch, PIXELS), torch.randint(0, CLASSES, (batch,))

    def compute() -> None:
        nn.functional.cross_entropy(model(x), y).backward()

    times = []
    for _ in range(ALONE):
        began_s = time.perf_counter()
        compute()
        times.append(time.perf_counter() - began_s)
    with smbox.connect(timeout_s=120.0) as box:
        optimizer = built(told, model, box)

        def train(steps: int) -> float:
            began_s = time.perf_counter()
            for _ in range(steps):
                optimizer.zero_grad()
                compute()
                optimizer.step()
            return time.perf_counter() - began_s

        train(told["period"] if told["way"] != "group" else 1)  # pages, first exchange
        shown = {"compute_s": statistics.median(times), "nbytes": _nbytes(model)}
        topology = getattr(optimizer, "topology", None)
        if topology is not None:
            shown["groups"] = [list(group.ranks) for group in topology.groups]
            shown["center"] = topology.center
            shown["cuts"] = [
                {"groups": [list(each.ranks) for each in cut.groups], "step_s": cut.step_s}
                for cut in topology.cuts
            ]
            shown["table"] = str(topology)
        print(json.dumps(shown), flush=True)
        sys.stdin.readline()
        print(json.dumps({"seconds": train(told["steps"])}), flush=True)
        sys.stdin.readline()  # all have told theirs: nobody's leaving is counted
        optimizer.close(exchange=False)


def _nbytes(model: nn.Module) -> int:
    return sum(each.nbytes for each in model.parameters())


if __name__ == "__main__":
    main()

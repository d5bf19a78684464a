"""Counts what HogWild++'s tolerance holds back on the digits, with one seed.

python benchmarks/digits_tolerance.py [--epochs 20]

The runs are those of digits_defaults.py with lr 0.02. A table of Markdown goes to the standard
output: share of the elements that an exchange writes to the next cluster, share of the norm of
all moves that it holds back, and the distance of the two clusters' parameters in the end,
relative to the norm of their mean.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import digits_defaults
import torch
from torch import nn

from smbox_torch.hogwild import hogwild_pp

DELAYS, TOLERANCES = (64, 4), (0.0, 1e-4, 1e-3, 1e-2)
LR, SEED = 0.02, 0


@dataclass
class Counted:
    """Sums over all exchanges of a run.

    Attributes:
        elements: that could have been written.
        written: to the next cluster.
        moves: sum of the squares of all moves.
        held: the same of those that were held back.
        distance: of the clusters in the end.
    """

    elements: int = 0
    written: int = 0
    moves: float = 0.0
    held: float = 0.0
    distance: float = 0.0

    def exchange(self, *tensors: torch.Tensor, tolerance: float, **shares: float) -> None:
        """Count an exchange of a tensor, and do it."""
        w, _, u = tensors
        d = (w - u).abs()
        is_held = d <= tolerance
        self.elements += d.numel()
        self.written += int((~is_held).sum())
        self.moves += float(d.square().sum())
        self.held += float(d[is_held].square().sum())
        EXCHANGE(*tensors, tolerance=tolerance, **shares)

    def team(self, seed: int, **settings: Any) -> digits_defaults.Team:
        """Make the workers, and measure their distance when the model is judged."""
        for workers, into in digits_defaults.hogwild_pp(seed, **settings):

            def judge(model: nn.Module, workers: Any = workers, into: Any = into) -> None:
                one, other = (
                    nn.utils.parameters_to_vector(m.parameters()) for m, _ in workers[::2]
                )
                mean = (one + other) / 2
                self.distance = float(((one - other).norm() / mean.norm()).detach())
                into(model)

            yield workers, judge


EXCHANGE = hogwild_pp.exchange


def main(words: Sequence[str] | None = None) -> int:
    """Train with every setting and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=float, default=20.0)
    read = parser.parse_args(words)
    torch.set_num_threads(1)
    print("| delay | tolerance | elements written | moves held back | distance |")
    print("| --: | --: | --: | --: | --: |")
    for delay, tolerance in itertools.product(DELAYS, TOLERANCES):
        counted = Counted()
        hogwild_pp.exchange = counted.exchange
        settings = {"delay": delay, "tolerance": tolerance, "lr": LR}
        digits_defaults.train(counted.team, settings, SEED, read.epochs)
        if not counted.moves:
            parser.error(
                f"--epochs {read.epochs:g} is too short: no exchange with delay {delay}"
            )
        held = (counted.held / counted.moves) ** 0.5
        cells = (f"{counted.written / counted.elements:.1%}", f"{held:.2%}")
        print(f"| {delay} | {tolerance:g} | {' | '.join(cells)} | {counted.distance:.2%} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

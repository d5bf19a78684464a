"""What is run: settings of a row, and its result in a file that the settings name."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

WAYS: Final = {
    "auto": 'HybridSGD(groups="auto")',
    "group": "SyncGroup of all workers",
    "easgd": "EASGD",
}
STEPS: Final = {"auto": 60, "group": 8, "easgd": 60}
"""Timed steps of each: of a synchronous group over the slow link one takes a second."""


@dataclass(frozen=True)
class Settings:
    """Of one run.

    Args:
        way: of WAYS.
        repeat: number of the run.
        steps: that are timed.
        within_mbit: rate of each host's link, in 10^6 bit/s.
        between_mbit: rate of the link of each island.
        hidden: size of the network's hidden layer; 1024: 3.3 MB of parameters.
        batch: images of a worker and step.
        period: steps between two exchanges with the center.
    """

    way: str
    repeat: int
    steps: int
    within_mbit: float = 2000.0
    between_mbit: float = 100.0
    hidden: int = 1024
    batch: int = 64
    period: int = 10

    @property
    def name(self) -> str:
        """For progress and messages."""
        return f"{self.way} {self.repeat}"

    @property
    def file_name(self) -> str:
        """Name of the result's file; another one for other settings."""
        key = zlib.crc32(json.dumps(asdict(self), sort_keys=True).encode())
        return f"{self.way}-{self.repeat}-{key:08x}.json"


def wanted(ways: Sequence[str], repeats: int, share: float, **more: Any) -> list[Settings]:
    """Return the runs that are asked for, taking turns over the ways.

    Args:
        ways: of WAYS.
        repeats: runs of each.
        share: of the steps; of ways that exchange, whole periods remain.
        more: other settings.
    """
    period = more.get("period", Settings.period)
    steps = {
        way: max(1, round(share * count))
        if way == "group"
        else period * max(1, round(share * count / period))
        for way, count in STEPS.items()
    }
    return [
        Settings(way, repeat, steps[way], **more) for repeat in range(repeats) for way in ways
    ]

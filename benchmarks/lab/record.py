"""A record of a run: what each host used and computed, over time, as JSON lines and a table."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TextIO

from rich.console import Console
from rich.table import Table

from lab.counters import Use
from lab.spec import HostSpec
from smbox_torch.launching.display import Display

PERIOD_S: Final = 0.5
IMAGES: Final = "images_per_s"
"""The field of a worker's report that counts."""


@dataclass
class Record:
    """Samples of all hosts.

    Args:
        hosts: of the laboratory.
        read: returns what each host has used so far.
        out: takes a JSON object for each host and period: ``t_s`` since the record began,
            ``clock_s`` of the monotonic clock, which all hosts have in common, ``host``,
            ``images_per_s`` (the workers' newest reports added up, null before the first),
            and what was used in the period, as of Use.
        computation: what stands for the workers' computation, for the table.
    """

    hosts: Sequence[HostSpec]
    read: Callable[[], Mapping[str, Use]]
    out: TextIO
    computation: str
    _images: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    _rates: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self._began_s = self._read_s = time.monotonic()
        self._first = self._last = self.read()

    def report(self, host: str, rank: int, fields: Mapping[str, Any]) -> None:
        """Take a worker's report."""
        if IMAGES in fields:
            self._images[host][rank] = float(fields[IMAGES])

    def sample(self, *, now: bool = False) -> None:
        """Write a sample of each host if a period is over, or ``now``."""
        time_s = time.monotonic()
        if not now and time_s - self._read_s < PERIOD_S:
            return
        self._read_s = time_s
        used = self.read()
        for host in self.hosts:
            rates = self._images[host.name].values()
            if rates:
                self._rates[host.name].append(sum(rates))
            line = {
                "t_s": round(time_s - self._began_s, 3),
                "clock_s": round(time_s, 3),
                "host": host.name,
                IMAGES: sum(rates) if rates else None,
                **_between(self._last[host.name], used[host.name]),
            }
            self.out.write(json.dumps(line) + "\n")
        self.out.flush()
        self._last = used

    def table(self) -> Table:
        """Lay out a row for each host: means over the record, and sums."""
        seconds = self._read_s - self._began_s
        shown = Table(title=f"{seconds:.1f} s; computation: {self.computation}")
        for name in (
            "host",
            "link Mbit/s",
            "images/s",
            "CPU s",
            "in MB",
            "out MB",
            "in packets",
        ):
            shown.add_column(name, justify="left" if name == "host" else "right")
        for name in ("out packets", "in Mbit/s", "out Mbit/s", "drops"):
            shown.add_column(name, justify="right")
        for host in self.hosts:
            used = _between(self._first[host.name], self._last[host.name])
            rates = self._rates[host.name]
            shown.add_row(
                host.name,
                f"{host.rate_mbit:g}" if host.rate_mbit else "-",
                f"{sum(rates) / len(rates):.1f}" if rates else "-",
                f"{used['cpu_s']:.1f}",
                f"{used['in_bytes'] / 1e6:.1f}",
                f"{used['out_bytes'] / 1e6:.1f}",
                f"{used['in_packets']}",
                f"{used['out_packets']}",
                f"{used['in_bytes'] * 8e-6 / seconds:.0f}",
                f"{used['out_bytes'] * 8e-6 / seconds:.0f}",
                f"{used['drops']}",
            )
        return shown


def _between(first: Use, last: Use) -> dict[str, float]:
    before, after = asdict(first), asdict(last)
    return {name: round(after[name] - before[name], 3) for name in after}


class RecordingDisplay(Display):
    """A display that also records: the launcher refreshes it ten times a second.

    Args:
        record: takes reports and samples.
        places: name of each rank's host.
        console: where to show the workers' lines.
    """

    def __init__(self, record: Record, places: Sequence[str], console: Console) -> None:
        self._record = record
        self._places = places
        super().__init__(places, console)

    def report(self, rank: int, fields: dict[str, Any]) -> None:
        """Show and record a worker's newest figures."""
        super().report(rank, fields)
        self._record.report(self._places[rank], rank, fields)

    def refresh(self, *, now: bool = False) -> None:
        """Draw the table again, and sample."""
        super().refresh(now=now)
        self._record.sample()

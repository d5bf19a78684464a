"""What a launcher shows: one live line per worker on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

REFRESH_S: Final = 0.1
STYLES: Final = {"running": "cyan", "done": "green", "failed": "bold red", "ended": "yellow"}


@dataclass
class Row:
    """What is known about one worker."""

    node: int
    state: str = "starting"
    fields: dict[str, Any] = field(default_factory=dict)
    last: str = ""


class Board:
    """The workers of a run, shown as they go.

    Args:
        nodes: of each rank, the number of the node it belongs to.
        console: where to show it; a live table where that is a terminal.
    """

    def __init__(self, nodes: list[int], console: Console) -> None:
        self._rows = [Row(node) for node in nodes]
        self._console = console
        self._live: Live | None = None
        self._shown_s = 0.0
        if console.is_terminal:
            self._live = Live(self.table(), console=console, auto_refresh=False)
            self._live.start()

    def line(self, rank: int, text: str) -> None:
        """Show a line that a worker has printed."""
        self._rows[rank].last = text
        self._console.print(Text(f"[rank {rank}] {text}"), soft_wrap=True)

    def report(self, rank: int, fields: dict[str, Any]) -> None:
        """Show a worker's newest figures; those not named stay."""
        self._rows[rank].fields |= fields

    def state(self, rank: int, state: str) -> None:
        """Show what a worker does: its first word is one of STYLES."""
        self._rows[rank].state = state

    def note(self, text: str) -> None:
        """Show a line of the launcher's own."""
        self._console.print(Text(f"smbox run: {text}"), soft_wrap=True)

    def refresh(self, *, now: bool = False) -> None:
        """Draw the table again, at most every REFRESH_S unless ``now``."""
        time_s = time.monotonic()
        if self._live is not None and (now or time_s - self._shown_s >= REFRESH_S):
            self._shown_s = time_s
            self._live.update(self.table(), refresh=True)

    def close(self) -> None:
        """Show the last state and leave it on the terminal."""
        if self._live is not None:
            self.refresh(now=True)
            self._live.stop()
            self._live = None

    def table(self) -> Table:
        """Lay out one line per worker."""
        table = Table(box=None, pad_edge=False)
        for name in ("rank", "node", "state", "progress"):
            table.add_column(name, no_wrap=True)
        for rank, row in enumerate(self._rows):
            style = STYLES.get(row.state.split(maxsplit=1)[0].rstrip(":"), "")
            progress = worded(row.fields) or row.last
            cells = (str(rank), str(row.node), Text(row.state, style), Text(progress))
            table.add_row(*cells)
        return table


def worded(fields: dict[str, Any]) -> str:
    """Word figures in one line, numbers with four digits."""
    return "  ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in fields.items()
    )

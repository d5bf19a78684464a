"""The display of a launcher: one live line per worker on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from smbox_torch.launching.logs import Logs
from smbox_torch.launching.repeated_warnings import RepeatedWarnings
from smbox_torch.launching.screen import Screen
from smbox_torch.launching.terminal import Terminal

REFRESH_S: Final = 0.1
QUESTION_S: Final = 0.2
"""A row without a newline counts as a question after this time."""

STYLES: Final = {"running": "cyan", "done": "green", "failed": "bold red", "ended": "yellow"}


@dataclass
class Row:
    """The display's data of one worker."""

    node: str
    screen: Screen
    state: str = "starting"
    fields: dict[str, Any] = field(default_factory=dict)
    last: str = ""


class Display:
    """Shows the state, progress and output of all workers of a run.

    In a pipe, and in the logs, a progress bar is one line with its last state. On a terminal,
    the bars and questions of the first shown rank are below the table. A repeated warning is
    shown once and counted; ``close`` shows the counts.

    Args:
        nodes: number or name of each rank's node.
        console: the output; on a terminal, a live table.
        ranks: ranks to show; None: all.
        logs: log files of all output.
    """

    def __init__(
        self,
        nodes: Sequence[int | str],
        console: Console,
        *,
        ranks: Collection[int] | None = None,
        logs: Logs | None = None,
    ) -> None:
        self._console = console
        self._rows = [Row(str(node), self._screen(rank)) for rank, node in enumerate(nodes)]
        self._ranks = sorted(range(len(nodes)) if ranks is None else ranks)
        self._logs = logs
        self._repeats = RepeatedWarnings()
        self._drawn_s = 0.0
        self._question = ""
        self._question_s = 0.0
        self._terminal = Terminal(console) if console.is_terminal else None
        self.refresh(now=True)

    def output(self, rank: int) -> Screen:
        """Return the screen for the output of a worker that starts."""
        screen = self._rows[rank].screen = self._screen(rank)
        return screen

    def _screen(self, rank: int) -> Screen:
        return Screen(lambda lines: self.lines(rank, lines))

    def env(self, rank: int) -> dict[str, str]:
        """Return variables that let a shown worker's rich and tqdm draw as on the terminal."""
        if self._terminal is None or rank != self._ranks[0]:
            return {}
        columns, lines = self._console.size
        return {
            "TTY_COMPATIBLE": "1",
            "TTY_INTERACTIVE": "1",
            "COLUMNS": str(columns),
            "LINES": str(lines),
        }

    def lines(self, rank: int, lines: Sequence[str]) -> None:
        """Show one or more lines of a worker, without repeated warnings."""
        self._rows[rank].last = lines[-1]
        self._log(rank, lines)
        if rank in self._ranks:
            new = (text for text in lines if not self._repeats.is_repeat(rank, text))
            self._show([f"[rank {rank}] {text}" for text in new])

    def _log(self, rank: int, lines: Sequence[str]) -> None:
        """Write lines to the logs; end the logs, not the run, if they cannot be written."""
        if self._logs is None:
            return
        try:
            self._logs.write(rank, lines)
        except OSError as error:
            self.note(
                f"the logs end here, and the run continues: cannot write in"
                f" {self._logs.folder} ({error.strerror})"
            )
            self._logs.close()
            self._logs = None

    def report(self, rank: int, fields: dict[str, Any]) -> None:
        """Update the shown values of a worker; other values stay."""
        self._rows[rank].fields |= fields

    def state(self, rank: int, state: str) -> None:
        """Show the state of a worker; its first word is "starting" or a key of STYLES."""
        self._rows[rank].state = state

    def note(self, text: str) -> None:
        """Show a message of the launcher."""
        self._show([f"smbox run: {text}"])

    def _show(self, lines: Sequence[str]) -> None:
        """Show lines in one write, which is faster than one write for each line."""
        if not lines:
            return
        if self._terminal is not None:
            self._terminal.lines(lines)
        else:
            self._console.file.write("\n".join(lines) + "\n")
            self._console.file.flush()

    def refresh(self, *, now: bool = False) -> None:
        """Redraw the table, at most every REFRESH_S unless ``now``."""
        time_s = time.monotonic()
        if self._terminal is None or not (now or time_s - self._drawn_s >= REFRESH_S):
            return
        self._drawn_s = time_s
        question = self._rows[self._ranks[0]].screen.question
        if question != self._question:
            self._question, self._question_s = question, time_s
        is_asked = time_s - self._question_s >= QUESTION_S or self._terminal.is_asking
        if question and is_asked:
            self._terminal.ask(f"[rank {self._ranks[0]}] {question}")
        else:
            self._terminal.draw(self._display())

    def close(self) -> None:
        """Show the counts of repeated warnings, and leave the last state on the terminal."""
        for text in self._repeats.summary():
            self.note(text)
        self._repeats = RepeatedWarnings()
        if self._terminal is not None:
            self._terminal.close(self._display())
            self._terminal = None
        if self._logs is not None:
            self._logs.close()
            self._logs = None

    def _display(self) -> RenderableType:
        rows = self._rows[self._ranks[0]].screen.rows
        bars = [Text(row, no_wrap=True, overflow="crop") for row in rows]
        return Group(self.table(), *bars)

    def table(self) -> Table:
        """Return a table with one line per worker."""
        table = Table(box=None, pad_edge=False)
        for name in ("rank", "node", "state", "progress"):
            table.add_column(name, no_wrap=True)
        for rank in self._ranks:
            row = self._rows[rank]
            style = STYLES.get(row.state.split(maxsplit=1)[0].rstrip(":"), "")
            progress = worded(row.fields) or (row.screen.rows or [row.last])[-1]
            cells = (str(rank), row.node, Text(row.state, style), Text(progress))
            table.add_row(*cells)
        return table


def worded(fields: dict[str, Any]) -> str:
    """Return named values as one line, floats with four digits."""
    return "  ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in fields.items()
    )

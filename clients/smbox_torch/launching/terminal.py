"""The bottom rows of a terminal: a redrawn display, or the prompt of a worker.

While a worker asks (the prompt of a debugger), the display makes room for the question, so that
the answer is typed behind it and nothing draws over it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

PAUSE_S: Final = 1.0
"""From the last question to the display: a debugger asks again at once."""


class Terminal:
    """What stands below the lines of a run.

    Args:
        console: a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._asked = ""
        self._asked_s = -PAUSE_S

    def draw(self, display: RenderableType) -> None:
        """Draw the display again, unless somebody has just asked something."""
        if self._asked or time.monotonic() - self._asked_s < PAUSE_S:
            return
        if self._live is None:
            self._live = Live(display, console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(display, refresh=True)

    @property
    def is_asking(self) -> bool:
        """Whether a question stands at the cursor."""
        return bool(self._asked)

    def ask(self, question: str) -> None:
        """Show a row that has no end yet in place of the display, with the cursor behind it."""
        self._hide()
        if not question.startswith(self._asked):
            self._end_row()
        self._raw(question[len(self._asked) :])
        self._asked = question
        self._asked_s = time.monotonic()

    def lines(self, lines: Sequence[str]) -> None:
        """Show lines above; the first one ends the question that it begins with."""
        if self._asked and lines[0].startswith(self._asked):
            # Whoever answered has ended the row already: only what came after it is shown.
            self._raw(lines[0][len(self._asked) :] + "\n")
            self._asked = ""
            lines = lines[1:]
        self._end_row()
        if lines:
            self._console.print(Text("\n".join(lines)), soft_wrap=True)

    def close(self, display: RenderableType) -> None:
        """Leave the display's last state on the terminal."""
        self._end_row()
        self._asked_s = -PAUSE_S
        self.draw(display)
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _hide(self) -> None:
        if self._live is not None:
            self._live.transient = True
            self._live.stop()
            self._live = None

    def _end_row(self) -> None:
        if self._asked:
            self._raw("\n")
            self._asked = ""

    def _raw(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()

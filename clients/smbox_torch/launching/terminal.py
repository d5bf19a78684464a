"""The bottom rows of a terminal: a redrawn display, or the prompt of a worker.

While a worker shows a prompt (of a debugger, for example), the display is hidden. The user
types the answer after the prompt, and nothing overwrites it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

PAUSE_S: Final = 1.0
"""Time from the last prompt to the display: a debugger shows the next prompt at once."""


class Terminal:
    """The rows below the output lines of a run.

    Args:
        console: a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._asked = ""
        self._asked_s = -PAUSE_S

    def draw(self, display: RenderableType) -> None:
        """Redraw the display, unless a prompt is shown or has just been answered."""
        if self._asked or time.monotonic() - self._asked_s < PAUSE_S:
            return
        if self._live is None:
            self._live = Live(display, console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(display, refresh=True)

    @property
    def is_asking(self) -> bool:
        """Whether a prompt is shown at the cursor."""
        return bool(self._asked)

    def ask(self, question: str) -> None:
        """Show a prompt in place of the display, with the cursor after it."""
        self._hide()
        if not question.startswith(self._asked):
            self._end_row()
        self._raw(question[len(self._asked) :])
        self._asked = question
        self._asked_s = time.monotonic()

    def lines(self, lines: Sequence[str]) -> None:
        """Show lines above the display; a first line that begins with the prompt ends it."""
        if self._asked and lines[0].startswith(self._asked):
            # The user's newline has ended the row: print only the text after the prompt.
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

"""A worker's output as lines, without the text that cursor movements overwrite.

A progress bar (tqdm, rich) rewrites its rows many times. Like a terminal, a screen holds the
rows that may still be overwritten, and passes on a row as a line once it cannot change. Rows
are held only after the first upward movement of the cursor, as many as the cursor moved.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

TOKEN: Final = re.compile(
    r"\x1b\[(?P<values>[0-?]{0,64})[ -/]?(?P<final>[@-~])"  # a control sequence (ECMA-48)
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # a title or a link
    r"|\x1b[^\[\]\x1b\r\n\b]"
    r"|[\r\n\b]"
    r"|[^\x1b\r\n\b]+"
)
BEGUN: Final = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]?|\][^\x07\x1b]{0,4096}\x1b?)?\Z")
"""The beginning of an incomplete sequence."""

ROW_CHARS_MAX: Final = 1 << 16
"""Output without a newline is passed on in pieces of this size."""

HELD_ROWS_MAX: Final = 64
PATIENCE: Final = 8
"""Rows are held until this many new lines per held row follow without a movement up."""


@dataclass
class Row:
    """A row that may still change.

    Args:
        text: its text.
        is_bar: text in it was overwritten.
        is_gone: it represents a line that was passed on, or it was erased to the end of the
            screen; it was not written to since then.
    """

    text: str = ""
    is_bar: bool = False
    is_gone: bool = False


class Screen:
    """The rows of one worker that may still change.

    Args:
        settle: called with the final lines of each chunk, without their newlines.
    """

    def __init__(self, settle: Callable[[list[str]], None]) -> None:
        self._settle = settle
        self._settled: list[str] = []
        self._rows = [Row()]
        self._at = 0
        self._column = 0
        self._held = 0
        self._new_lines = 0
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, chunk: bytes) -> None:
        """Process a chunk of bytes; chunks may end anywhere."""
        text = self._rest + self._decoder.decode(chunk)
        begun = BEGUN.search(text)
        end = begun.start() if begun else len(text)
        self._rest = text[end:]
        for token in TOKEN.finditer(text, 0, end):
            self._take(token)
        self._tell()

    def end(self) -> None:
        """Pass on all rows at the end of the input."""
        self._write(self._decoder.decode(b"", final=True))
        for row in self._rows[:-1]:
            self._give_away(row)
        if self._rows[-1].text:
            self._give_away(self._rows[-1])
        self._rows = [Row()]
        self._at = self._column = 0
        self._tell()

    @property
    def rows(self) -> list[str]:
        """The rows that may still change, without empty rows."""
        return [row.text for row in self._rows if row.text.strip()]

    @property
    def question(self) -> str:
        """The row at the cursor without a newline, unless it is a bar, such as a prompt."""
        row = self._rows[-1]
        is_at_its_end = self._at == len(self._rows) - 1 and not row.is_bar
        return row.text if is_at_its_end else ""

    def _take(self, token: re.Match[str]) -> None:
        sign = token[0]
        if token["final"]:
            self._control(token["final"], token["values"])
        elif sign == "\n":
            self._new_line()
        elif sign == "\r":
            self._column = 0
            self._rows[self._at].is_bar = True
        elif sign == "\b":
            self._column = max(0, self._column - 1)
        elif sign[0] != "\x1b":
            self._write(sign)

    def _write(self, text: str) -> None:
        if not text:
            return
        row = self._rows[self._at]
        before, after = row.text[: self._column], row.text[self._column + len(text) :]
        row.text = before.ljust(self._column) + text + after
        row.is_gone = False
        self._column += len(text)
        if len(row.text) > ROW_CHARS_MAX:
            self._new_line()

    def _new_line(self) -> None:
        self._at += 1
        self._column = 0
        if self._at == len(self._rows):
            self._rows.append(Row())
        self._new_lines += 1
        if self._new_lines > PATIENCE * self._held:
            self._held = 0
        while self._at > self._held:
            self._at -= 1
            self._give_away(self._rows.pop(0))

    def _give_away(self, row: Row) -> None:
        text = row.text.rstrip() if row.is_bar else row.text
        if not row.is_gone and (text or not row.is_bar):
            self._settled.append(text)

    def _tell(self) -> None:
        lines, self._settled = self._settled, []
        if lines:
            self._settle(lines)  # last: it may raise if the reader has gone

    def _control(self, final: str, values: str) -> None:
        """Execute a sequence that moves the cursor or erases; ignore others, such as colors."""
        count = int(values) if values.isdecimal() else 0
        if final == "A":
            self._move_up(max(1, count))
        elif final == "B":
            self._move_down(max(1, count))
        elif final == "C":
            self._column = min(self._column + max(1, count), ROW_CHARS_MAX)
        elif final == "D":
            self._column = max(0, self._column - max(1, count))
        elif final == "G":
            self._column = min(max(0, count - 1), ROW_CHARS_MAX)
        elif final == "K":
            self._erase(count)
        elif final == "J" and count in {0, 2}:
            self._erase(0)
            for row in self._rows[self._at + 1 :]:
                row.text, row.is_bar, row.is_gone = "", False, True

    def _erase(self, which: int) -> None:
        """Erase the end of the row (0), its beginning (1) or all of it (2)."""
        row = self._rows[self._at]
        end = row.text[self._column :]
        kept = {0: row.text[: self._column], 1: " " * self._column + end}
        row.text = kept.get(which, "")
        row.is_bar = True

    def _move_up(self, count: int) -> None:
        self._new_lines = 0
        while self._at < count and len(self._rows) <= HELD_ROWS_MAX:
            self._rows.insert(0, Row(is_bar=True, is_gone=True))
            self._at += 1
        self._at = max(0, self._at - count)
        self._held = max(self._held, len(self._rows) - 1 - self._at)

    def _move_down(self, count: int) -> None:
        self._at = min(self._at + count, len(self._rows) - 1)

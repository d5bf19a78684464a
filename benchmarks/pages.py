"""Pages of experiments: tables, and parts that a program writes between two comments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parents[1] / "docs" / "experiments"
NOT_MEASURED: Final = "Not measured yet."


def fill(page: Path, parts: Mapping[str, str]) -> None:
    """Replace each part, between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``.

    Raises:
        ValueError: the page lacks a part's comments; it is unchanged.
    """
    text = page.read_text()
    for name, part in parts.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if len(between.findall(text)) != 1:
            raise ValueError(f"{page} lacks {begin} ... {end}")
        text = between.sub(lambda _, b=begin, p=part, e=end: f"{b}\n{p}\n{e}", text)
    page.write_text(text)


def table(head: Sequence[str], lines: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """Lay out a table whose first so many columns are words, and the others figures."""
    marks = ["---" if index < words else "--:" for index in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, marks, *lines])

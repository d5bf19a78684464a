"""Pages whose results stand between two marks: the words around them are written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Final

BEGIN: Final = "<!-- results: written by the experiment -->"
END: Final = "<!-- end of the results -->"
NOTHING: Final = "Not measured yet."


def write_results(page: Path, text: str) -> None:
    """Replace what stands between the marks of a page; the rest stays.

    Raises:
        ValueError: the page has no marks; it is as it was.
    """
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} lacks {BEGIN} or {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text.strip() or NOTHING}\n\n{END}{after}")


def table(head: list[str], lines: list[list[str]], *, words: int = 1) -> str:
    """Lay out a table whose first so many columns are words, and the others figures."""
    marks = ["---" if index < words else "--:" for index in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, marks, *lines])

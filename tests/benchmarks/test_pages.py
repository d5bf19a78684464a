from __future__ import annotations

from pathlib import Path

import pages
import pytest


def test_parts_are_replaced_and_the_words_around_them_stay(tmp_path: Path):
    path = tmp_path / "page.md"
    path.write_text(
        "a\n<!-- begin x -->\nold\n<!-- end x -->\nb <!-- begin y --><!-- end y -->"
    )
    for _ in range(2):
        pages.fill(path, {"y": r"\1", "x": "new\nlines"})
        assert path.read_text() == (
            "a\n<!-- begin x -->\nnew\nlines\n<!-- end x -->\n"
            "b <!-- begin y -->\n\\1\n<!-- end y -->"
        )


def test_a_page_that_lacks_a_part_is_left_alone(tmp_path: Path):
    path = tmp_path / "page.md"
    path.write_text("<!-- begin x --><!-- end x -->")
    with pytest.raises(ValueError, match="begin y"):
        pages.fill(path, {"x": "new", "y": "figures"})
    assert path.read_text() == "<!-- begin x --><!-- end x -->"


def test_a_table_has_words_on_the_left_and_figures_on_the_right():
    lines = ["| row | s |", "| --- | --: |", "| one | 2 |"]
    assert pages.table(["row", "s"], [["one", "2"]]).splitlines() == lines

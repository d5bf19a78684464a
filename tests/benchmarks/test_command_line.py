from __future__ import annotations

from pathlib import Path

import command_line
import pytest
from pages import DOCS

ROWS = ("one", "easgd", "easgd-16")


def test_common_arguments_have_common_or_own_defaults():
    parser = command_line.parser("What it does.\nMore.", "only", "docs", out=Path("results"))
    read = parser.parse_args([])
    assert vars(read) == {"only": "*", "docs": DOCS, "out": Path("results")}
    assert parser.description == "What it does."
    read = parser.parse_args(["--only", "a", "--docs", "b", "--out", "c"])
    assert (read.only, read.docs, read.out) == ("a", Path("b"), Path("c"))


def test_globs_select_rows_in_the_order_of_the_rows():
    parser = command_line.parser("Runs.", "only")
    for only, names in (
        ("*", ROWS),
        ("easgd-*,one", ("one", "easgd-16")),
        ("easgd", ["easgd"]),
    ):
        read = parser.parse_args(["--only", only])
        assert command_line.selected(parser, read, iter(ROWS)) == list(names)


def test_globs_that_name_no_row_are_refused(capsys: pytest.CaptureFixture[str]):
    parser = command_line.parser("Runs.", "only")
    with pytest.raises(SystemExit):
        command_line.selected(parser, parser.parse_args(["--only", "walking*"]), ROWS)
    assert "--only walking* names none of the rows one, easgd" in capsys.readouterr().err


def test_seeds_are_numbers_with_commas(capsys: pytest.CaptureFixture[str]):
    parser = command_line.parser("Runs.", seeds="3,1,2")
    assert parser.parse_args([]).seeds == [3, 1, 2]
    assert parser.parse_args(["--seeds", "7"]).seeds == [7]
    with pytest.raises(SystemExit):
        parser.parse_args(["--seeds", "1-3"])
    assert "argument --seeds: invalid numbers value: '1-3'" in capsys.readouterr().err

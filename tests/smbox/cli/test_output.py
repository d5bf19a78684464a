"""Tables, JSON and messages of the commands."""

from __future__ import annotations

import json
import sys

import pytest

from smbox import errors
from smbox.cli import output


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.ConnectError("x"), 3),
        (errors.PeerLostError("x"), 3),
        (errors.RequestTimeoutError("x"), 4),
        (errors.RegionNotFoundError("x"), 5),
        (errors.OutOfMemoryError("x"), 1),
        (errors.SmboxError("x"), 1),
    ],
)
def test_every_error_has_its_exit_code(error, code):
    assert output.exit_code(error) == code


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (3 << 30, "3.0 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_sizes_are_shown_in_their_unit(nbytes, text):
    assert output.human_nbytes(nbytes) == text


def test_json_prints_what_json_lacks_as_text(capsys):
    output.print_json({"a": 1, "b": {"c": errors.SmboxError("no")}})
    assert json.loads(capsys.readouterr().out) == {"a": 1, "b": {"c": "no"}}


def test_a_table_keeps_every_cell_on_its_line(capsys):
    output.print_table(["NAME", "N"], [["a-name-that-is-long" * 4, 7], ["b", 11]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "N"]
    assert lines[1].split() == ["a-name-that-is-long" * 4, "7"]
    assert lines[2].split() == ["b", "11"]
    assert len(lines[1].rstrip()) == len(lines[2].rstrip())  # numbers are right-aligned


def test_a_pipe_gets_whole_rows_however_wide(capsys):
    output.print_table(["NAME", "N"], [["n" * 300, "a cell"]])
    assert capsys.readouterr().out.splitlines()[1].split(maxsplit=1) == ["n" * 300, "a cell"]


@pytest.mark.parametrize("name", ["layer[weight]", "layer[/weight]", "a\\[b]", ":smile:"])
def test_a_table_shows_brackets_and_colons_as_they_are(capsys, name):
    output.print_table(["NAME"], [[name]])
    assert capsys.readouterr().out.split() == ["NAME", name]


def test_a_table_needs_no_stdout(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    output.print_table(["NAME"], [["a"]])


def test_an_empty_table_has_its_header(capsys):
    output.print_table(["NAME", "N"], [])
    assert capsys.readouterr().out.split() == ["NAME", "N"]


def test_facts_are_aligned(capsys):
    output.print_facts({"a": 1, "long": 2})
    assert capsys.readouterr().out == "a     1\nlong  2\n"


def test_complaints_go_to_stderr(capsys):
    output.print_error("no such thing")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "smbox: no such thing\n")


def test_complaints_without_a_stderr_are_not_mixed_with_the_output(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)  # closed by the caller
    output.print_error("no such thing")
    assert capsys.readouterr().out == ""

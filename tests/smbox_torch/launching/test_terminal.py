from __future__ import annotations

import io

import pytest
from rich.console import Console

from smbox_torch.launching.screen import Screen
from smbox_torch.launching.terminal import Terminal


@pytest.fixture
def shown():
    return io.StringIO()


@pytest.fixture
def terminal(shown: io.StringIO):
    return Terminal(Console(file=shown, force_terminal=True, width=60, highlight=False))


def seen(shown: io.StringIO) -> list[str]:
    """The rows of the terminal in the end, without the blank ones below."""
    rows: list[str] = []
    screen = Screen(rows.extend)
    screen.feed(b"\n" * 9 + b"\x1b[9A")  # so high is the terminal
    screen.feed(shown.getvalue().encode())
    screen.end()
    return [row for row in rows if row]


def test_lines_stand_above_the_display(terminal: Terminal, shown: io.StringIO):
    terminal.draw("table 1")
    terminal.lines(["a line"])
    terminal.draw("table 2")
    terminal.close("table 3")
    assert seen(shown) == ["a line", "table 3"]


def test_a_question_stands_in_place_of_the_display(terminal: Terminal, shown: io.StringIO):
    terminal.draw("table")
    terminal.ask("name? ")
    assert shown.getvalue().endswith("name? ")
    assert "table" not in seen(shown)
    before = shown.getvalue()
    terminal.ask("name? ")
    terminal.draw("table")
    assert shown.getvalue() == before
    assert terminal.is_asking


def test_what_comes_after_an_answer_continues_in_the_next_row(
    terminal: Terminal, shown: io.StringIO
):
    terminal.ask("name? ")
    shown.write("me\r\n")  # the terminal's echo of what is typed
    terminal.lines(["name? hello me"])
    assert not terminal.is_asking
    assert seen(shown) == ["name? me", "hello me"]


def test_a_line_of_another_worker_ends_the_row(terminal: Terminal, shown: io.StringIO):
    terminal.ask("name? ")
    terminal.lines(["other"])
    assert not terminal.is_asking
    terminal.ask("name? ")
    assert seen(shown) == ["name?", "other", "name?"]


def test_a_question_may_grow_or_change(terminal: Terminal, shown: io.StringIO):
    for text in (".", "..", "...", "other"):
        terminal.ask(text)
    assert seen(shown) == ["...", "other"]


def test_the_last_display_stays_even_after_a_question(terminal: Terminal, shown: io.StringIO):
    terminal.ask("name? ")
    terminal.close("table")
    assert seen(shown) == ["name?", "table"]
    assert "\x1b[?25h" in shown.getvalue()  # the cursor is visible

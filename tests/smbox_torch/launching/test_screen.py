from __future__ import annotations

import io
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st
from rich.console import Console
from rich.progress import Progress

from smbox_torch.launching.screen import ROW_CHARS_MAX, Screen


def lines_of(text: str | bytes, cut: int = 1 << 20) -> list[str]:
    """What becomes of output that comes in pieces of ``cut`` bytes."""
    told: list[str] = []
    screen = Screen(told.extend)
    chunk = text.encode() if isinstance(text, str) else text
    for at in range(0, len(chunk), cut):
        screen.feed(chunk[at : at + cut])
    screen.end()
    return told


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\n\n b ", ["a", "", " b "]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("10%\r20%\r100%\nnext\n", ["100%", "next"]),
        ("\rlonger\rbar", ["barger"]),
        ("\rlonger\r\x1b[2Kbar", ["bar"]),
        ("\rlonger\r      \rdone", ["done"]),
        ("\rlonger\r      \r\nnext", ["next"]),  # a bar that was wiped out
        ("ab\x1b[Kc\x1b[1mbold\x1b[0m", ["abcbold"]),
        ("\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link", ["textlink"]),
        ("abc\b\bX", ["aXc"]),
        ("one\ntwo\x1b[A\rONE\n\x1b[2KTWO\n", ["one", "ONE", "TWO"]),
        ("a\nb\x1b[A", ["a", "b"]),
        ("ab\x1b[DX\x1b[2CY", ["aX  Y"]),
        ("abc\x1b[GX\x1b[3GZ", ["XbZ"]),
        ("one\ntwo\x1b[A\rONE\x1b[B\r\x1b[2KTWO\n", ["one", "ONE", "TWO"]),
        ("one\ntwo\nthree\x1b[A\r\x1b[JTWO\n", ["one", "two", "TWO"]),
        ("a\n\x1b[A\rb\nc\nd\x1b[2A\r\x1b[Je\n", ["a", "b", "e"]),  # c and d were erased
        ("\x1b[3;4Hx\x1b[9999999999y", ["x"]),
        ("größe \U0001f600\n", ["größe \U0001f600"]),
        (b"\xff\n", ["�"]),
        ("", []),
    ],
)
def test_lines_are_what_a_terminal_would_show(text: str | bytes, lines: list[str]):
    assert lines_of(text) == lines
    assert lines_of(text, cut=1) == lines


@given(st.lists(st.text(alphabet="ab\n\r\x1b[A2K;\b é]\x07\\"), max_size=20))
def test_nothing_depends_on_where_output_is_cut(parts: list[str]):
    text = "".join(parts)
    assert lines_of(text, cut=1) == lines_of(text)


@given(st.text(st.characters(exclude_characters="\r\n\x1b\b", exclude_categories=("Cs",))))
def test_plain_lines_stay_as_they_are(text: str):
    assert lines_of(f"{text}\nend") == [text, "end"]


def test_output_without_an_end_is_given_away_in_pieces():
    told: list[str] = []
    screen = Screen(told.extend)
    for _ in range(5):
        screen.feed(b"x" * ROW_CHARS_MAX)
    assert sum(map(len, told)) >= 3 * ROW_CHARS_MAX
    screen.end()
    assert sum(map(len, told)) == 5 * ROW_CHARS_MAX


def test_lines_come_at_once_again_after_a_display_of_several_rows():
    told: list[str] = []
    screen = Screen(told.extend)
    screen.feed(b"\n\n\rbar\x1b[A\x1b[A\rtop")
    screen.feed(b"\n" * 20 + b"now\n")
    assert told[-1] == "now"


def test_rows_that_move_up_without_end_are_bounded():
    screen = Screen(print)
    screen.feed(b"\x1b[999A" * 100)
    assert len(screen.rows) == 0
    screen.feed(b"x")
    assert screen.rows == ["x"]


def test_a_row_without_an_end_is_a_question_unless_it_is_a_bar():
    screen = Screen(print)
    screen.feed(b"> train.py(3)\n(Pdb) ")
    assert screen.question == "(Pdb) "
    assert screen.rows == ["(Pdb) "]
    screen.feed(b"\r 10%")
    assert screen.question == ""
    screen.feed(b"\n\n\x1b[A\r\x1b[Jsaved\nContinue? ")
    assert screen.question == "Continue? "


TQDM = """
import sys
from tqdm import tqdm
for epoch in tqdm(range(3), desc="epochs", mininterval=0):
    for step in tqdm(range(300), desc=f"epoch {epoch}", mininterval=0, leave=NESTED):
        pass
print("done", file=sys.stderr)
"""


@pytest.mark.parametrize("leave", [True, False])
def test_bars_of_tqdm_are_few_lines(leave: bool):
    pytest.importorskip("tqdm")
    done = subprocess.run(
        [sys.executable, "-c", TQDM.replace("NESTED", str(leave))],
        capture_output=True,
        timeout=100,
        check=True,
    )
    assert done.stderr.count(b"\r") > 900
    told = lines_of(done.stderr)
    assert len(told) <= (6 if leave else 3)
    assert told[-1] == "done"
    assert sum("epochs: 100%" in line for line in told) == 1
    assert sum("epoch 2: 100%" in line for line in told) == leave


def test_bars_of_rich_are_few_lines():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, force_interactive=True, width=80)
    with Progress(console=console, auto_refresh=False) as progress:
        tasks = [progress.add_task(f"task {n}", total=100) for n in range(3)]
        for _ in range(100):
            for task in tasks:
                progress.advance(task)
            progress.refresh()
        progress.console.print("a line between")
    told = lines_of(file.getvalue())
    assert len(file.getvalue().splitlines()) > 300
    assert "a line between" in told
    assert len(told) <= 7
    assert [line.split()[1] for line in told[-3:]] == ["0", "1", "2"]
    assert all("100%" in line for line in told[-3:])


def test_a_line_that_nobody_takes_leaves_the_screen_usable():
    taken: list[str] = []

    def take(lines: list[str]) -> None:
        if "lost" in lines:
            raise BrokenPipeError
        taken.extend(lines)

    screen = Screen(take)
    with pytest.raises(BrokenPipeError):
        screen.feed(b"lost\n")
    screen.feed(b"next\n")
    assert taken == ["next"]

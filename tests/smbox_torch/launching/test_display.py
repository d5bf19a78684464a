from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from smbox_torch.launching import display as displays
from smbox_torch.launching.display import Display, worded
from smbox_torch.launching.logs import Logs


def display(*, is_terminal: bool, **options) -> tuple[Display, io.StringIO]:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=is_terminal, width=100, highlight=False)
    return Display([0, 0, 1], console, **options), shown


def rows_of(made: Display) -> list[list[str]]:
    table = Console(file=io.StringIO(), width=100)
    table.print(made.table())
    return [line.split() for line in table.file.getvalue().splitlines()[1:]]


def test_in_a_pipe_every_line_names_its_rank():
    made, shown = display(is_terminal=False)
    made.lines(2, ["loss [bold]0.5 " + "x" * 200])
    made.note("rank 1: exit code 3")
    made.refresh(now=True)
    made.close()
    assert shown.getvalue().splitlines() == [
        "[rank 2] loss [bold]0.5 " + "x" * 200,
        "smbox run: rank 1: exit code 3",
    ]


class CountedWrites(io.StringIO):
    """A file that counts how often it is written to."""

    count = 0

    def write(self, text: str) -> int:
        self.count += 1
        return super().write(text)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_lines_of_a_chunk_are_shown_at_once(is_terminal: bool):
    shown = CountedWrites()
    console = Console(file=shown, force_terminal=is_terminal, width=100, highlight=False)
    made = Display([0, 0], console)
    lines = [f"line {number}" for number in range(200)]
    before = shown.count
    made.output(0).feed("".join(f"{line}\n" for line in lines).encode())
    assert shown.count - before < 20
    made.close()
    told = [line for line in shown.getvalue().splitlines() if "[rank 0] line" in line]
    assert [line.rpartition("[rank 0] ")[2].rstrip() for line in told] == lines


def test_on_a_terminal_each_worker_has_one_line_with_its_newest_figures():
    made, shown = display(is_terminal=True)
    made.state(0, "running")
    made.report(0, {"step": 1, "loss": 0.123456})
    made.report(0, {"step": 2})
    made.state(2, "failed: exit code 3")
    made.lines(1, ["loading data"])
    table = Console(file=io.StringIO(), width=100)
    table.print(made.table())
    lines = table.file.getvalue().splitlines()
    made.close()
    made.close()
    assert lines[1].split() == ["0", "0", "running", "step", "2", "loss", "0.1235"]
    assert lines[2].split() == ["1", "0", "starting", "loading", "data"]
    assert lines[3].split() == ["2", "1", "failed:", "exit", "code", "3"]
    assert "loading data" in shown.getvalue()


def test_in_a_pipe_a_bar_is_its_last_state():
    made, shown = display(is_terminal=False)
    screen = made.output(1)
    for percent in range(101):
        screen.feed(f"\r{percent}%".encode())
        made.refresh(now=True)
    assert shown.getvalue() == ""
    screen.feed(b"\n")
    made.close()
    assert shown.getvalue() == "[rank 1] 100%\n"


def test_on_a_terminal_a_bar_is_drawn_in_place_and_is_one_line_in_the_end():
    made, shown = display(is_terminal=True)
    first, second = made.output(0), made.output(1)
    for percent in range(0, 101, 10):
        first.feed(f"\rfirst {percent}%".encode())
        second.feed(f"\rsecond {percent}%".encode())
        made.refresh(now=True)
    assert [row[3:] for row in rows_of(made)] == [["first", "100%"], ["second", "100%"], []]
    assert shown.getvalue().count("\nfirst 50%") == 1  # below the table, at full width
    assert "\nsecond" not in shown.getvalue()
    assert "[rank" not in shown.getvalue()
    first.feed(b"\n")
    assert shown.getvalue().count("[rank 0] first 100%") == 1
    made.close()


def test_a_row_that_stands_without_an_end_is_a_question(monkeypatch):
    now_s = 100.0
    clock = SimpleNamespace(monotonic=lambda: now_s)  # other threads keep time's own
    monkeypatch.setattr(displays, "time", clock)
    made, shown = display(is_terminal=True)
    screen = made.output(0)
    screen.feed(b"working...")
    made.refresh(now=True)
    assert "[rank 0] working..." not in shown.getvalue()
    now_s += displays.QUESTION_S
    made.refresh(now=True)
    assert shown.getvalue().endswith("[rank 0] working...")
    screen.feed(b"done\n")
    assert shown.getvalue().endswith("[rank 0] working...done\n")
    made.close()


def test_only_the_ranks_asked_for_are_shown_and_all_are_logged(tmp_path: Path):
    made, shown = display(is_terminal=False, ranks=[0, 2], logs=Logs(tmp_path, range(3)))
    for rank in range(3):
        made.output(rank).feed(b"hello\n")
    assert [row[0] for row in rows_of(made)] == ["0", "2"]
    made.close()
    assert shown.getvalue() == "[rank 0] hello\n[rank 2] hello\n"
    assert [(tmp_path / f"rank{rank}.log").read_text() for rank in range(3)] == ["hello\n"] * 3


def test_a_warning_of_several_ranks_is_shown_once_with_a_count(tmp_path: Path):
    made, shown = display(is_terminal=False, logs=Logs(tmp_path, range(3)))
    warning = "train.py:3: UserWarning: lr is high"
    for rank in range(3):
        made.output(rank).feed(f"{warning}\n  warnings.warn(text)\nrank {rank}\n".encode())
    made.close()
    assert shown.getvalue().splitlines() == [
        f"[rank 0] {warning}",
        "[rank 0]   warnings.warn(text)",
        "[rank 0] rank 0",
        "[rank 1] rank 1",
        "[rank 2] rank 2",
        f"smbox run: 3 times, from ranks 0, 1, 2: {warning}",
    ]
    assert warning in (tmp_path / "rank2.log").read_text()


def test_only_the_rank_that_a_terminal_shows_in_place_draws_for_it():
    made, _ = display(is_terminal=True, ranks=[1, 2])
    assert made.env(1)["TTY_COMPATIBLE"] == "1"
    assert made.env(1)["COLUMNS"] == "100"
    assert made.env(0) == made.env(2) == {}
    made.close()
    assert display(is_terminal=False)[0].env(0) == {}


def test_figures_are_worded_in_four_digits():
    assert worded({"step": 12345678, "loss": 1.0 / 3}) == "step 12345678  loss 0.3333"


def test_a_full_disk_ends_the_logs_and_not_the_run(tmp_path: Path):
    """The run ended with "[Errno 28] No space left on device", and its training with it."""
    (tmp_path / "rank0.log").symlink_to("/dev/full")
    made, shown = display(is_terminal=False, logs=Logs(tmp_path, range(2)))
    made.lines(1, ["before"])
    for text in ("first", "second"):
        made.lines(0, [text])
        made.lines(1, [text])
    made.close()
    told = [line for line in shown.getvalue().splitlines() if "smbox run" in line]
    assert len(told) == 1
    assert "No space left on device" in told[0]
    assert str(tmp_path) in told[0]
    assert "[rank 0] second" in shown.getvalue()
    assert (tmp_path / "rank1.log").read_text() == "before\n"

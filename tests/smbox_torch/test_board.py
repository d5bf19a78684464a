from __future__ import annotations

import io

from rich.console import Console

from smbox_torch.board import Board, worded


def board(*, is_terminal: bool) -> tuple[Board, io.StringIO]:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=is_terminal, width=100, highlight=False)
    return Board([0, 0, 1], console), shown


def test_in_a_pipe_every_line_names_its_rank():
    made, shown = board(is_terminal=False)
    made.line(2, "loss [bold]0.5 " + "x" * 200)
    made.note("rank 1: exit code 3")
    made.refresh(now=True)
    made.close()
    assert shown.getvalue().splitlines() == [
        "[rank 2] loss [bold]0.5 " + "x" * 200,
        "smbox run: rank 1: exit code 3",
    ]


def test_on_a_terminal_each_worker_has_one_line_with_its_newest_figures():
    made, shown = board(is_terminal=True)
    made.state(0, "running")
    made.report(0, {"step": 1, "loss": 0.123456})
    made.report(0, {"step": 2})
    made.state(2, "failed: exit code 3")
    made.line(1, "loading data")
    table = Console(file=io.StringIO(), width=100)
    table.print(made.table())
    lines = table.file.getvalue().splitlines()
    made.close()
    made.close()
    assert lines[1].split() == ["0", "0", "running", "step", "2", "loss", "0.1235"]
    assert lines[2].split() == ["1", "0", "starting", "loading", "data"]
    assert lines[3].split() == ["2", "1", "failed:", "exit", "code", "3"]
    assert "loading data" in shown.getvalue()


def test_figures_are_worded_in_four_digits():
    assert worded({"step": 12345678, "loss": 1.0 / 3}) == "step 12345678  loss 0.3333"

"""The command: which rows, and what it prints."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from smbox.cli.bench import command
from smbox.cli.bench.lab import QUICK, Lab
from smbox.cli.bench.result import Result, at_least
from smbox.errors import ConfigError


def test_all_rows_run_unless_some_are_named():
    assert command.chosen([]) == list(command.ROWS)
    assert command.chosen(["tcp-small", "local-*"])[-1] == "tcp-small"
    assert all(name.startswith("local-") for name in command.chosen(["local-*"]))


def test_a_row_that_does_not_exist_is_told_with_those_that_do():
    with pytest.raises(ConfigError, match="local-get"):
        command.chosen(["lokal"])


def fixed(_: Lab) -> Iterator[Result]:
    yield Result("row", "1 MiB", 9.0, "GB/s", at_least(0.95), 10.0, "np.copyto", 0.25)


def test_rows_are_printed_as_they_come(monkeypatch, capsys):
    monkeypatch.setattr(command, "ROWS", {"row": fixed})
    command.bench()
    line = capsys.readouterr().out.splitlines()[-1]
    assert all(
        word in line for word in ("row", "9.00 GB/s", "0.90x", ">= 0.95", "MISSED", "0.25")
    )


def test_a_quick_check_judges_nothing(monkeypatch, capsys):
    scales = []

    def quick(lab: Lab) -> Iterator[Result]:
        scales.append(lab.scale)
        yield from fixed(lab)

    monkeypatch.setattr(command, "ROWS", {"row": quick})
    command.bench(quick=True)
    line = capsys.readouterr().out.splitlines()[-1]
    assert "0.90x" in line
    assert "MISSED" not in line
    assert scales == [QUICK]


def test_json_holds_machine_and_results(monkeypatch, capsys):
    monkeypatch.setattr(command, "ROWS", {"row": fixed})
    command.bench(quick=True, only=["row"], json=True)
    told = json.loads(capsys.readouterr().out)
    assert {"cpu", "cores", "python", "numpy", "pyzmq", "smbox"} <= set(told["machine"])
    assert told["quick"] is True
    assert told["results"][0]["ratio"] == 0.9
    assert told["results"][0]["met"] is None  # a quick check has no verdicts
    command.bench(only=["row"], json=True)
    assert json.loads(capsys.readouterr().out)["results"][0]["met"] is False

"""The program as people call it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata

import pytest

from smbox.cli import main, regions
from smbox.errors import SegmentError


def run(capsys, *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main.main(argv)
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out, shown.err


def test_help_lists_every_command(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(name in out for name in main.COMMANDS)


def test_the_release_is_told(capsys):
    code, out, _ = run(capsys, "--version")
    assert (code, out.split()) == (0, ["smbox", metadata.version("smbox")])


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_explains_itself(capsys, name):
    code, out, _ = run(capsys, name, "--help")
    assert code == 0
    assert "--help" in out


def test_an_error_is_one_line_and_its_exit_code(capsys):
    code, out, err = run(capsys, "bench", "--only", "nothing")
    assert (code, out) == (2, "")
    assert err.startswith("smbox: ")
    assert "Traceback" not in err


def test_a_wrong_option_is_a_usage_error(capsys):
    code, _, err = run(capsys, "ls", "--no-such-option")
    assert code == 2
    assert "--no-such-option" in err


@pytest.mark.parametrize(
    ("error", "expected"),
    [(SegmentError("no memory"), 1), (KeyboardInterrupt(), 130)],
)
def test_what_ends_a_command_is_its_exit_code(capsys, monkeypatch, error, expected):
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(regions, "connect", broken)
    code, _, err = run(capsys, "ls")
    assert code == expected
    assert "Traceback" not in err


def test_what_cannot_be_printed_is_told_in_one_line():
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from smbox.cli.main import main; main(['gc', '--json'])"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr


def test_who_stops_reading_is_told_nothing():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as nobody_reads:
        done = subprocess.run(
            [sys.executable, "-c", "from smbox.cli.main import main; main(['gc', '--json'])"],
            stdout=nobody_reads,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "")


def test_the_program_is_installed_as_a_module_function():
    done = subprocess.run(
        [sys.executable, "-c", "from smbox.cli.main import main; main(['rm'])"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "name" in done.stderr.lower()

"""The program ``smbox``: help, exit codes and error messages."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from importlib import metadata
from typing import IO

import pytest

import smbox
from smbox.cli import main, regions
from smbox.errors import SegmentError

pytestmark = pytest.mark.usefixtures("quick_starts")


def run(capsys, *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main.main(argv)
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out, shown.err


def test_help_lists_every_command(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "Usage: smbox" in out
    assert all(name in out for name in main.COMMANDS)


def test_without_a_command_the_help_is_shown(capsys):
    _, out, err = run(capsys)
    assert all(name in out + err for name in main.COMMANDS)


def test_without_words_those_of_the_process_count(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["smbox", "--version"])
    with pytest.raises(SystemExit):
        main.main()
    assert capsys.readouterr().out.startswith("smbox ")


@pytest.mark.parametrize("package", ["smbox", "memnode"])
def test_both_programs_run_as_modules(capsys, monkeypatch, package):
    monkeypatch.setattr(sys, "argv", ["__main__.py", "--version"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_module(package, run_name="__main__")
    assert capsys.readouterr().out.split() == [package, metadata.version("smbox")]


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
    ("module", "step", "error", "expected"),
    [
        (regions, "connect", SegmentError("no memory"), 1),
        (regions, "connect", KeyboardInterrupt(), 130),
        (main, "build", KeyboardInterrupt(), 130),
    ],
)
def test_what_ends_a_command_is_its_exit_code(
    capsys, monkeypatch, module, step, error, expected
):
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(module, step, broken)
    code, _, err = run(capsys, "ls")
    assert code == expected
    assert "Traceback" not in err


def program(*argv: str, stdout: IO[str] | int = subprocess.PIPE) -> tuple[int, str]:
    """Run the command in its own process; return its exit code and its stderr.

    The process is no fork, which would end otherwise and keep the encoding of its server.
    """
    done = subprocess.run(
        ["env", sys.executable, "-c", f"from smbox.cli.main import main; main({list(argv)})"],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": ""},  # else print alone would fail
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def test_what_cannot_be_printed_is_told_in_one_line():
    with open("/dev/full", "w", encoding="utf-8") as full:
        code, complaint = program("gc", "--json", stdout=full)
    assert (code, complaint.count("\n")) == (1, 1)
    assert "No space left on device" in complaint


@pytest.mark.parametrize("command", [["ls"], ["stat", "gr\u00f6\u00dfe"]])
def test_names_that_the_encoding_lacks_are_escaped(monkeypatch, tmp_path, command):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    with smbox.local(memory="16MiB") as box, open(tmp_path / "out", "w+") as shown:
        box.create("gr\u00f6\u00dfe", shape=())
        assert program(*command, "--address", box.address, stdout=shown) == (0, "")
        shown.seek(0)
        assert "gr\\xf6\\xdfe" in shown.read()


def test_who_stops_reading_is_told_nothing():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as nobody_reads:
        assert program("gc", "--json", stdout=nobody_reads) == (1, "")


@pytest.mark.parametrize("regions", [16, 64])
def test_who_stops_reading_a_long_list_is_told_nothing(regions: int):
    """Python discards a part of the output whose write failed, and flushes the rest."""
    reader, writer = os.pipe()
    os.close(reader)
    with smbox.local(memory="16MiB") as box, open(writer, "w") as nobody_reads:
        for number in range(regions):
            box.create(f"{number:0150}", shape=())
        told = program("ls", "--json", "--address", box.address, stdout=nobody_reads)
    assert told == (1, "")


def test_without_a_place_to_print_to_the_work_is_done_all_the_same(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as ended:
        main.main(["--version"])
    assert not ended.value.code


def test_an_error_that_is_not_of_printing_leaves_the_output_alone(capfd, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "memory")

    monkeypatch.setattr(regions, "connect", broken)
    with pytest.raises(SystemExit) as ended:
        main.main(["ls"])
    os.write(1, b"still there")
    shown = capfd.readouterr()
    assert (ended.value.code, shown.out) == (1, "still there")
    assert "memory" in shown.err


def test_the_program_is_installed_as_a_module_function():
    code, complaint = program("rm")
    assert code == 2
    assert "name" in complaint.lower()

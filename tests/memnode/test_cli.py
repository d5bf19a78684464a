from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from importlib import metadata

import pytest

from memnode import cli
from memnode.cli import config_of, main, parser, ready_line
from memnode.config import Bind
from memnode.group import StartError
from smbox.errors import (
    ConfigError,
    ConnectError,
    NativeError,
    OutOfMemoryError,
    SegmentError,
    SystemLimitError,
)
from smbox.memory.segment import listing
from smbox.memory.superblock import remove_all

pytestmark = pytest.mark.usefixtures("quick_starts")

ADDRESS = "tcp://127.0.0.1:7070"
NOBODY = str((1 << 22) + 1)  # Linux gives no process a number above 1 << 22


def test_the_defaults_are_private():
    config = config_of(parser().parse_args([]))
    assert config.binds == (Bind.parse(ADDRESS),)
    assert config.known_name == "7070"
    assert (config.memory_nbytes, config.keep, config.insecure) == (None, False, False)


def test_all_options():
    binds = ["--bind", "tcp://0.0.0.0:1", "--bind", "ipc:///run/n"]
    limits = ["--name", "lab", "--memory", "1GiB", "--parent-pid", "12"]
    switches = ["--keep", "--insecure", "--log-level", "debug", "--json"]
    options = parser().parse_args([*binds, *limits, *switches])
    config = config_of(options)
    assert [bind.address for bind in config.binds] == ["tcp://0.0.0.0:1", "ipc:///run/n"]
    assert (config.name, config.memory_nbytes, config.parent_pid) == ("lab", 1 << 30, 12)
    assert config.keep
    assert config.insecure


def test_the_ready_line():
    ready = json.loads(ready_line([ADDRESS, "ipc:///x"], "lab", as_json=True))
    assert ready == {
        "event": "ready",
        "address": ADDRESS,
        "addresses": [ADDRESS, "ipc:///x"],
        "pid": os.getpid(),
        "name": "lab",
    }
    assert ADDRESS in ready_line([ADDRESS], "lab", as_json=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bind", "7070"],
        ["--memory", "lots"],
        ["--bind", "tcp://0.0.0.0:7070"],
        ["--name", "a/b"],
        ["--parent-pid", NOBODY],
        ["--parent-pid", NOBODY, "--nodes", "2"],
        ["--parent-pid", str(1 << 40)],
    ],
)
def test_what_can_never_work_is_status_2(arguments, capsys):
    assert main(arguments) == cli.EXIT_CONFIG
    assert capsys.readouterr().err.startswith("memnode: ")


def test_a_complaint_without_a_stderr_is_no_ready_line(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)  # closed by the caller
    assert main(["--memory", "lots"]) == cli.EXIT_CONFIG
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("x"), 2),
        (SegmentError("x"), 3),
        (SystemLimitError("x"), 3),
        (OutOfMemoryError("x"), 3),
        (ConnectError("x"), 4),
        (NativeError("x"), 1),
        (ZeroDivisionError("x"), 1),
        (StartError("x", exit_status=cli.EXIT_ADDRESS), 4),
        (StartError("x", exit_status=-signal.SIGKILL), 1),
    ],
)
def test_each_error_has_its_status(monkeypatch, error, status):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(cli, "config_of", fail)
    assert main([]) == status


def test_a_process_says_why_it_ends(capfd):
    name = f"t{secrets.token_hex(4)}"
    command = [sys.executable, "-m", "memnode", "--name", name, "--memory", "16MiB"]
    command += ["--bind", "tcp://127.0.0.1:0"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = first.stdout.readline()
        assert line.startswith(f"memnode {name} is ready at tcp://127.0.0.1:")
        second = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False
        )
        assert second.returncode == cli.EXIT_MEMORY
        assert f"pid={first.pid}" in second.stderr
        address = line.split()[5]
        taken = subprocess.run(
            [*command[:3], "--name", name + "b", "--memory", "16MiB", "--bind", address],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert taken.returncode == cli.EXIT_ADDRESS
        assert "cannot listen: Address already in use; " in taken.stderr
        assert "bind to another port" in taken.stderr
        assert taken.stderr.count(address) == 1
    finally:
        first.terminate()
        first.communicate(timeout=60)
    assert first.returncode == cli.EXIT_CLEAN
    assert listing(f"smbox.{name}") == []


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["--bind", "tcp://127.0.0.1:0"]]
)
def test_an_output_that_cannot_be_written_is_told_in_one_line(arguments):
    with open("/dev/full", "wb") as full:
        failed = subprocess.run(
            [
                sys.executable,
                "-m",
                "memnode",
                "--name",
                "unheard",
                "--memory",
                "16MiB",
                *arguments,
            ],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    remove_all("unheard")
    assert failed.returncode == cli.EXIT_FAILED
    [line] = failed.stderr.splitlines()
    assert "cannot write to standard output: [Errno 28] No space left on device" in line


def test_the_release_is_told(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"memnode {metadata.version('smbox')}\n"


def test_a_node_starts_without_what_few_need():
    slow = {"asyncio", "importlib.metadata"}
    code = f"import sys, memnode.cli; print({slow} & set(sys.modules))"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert told.stdout == "set()\n"

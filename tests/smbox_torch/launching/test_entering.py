"""``smbox run --hosts`` while it enters hosts: interrupts, and files that describe none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from smbox.cli.main import main

COMMAND = ("-c", "from smbox.cli.main import main; main()", "run", "--grace-s", "0.5")
MARK = "ENTERING_OF_TEST"
TIMEOUT_S = 100.0


def lab(folder: Path, *enter: str) -> str:
    path = folder / "lab.toml"
    words = json.dumps(list(enter))
    path.write_text(
        f'[[host]]\nname = "a"\naddress = "127.0.0.1"\nworkers = 1\nenter = {words}\n'
    )
    return str(path)


@pytest.fixture
def start(preloaded: str) -> Callable[..., subprocess.Popen[str]]:
    """``start(*words, mark=mark, **env)``: ``smbox run``; only what it starts is marked."""

    def run(*words: str, mark: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [preloaded, *COMMAND, *words],
            env=dict(os.environ) | {MARK: mark} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return run


@pytest.fixture
def assert_ended(having):
    """``assert_ended(process, mark)``: it ends by an interrupt, and nothing marked stays."""

    def check(process: subprocess.Popen[str], mark: str) -> None:
        try:
            _, errors = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == 130, errors
        assert "Traceback" not in errors
        deadline_s = time.monotonic() + TIMEOUT_S
        while left := having(MARK, mark):
            assert time.monotonic() < deadline_s, left
            time.sleep(0.05)

    return check


def test_an_interrupt_while_a_host_takes_nothing_leaves_nothing(
    start, assert_ended, tmp_path: Path
):
    mark, up = uuid.uuid4().hex, tmp_path / "up"
    file = lab(tmp_path, "sh", "-c", f"touch {up}; sleep 1000; :")
    variables = {f"LONG{number}": 60_000 * "x" for number in range(4)}
    process = start("--hosts", file, "true", mark=mark, **variables)
    deadline_s = time.monotonic() + TIMEOUT_S
    while not up.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    began_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert_ended(process, mark)
    assert time.monotonic() - began_s < TIMEOUT_S / 2  # before the host counts as silent


@pytest.mark.parametrize("sign", ["INT", "TERM", "HUP"])
def test_an_interrupt_at_the_moment_of_entering_leaves_nothing(
    start, assert_ended, tmp_path: Path, sign: str
):
    mark = uuid.uuid4().hex
    # The host command outlives the signal that tells it of its launcher's death.
    file = lab(tmp_path, "sh", "-c", f"trap '' TERM; kill -{sign} $PPID; sleep 1000; :")
    assert_ended(start("--hosts", file, "true", mark=mark), mark)


def test_a_file_that_describes_no_hosts_is_wrong_use_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    wrong = {"empty": b"", "bytes": b"\xff\xfe", "deep": b"host = " + 3000 * b"["}
    for name, text in wrong.items():
        (tmp_path / f"{name}.toml").write_bytes(text)
    for path in [*sorted(tmp_path.glob("*.toml")), tmp_path / "missing"]:
        with pytest.raises(SystemExit) as ended:
            main(["run", "--hosts", str(path), "true"])
        errors = capsys.readouterr().err
        assert ended.value.code == 2, errors
        assert str(path) in errors
        assert errors.count("\n") == 1, errors

"""``smbox run --hosts``, hosts entered as by ssh: neither variables nor folder pass."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from smbox_torch.workers.reporter import REPORT_FD

SMBOX = ("-c", "from smbox.cli.main import main; main()")
TIMEOUT_S = 100.0
MARK = "HOSTS_OF_TEST"
GRACE_S = "0.5"

# As ssh: the login's own variables and folder, words through a shell, a session of its own, and
# nothing tells the program of the caller's death but the end of its input.
SSH = """#!/bin/sh
echo "Welcome to $1"; shift
cd /
exec env -i HOME=/ PATH=/usr/bin:/bin {login} setsid -w sh -c "$*"
"""
TELL = """
import json, os, pathlib, sys
from smbox_torch.workers.reporter import Reporter
import smbox
rank = os.environ["SMBOX_RANK"]
told = dict(os.environ) | {"cwd": os.getcwd(), "argv": sys.argv[1:]}
pathlib.Path(f"told{rank}").write_text(json.dumps(told))
print("hello of", rank)
print("to stderr", file=sys.stderr)
assert Reporter.from_env(os.environ).report(step=int(rank))
with smbox.connect(timeout_s=60.0) as box:
    box.counter("n").add(1)
    box.barrier("end", parties=int(os.environ["SMBOX_WORLD_SIZE"]), timeout_s=60.0)
    assert box.counter("n").value == 3
"""
HANG = """
import os, pathlib, signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
pathlib.Path("up" + os.environ["SMBOX_RANK"]).touch()
signal.pause()
"""


@pytest.fixture
def mark() -> str:
    """A word that all processes of a run have, on all hosts."""
    return uuid.uuid4().hex


@pytest.fixture
def ssh(tmp_path: Path, mark: str) -> str:
    path = tmp_path / "ssh"
    login = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    login[MARK] = mark
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in login.items())
    path.write_text(SSH.format(login=words))
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def address() -> str:
    """The address of an interface of this machine that is not the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has only loopback addresses")
        return str(probe.getsockname()[0])


@pytest.fixture
def file(tmp_path: Path, ssh: str, address: str) -> str:
    """Host a with one worker and the memory node, host b with two workers."""
    hosts = [("a", 1), ("b", 2)]
    path = tmp_path / "lab.toml"
    path.write_text(
        "".join(
            f'[[host]]\nname = "{name}"\naddress = "{address}"\nworkers = {workers}\n'
            f'enter = {json.dumps([ssh, name])}\nenv = {{PLACE = "{name}"}}\n'
            for name, workers in hosts
        )
    )
    return str(path)


def start(python: str, *words: str, cwd: Path, mark: str = "") -> subprocess.Popen[str]:
    inherited = {name: os.environ[name] for name in os.environ if "SMBOX_" not in name}
    return subprocess.Popen(
        [python, *SMBOX, "run", "--grace-s", GRACE_S, *words],
        cwd=cwd,
        env=inherited | {MARK: mark, "RANK": "7", "PLACE": "the launcher"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def run(preloaded: str) -> Callable[..., tuple[int, str, str]]:
    """Return ``run(*words, cwd=folder)``. Only processes of ``sys.executable`` are children."""

    def run(*words: str, cwd: Path, python: str = preloaded) -> tuple[int, str, str]:
        process = start(python, *words, cwd=cwd)
        try:
            shown, errors = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
            process.communicate()
        return process.returncode, shown, errors

    return run


def script(folder: Path, code: str) -> str:
    (folder / "train.py").write_text(code)
    return "train.py"


def test_environment_folder_arguments_and_output_pass_to_all_hosts(run, tmp_path, file: str):
    options = ["--hosts", file, "--insecure", "--memory", "64MiB"]
    words = [*options, script(tmp_path, TELL), "a b", "$HOME;'"]
    code, shown, errors = run(*words, cwd=tmp_path)
    assert code == 0, shown + errors
    told = [json.loads((tmp_path / f"told{rank}").read_text()) for rank in range(3)]
    assert {each["cwd"] for each in told} == {str(tmp_path)}
    assert [each["argv"] for each in told] == [["a b", "$HOME;'"]] * 3
    assert {each["HOME"] for each in told} == {"/"}  # the login's own
    assert [each["PLACE"] for each in told] == ["a", "b", "b"]
    assert [each["SMBOX_LOCAL_RANK"] for each in told] == ["0", "0", "1"]
    assert [each["SMBOX_LOCAL_WORLD_SIZE"] for each in told] == ["1", "2", "2"]
    assert [each["SMBOX_GROUP_RANK"] for each in told] == ["0", "1", "1"]
    assert all(MARK in each and REPORT_FD in each and "RANK" not in each for each in told)
    lines = shown.splitlines()
    for rank in range(3):
        assert f"[rank {rank}] hello of {rank}" in lines
        assert f"[rank {rank}] to stderr" in lines
    assert "smbox run: host b: Welcome to b" in lines


def test_a_failure_on_a_host_ends_all_and_is_the_exit_code(run, tmp_path: Path, file: str):
    code = "import os, signal, sys\nsys.exit(7) if os.environ['SMBOX_RANK'] == '2' else "
    words = ["--hosts", file, "--address", "tcp://127.0.0.1:9"]
    done, shown, _ = run(*words, script(tmp_path, code + "signal.pause()"), cwd=tmp_path)
    assert done == 7
    assert "rank 2 (host b, local rank 1): exit code 7; all workers are ended" in shown


def test_a_killed_worker_of_a_host_starts_again(run, tmp_path: Path, file: str):
    code = (
        "import os, signal\nagain = os.environ['SMBOX_WORKER_RESTART_COUNT']\n"
        "print('again', again)\n"
        "if os.environ['SMBOX_RANK'] == '1' and again == '0': os.kill(os.getpid(), 9)\n"
    )
    words = ["--hosts", file, "--address", "tcp://127.0.0.1:9", "--on-failure", "restart"]
    done, shown, _ = run(*words, script(tmp_path, code), cwd=tmp_path)
    assert done == 0
    assert "rank 1 (host b, local rank 0): signal SIGKILL; starting it again" in shown
    assert "[rank 1] again 1" in shown


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_on_any_host(
    having, tmp_path, file: str, mark: str, sign: signal.Signals
):
    words = ["--hosts", file, "--insecure", "--memory", "64MiB", script(tmp_path, HANG)]
    process = start(sys.executable, *words, cwd=tmp_path, mark=mark)
    try:
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(list(tmp_path.glob("up*"))) < 3:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        # Launcher, two agents, node, three workers with a child each.
        assert len(having(MARK, mark)) >= 10
        process.send_signal(sign)
        process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == (130 if sign == signal.SIGINT else -sign)
    deadline_s = time.monotonic() + 30.0
    while left := having(MARK, mark):
        assert time.monotonic() < deadline_s, left
        time.sleep(0.05)


def test_a_host_whose_connection_ends_is_lost_and_named(run, tmp_path: Path, file: str):
    code = (
        "import os, psutil, signal, sys\n"
        "if os.environ['SMBOX_RANK'] == '1': psutil.Process(os.getppid()).kill()\n"
        "signal.pause() if os.environ['SMBOX_GROUP_RANK'] == '1' else print('finished')\n"
    )
    words = ["--hosts", file, "--address", "tcp://127.0.0.1:9", "--on-failure", "restart"]
    done, shown, _ = run(*words, script(tmp_path, code), cwd=tmp_path, python=sys.executable)
    assert done == 255  # its workers are not started again, and the others continue
    assert "smbox run: host b: its connection has ended" in shown
    assert "rank 2 (host b, local rank 1): exit code 255" in shown
    assert "[rank 0] finished" in shown


def test_a_run_ends_when_the_host_of_its_memory_is_lost(run, tmp_path: Path, file: str):
    code = (
        "import os, psutil, signal\n"
        "if os.environ['SMBOX_RANK'] == '0': psutil.Process(os.getppid()).kill()\n"
        "signal.pause()\n"
    )
    words = ["--hosts", file, "--insecure", "--memory", "64MiB", "--on-failure", "restart"]
    words.append(script(tmp_path, code))
    done, shown, errors = run(*words, cwd=tmp_path, python=sys.executable)
    assert done == 3, shown + errors
    assert "smbox run: host a: its connection has ended" in shown
    assert "starting it again" not in shown
    assert "the connection to a host is lost" in " ".join(errors.split())


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("elsewhere", "host 'b': there is no script 'train.py'"),
        ("nowhere", "No such file or directory; correct `folder` of the host"),
    ],
)
def test_a_host_lacks_folder_or_script(run, tmp_path: Path, file: str, folder: str, says: str):
    (tmp_path / "elsewhere").mkdir()
    with open(file, "a") as hosts:
        hosts.write(f'folder = "{tmp_path / folder}"\n')
    (tmp_path / "train.py").write_text("open('started', 'w')")
    code, _, errors = run("--hosts", file, "train.py", cwd=tmp_path)
    assert code == 2
    assert says in errors.replace("\n", " ")
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("enter", "says"),
    [
        (["no-such-ssh", "c"], "`no-such-ssh c`: No such file or directory; correct `enter`"),
        (["sh", "-c", "echo no route to c >&2; exit 255"], "no route to c"),
    ],
)
def test_a_host_that_cannot_be_entered_is_named_with_its_words(
    run, tmp_path: Path, file: str, address: str, enter: list[str], says: str
):
    with open(file, "a") as hosts:
        hosts.write(
            f'[[host]]\nname = "c"\naddress = "{address}"\nenter = {json.dumps(enter)}\n'
        )
    (tmp_path / "train.py").write_text("open('started', 'w')")
    code, _, errors = run("--hosts", file, "train.py", cwd=tmp_path)
    told = " ".join(errors.split())
    assert code in {2, 3}
    assert "cannot connect to host 'c'" in told
    assert says in told
    assert not (tmp_path / "started").exists()


def test_a_node_that_other_hosts_reach_needs_keys(run, tmp_path: Path, address: str):
    path = tmp_path / "lab.toml"
    path.write_text(f'[[host]]\nname = "a"\naddress = "{address}"\nworkers = 1\n')
    words = ["--hosts", str(path), "--memory", "64MiB"]
    code, shown, errors = run(*words, script(tmp_path, TELL), cwd=tmp_path)
    assert code == 2
    assert "--insecure" in shown
    assert "refused its arguments" in errors


def test_nodes_ask_for_keys_and_workers_have_them(run, preloaded, tmp_path: Path, ssh: str):
    made = [preloaded, *SMBOX, "keygen", "keys", "--client", "worker", "--role", "admin"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True, timeout=TIMEOUT_S)
    path = tmp_path / "lab.toml"
    path.write_text(
        '[[host]]\nname = "a"\naddress = "127.0.0.1"\nworkers = 1\nmemory = "64MiB"\n'
        f"enter = {json.dumps([ssh, 'a'])}\n"
    )
    code = (
        "import os, smbox\nprint(os.environ['SMBOX_KEY'])\n"
        "with smbox.connect(transport='tcp', timeout_s=60.0) as box: box.counter('n').add(1)\n"
        "del os.environ['SMBOX_KEY']\n"
        "try: smbox.connect(transport='tcp', timeout_s=5.0)\n"
        "except smbox.SmboxError as error: print('refused')\n"
    )
    words = ["--hosts", str(path), "--keys", "keys", script(tmp_path, code)]
    done, shown, errors = run(*words, cwd=tmp_path)
    assert done == 0, shown + errors
    assert "[rank 0] keys/worker.key" in shown
    assert "[rank 0] refused" in shown

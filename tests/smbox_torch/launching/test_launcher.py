from __future__ import annotations

import io
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from rich.console import Console

from smbox_torch.launching.children import Child, Lines, await_end
from smbox_torch.launching.cluster import OnFailure, Plan, Run
from smbox_torch.launching.display import Display
from smbox_torch.launching.launcher import Launcher
from smbox_torch.launching.serving import Serving
from smbox_torch.launching.workers import Workers

NODE = """
import json, os, pathlib, signal, sys
bind = sys.argv[sys.argv.index("--bind") + 1].replace(":0", ":1234")
with open(os.environ["FOLDER"] + "/node", "a") as file:
    file.write(f"{os.getpid()}\\n")
print(json.dumps({"event": "ready", "address": bind}), flush=True)
signal.pause()
"""
WORKER = """
import json, os, pathlib, signal, sys, time
folder, rank = pathlib.Path(os.environ["FOLDER"]), int(os.environ["SMBOX_RANK"])
restart = int(os.environ["SMBOX_RESTART_COUNT"])
again = int(os.environ["SMBOX_WORKER_RESTART_COUNT"])
def until(done):
    while not done():
        time.sleep(0.01)
def until_the_one_named_is_reaped():
    until(lambda: list(folder.glob("pid*")))
    (named,) = folder.glob("pid*")
    until(lambda: not pathlib.Path("/proc", named.name[3:]).exists())
"""
LAUNCH = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
from rich.console import Console
from smbox_torch.launching.display import Display
from smbox_torch.launching.cluster import OnFailure, Plan
from smbox_torch.launching.launcher import Launcher
command, memnode = ([sys.executable, "-c", code] for code in sys.argv[1:])
plan = Plan(command, per_node=2, memnode=memnode)
sys.exit(Launcher(plan, Display([0, 0], Console()), os.environ).run())
"""
HANG = "print('up', flush=True)\nsignal.pause()"
HELPED = f"""
import subprocess
subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])
{HANG}
"""


@pytest.fixture
def run(tmp_path: Path):
    """``run(code, ...)``: the exit code of a run of workers, and what was shown."""

    def launch(code: str, **options) -> tuple[int, str]:
        plan = Plan(
            [sys.executable, "-c", WORKER + code],
            memnode=[sys.executable, "-c", NODE],
            grace_s=0.5,
            **options,
        )
        shown = io.StringIO()
        display = Display([0] * plan.workers, Console(file=shown, width=200))
        code = Launcher(plan, display, os.environ | {"FOLDER": str(tmp_path)}).run()
        return code, shown.getvalue()

    return launch


def test_workers_print_in_the_encoding_that_the_launcher_reads(run, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    code, shown = run("print('gr\\u00fc\\u00dfe')")
    assert code == 0
    assert "gr\u00fc\u00dfe" in shown


def test_workers_learn_who_they_are_and_all_end_well(run, tmp_path: Path):
    code, shown = run(
        "(folder / str(rank)).write_text(json.dumps(dict(os.environ)))\nprint('hello')",
        nodes=2,
        per_node=2,
    )
    assert code == 0
    told = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(4)]
    assert [each["SMBOX_GROUP_RANK"] for each in told] == ["0", "0", "1", "1"]
    assert {each["SMBOX_ADDRESS"] for each in told} == {"tcp://127.0.0.1:1234"}
    assert {each["SMBOX_TRANSPORT"] for each in told} == {"tcp"}
    assert len({each["SMBOX_MASTER_PORT"] for each in told}) == 1
    assert sorted(shown.splitlines()) == [f"[rank {rank}] hello" for rank in range(4)]


def test_the_first_failure_ends_all_and_is_named(run):
    code, shown = run("sys.exit(7) if rank == 1 else signal.pause()", nodes=3)
    assert code == 7
    assert "rank 1 (node 1, local rank 0): exit code 7; all workers are ended" in shown


def test_a_worker_that_a_signal_killed_is_the_first_to_fail(run):
    code, shown = run(
        "os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else signal.pause()", per_node=2
    )
    assert code == 128 + signal.SIGKILL
    assert "rank 1 (node 0, local rank 1): signal SIGKILL" in shown


def test_of_workers_that_ended_together_the_killed_one_failed_first():
    pidfds = [os.eventfd(1) for _ in range(2)]  # both are readable
    ended = (
        SimpleNamespace(pidfd=fd, own=[fd], pipes=(), exit_code=code, reap=lambda: True)
        for fd, code in zip(pidfds, (1, -signal.SIGKILL), strict=True)
    )
    plan = Plan(["x"], per_node=2)
    display = Display([0, 0], Console(file=io.StringIO()))
    host = SimpleNamespace(command=["x"], is_lost=False, start=lambda *_, **__: next(ended))
    workers = Workers(plan, display, {}, Serving([host], []), Run("r", "", 1), 0)
    workers.watch()
    for fd in pidfds:
        os.close(fd)
    assert (workers.failed, workers.exit_code) == (1, -signal.SIGKILL)


def test_workers_start_again_after_a_host_without_workers_is_lost():
    agent = Child(["true"], {}, Lines(print))
    assert not await_end([agent], math.inf)
    done = os.eventfd(1)
    child = SimpleNamespace(pidfd=done, own=[done], pipes=(), exit_code=0, reap=lambda: True)
    display = Display([0], Console(file=io.StringIO()))
    host = SimpleNamespace(command=["x"], is_lost=False, start=lambda *_, **__: child)
    workers = Workers(Plan(["x"]), display, {}, Serving([host], [agent]), Run("r", "", 1), 1)
    workers.watch()
    os.close(done)
    assert workers.failed is None


def test_all_start_again_as_often_as_told(run, tmp_path: Path):
    code, shown = run(
        "(folder / f'{rank}.{restart}').touch()\n"
        "sys.exit(3 if restart < 2 and rank == 0 else 0)",
        per_node=2,
        on_failure=OnFailure.RESTART_ALL,
        restarts=3,
    )
    assert code == 0
    assert "starting all again (restarts left: 3)" in shown
    assert {path.name for path in tmp_path.glob("0.*")} == {"0.0", "0.1", "0.2"}
    assert len((tmp_path / "node").read_text().split()) == 1


def test_no_more_often(run):
    code, _ = run("sys.exit(5)", on_failure=OnFailure.RESTART_ALL, restarts=1)
    assert code == 5


def test_the_others_continue_after_one_was_killed(run, tmp_path: Path):
    code, shown = run(
        "if rank == 1:\n"
        "    (folder / f'pid{os.getpid()}').touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "until_the_one_named_is_reaped()\n"
        "(folder / f'done{rank}').touch()",
        per_node=4,
        on_failure=OnFailure.CONTINUE,
    )
    assert code == 128 + signal.SIGKILL
    assert "rank 1 (node 0, local rank 1): signal SIGKILL; the others continue" in shown
    assert {path.name for path in tmp_path.glob("done*")} == {"done0", "done2", "done3"}


def test_the_exit_code_is_of_the_first_of_several_failures(run):
    code, shown = run(
        "if rank == 1: (folder / f'pid{os.getpid()}').touch()\n"
        "else: until_the_one_named_is_reaped()\n"
        "sys.exit(5 - rank)",
        per_node=2,
        on_failure=OnFailure.CONTINUE,
    )
    assert code == 4
    assert "rank 0 (node 0, local rank 0): exit code 5; no worker is left" in shown


def test_only_the_failed_worker_starts_again(run, tmp_path: Path):
    code, shown = run(
        "(folder / f'{rank}.{restart}.{again}.{os.getpid()}').touch()\n"
        "if rank == 1 and again < 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "until(lambda: list(folder.glob('1.0.2.*')))",
        per_node=3,
        on_failure=OnFailure.RESTART,
        restarts=2,
    )
    assert code == 0
    assert "signal SIGKILL; starting it again (restarts left: 2)" in shown
    starts = sorted(path.name.rpartition(".")[0] for path in tmp_path.glob("?.0.?.*"))
    assert starts == ["0.0.0", "1.0.0", "1.0.1", "1.0.2", "2.0.0"]


def test_each_worker_starts_again_only_so_often_and_the_others_finish(run, tmp_path: Path):
    code, shown = run(
        "(folder / f'{rank}.{again}').touch()\n"
        "sys.exit(3) if rank == 0 else until((folder / '0.1').exists)\n"
        "sys.exit(again == 0)",
        per_node=2,
        on_failure=OnFailure.RESTART,
        restarts=1,
    )
    assert code == 3
    assert {path.name for path in tmp_path.glob("?.?")} == {"0.0", "0.1", "1.0", "1.1"}
    assert "rank 0 (node 0, local rank 0): exit code 3; " in shown
    assert "rank 1 (node 0, local rank 1): exit code 1; starting it again" in shown


def test_a_node_that_dies_comes_back_under_the_workers(run, tmp_path: Path):
    code, shown = run(
        "pids = (folder / 'node').read_text().split\n"
        "os.kill(int(pids()[0]), signal.SIGKILL)\n"
        "node = folder / 'node'\n"
        "until(lambda: len(node.read_text().split()) == 2)"
    )
    assert code == 0
    assert "starting it again on its memory" in shown
    assert len((tmp_path / "node").read_text().split()) == 2


def test_a_node_that_is_there_is_used(run, tmp_path: Path):
    code, shown = run("print(os.environ['SMBOX_ADDRESS'])", address="tcp://10.0.0.5:7070")
    assert code == 0
    assert shown == "[rank 0] tcp://10.0.0.5:7070\n"
    assert not (tmp_path / "node").exists()


@pytest.mark.parametrize(
    ("sign", "code", "processes"),
    [
        (signal.SIGINT, HELPED, 5),
        (signal.SIGTERM, HELPED, 5),
        (signal.SIGHUP, HELPED, 5),
        (signal.SIGKILL, HANG, 3),
    ],
)
def test_nothing_outlives_a_launcher_that_is_ended(
    tmp_path: Path, sign: signal.Signals, code: str, processes: int
):
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, WORKER + code, NODE],
        env=os.environ | {"FOLDER": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with launcher:
        try:
            assert [launcher.stdout.readline() for _ in range(2)] != ["", ""]
            family = psutil.Process(launcher.pid).children(recursive=True)
            assert len(family) == processes  # a node, two workers and what they have started
            launcher.send_signal(sign)
            launcher.communicate(timeout=60)
        finally:
            launcher.kill()
    assert launcher.returncode == (-signal.SIGKILL if sign == signal.SIGKILL else 130)
    assert psutil.wait_procs(family, timeout=60)[1] == []


KILLS_NODE = "os.kill(int((folder / 'node').read_text()), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("begun", "code"),
    [(1, ""), (2, "signal.pause()"), (3, "if not again: sys.exit(7)"), (3, KILLS_NODE)],
    ids=["node", "worker", "worker again", "node again"],
)
def test_an_interrupt_while_a_process_starts_leaves_none(run, monkeypatch, begun, code):
    started: list[psutil.Process] = []
    open_real = os.pidfd_open

    def interrupted(pid: int) -> int:
        started.append(psutil.Process(pid))
        if len(started) == begun:
            signal.raise_signal(signal.SIGTERM)
        return open_real(pid)

    monkeypatch.setattr(os, "pidfd_open", interrupted)
    on_failure = OnFailure.RESTART if "again" in code else OnFailure.CONTINUE
    assert run(code + "\nsignal.pause()", on_failure=on_failure)[0] == 130
    assert len(started) == begun
    assert not [process for process in started if process.is_running()]

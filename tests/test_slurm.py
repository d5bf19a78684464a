"""Tests of the job file of docs/slurm.md: its options, and the processes that it starts."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "slurm" / "train.sbatch"
STUB = ROOT / "tests" / "stub_slurm.py"
SMBOX = {
    "smbox": "from smbox.cli.main import main; main()",
    "memnode": "import sys; from memnode.cli import main; sys.exit(main())",
}
SBATCH = {
    "cpus-per-task": r"\d+",
    "job-name": r"\S+",
    "nodes": r"\d+(-\d+)?",
    "ntasks-per-node": r"\d+",
    "output": r"\S+",
    "time": r"(\d+-)?\d+(:\d\d){0,2}",
}
"""Options of sbatch(1) (Slurm 26.11), with a pattern for their values."""
SRUN = {
    *("cpus-per-task", "distribution", "kill-on-bad-exit", "nodes", "ntasks"),
    *("ntasks-per-node", "overlap"),
}
"""Options of srun(1)."""
WORKER = """
import os, pathlib, sys
import smbox
from smbox_torch.world import World

world = World.from_env(os.environ)
with smbox.connect() as box, smbox.join(box, "run", expected=world.world_size) as member:
    sums = box.create("sums", shape=(8, 2), init=0.0, layout="striped", exist_ok=True)
    sums.accumulate([[1.0, 1.0]] * 8)
    member.meet()
    place = world.rank, world.local_rank, world.group_rank, world.groups
    nodes = sorted({part.node for part in sums.parts})
    pathlib.Path(f"rank{world.rank}").write_text(f"{place} {sums.get().sum()} {nodes}")
    if sys.argv[1] == "7" and world.rank == 1:
        sys.exit(7)
    if sys.argv[1] != "0" and os.environ["KILL_ON_BAD_EXIT"] == "1":
        box.counter("never").wait(at_least=1, timeout_s=1000.0)
"""


@pytest.fixture
def job(tmp_path: Path, preloaded: str):
    """Return a function that runs the job file as sbatch does: two hosts, four tasks."""
    programs = tmp_path / "bin"
    programs.mkdir()
    stubs = {n: f"'{sys.executable}' '{STUB}' {n}" for n in ("srun", "scontrol")}
    stubs |= {name: f"'{preloaded}' -c \"{code}\"" for name, code in SMBOX.items()}
    stubs["python"] = f"'{preloaded}'"
    for name, words in stubs.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (programs / name).chmod(0o755)
    (tmp_path / "worker.py").write_text(WORKER)
    environment = {
        key: os.environ[key] for key in os.environ if "SMBOX_" not in key and "SLURM" not in key
    }
    environment |= {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_NODELIST": "localhost,localhost",
        "SLURMD_NODENAME": "localhost",
        "SLURM_NNODES": "2",
        "SLURM_NTASKS": "4",
        "SLURM_NTASKS_PER_NODE": "2",
        "MEMORY": "16MiB",
    }

    def run(
        *words: str, until: Callable[[], bool] = lambda: False, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the job; send SIGTERM to its processes when ``until`` holds, at the latest."""
        with (tmp_path / "output").open("w+") as output:
            child = subprocess.Popen(
                ["bash", SCRIPT, *words],
                cwd=tmp_path,
                env=environment | more,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            deadline_s = time.monotonic() + 90.0
            while child.poll() is None and not until() and time.monotonic() < deadline_s:
                time.sleep(0.05)
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
            return subprocess.CompletedProcess(
                words, child.wait(30.0), (tmp_path / "output").read_text()
            )

    return run


def test_directives_are_documented_options():
    lines = SCRIPT.read_text().splitlines()
    found = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", "\n".join(lines), re.MULTILINE))
    assert len(found) == sum(line.startswith("#SBATCH") for line in lines) == len(SBATCH)
    assert [
        name for name, value in found.items() if not re.fullmatch(SBATCH[name], value)
    ] == []
    # sbatch reads directives up to the first line that is neither blank nor a comment
    directives = [index for index, line in enumerate(lines) if line.startswith("#SBATCH")]
    code = [index for index, line in enumerate(lines) if not re.match(r"#|\s*$", line)]
    assert directives[-1] < code[0]


def test_options_of_srun_are_documented():
    calls = re.findall(
        r"^ *srun ((?:.*\\\n)*.*?) (?:bash|\"\$@)", SCRIPT.read_text(), re.MULTILINE
    )
    assert len(calls) == 2
    assert {name for call in calls for name in re.findall(r"--([a-z-]+)", call)} == SRUN


def test_workers_find_their_places_and_all_memory_nodes(job, tmp_path: Path):
    done = job("worker.py", "0", MEMORY_NODES="2", KILL_ON_BAD_EXIT="1")
    assert done.returncode == 0, done.stdout
    said = [(tmp_path / f"rank{rank}").read_text() for rank in range(4)]
    assert said == [f"({rank}, {rank % 2}, {rank // 2}, 2) 64.0 [0, 1]" for rank in range(4)]
    assert not list(tmp_path.glob("smbox-*"))  # keys included


@pytest.mark.parametrize(("kills", "code"), [("0", 7), ("1", 143)])  # srun's is the highest
def test_the_job_fails_with_a_worker_and_leaves_nothing(kills, code, job, tmp_path: Path):
    done = job("worker.py", "7", KILL_ON_BAD_EXIT=kills)
    assert done.returncode == code, done.stdout
    assert (tmp_path / "rank1").read_text().endswith("[0]")
    assert not list(tmp_path.glob("smbox-*"))


def test_a_memory_node_that_does_not_start_ends_the_job(job, tmp_path: Path):
    done = job("worker.py", "0", MEMORY="plenty")
    assert done.returncode == 1
    assert "plenty" in done.stdout
    assert "memory node 0 did not start" in done.stdout
    assert not list(tmp_path.glob("*rank*"))
    assert not list(tmp_path.glob("smbox-*"))


def test_a_job_whose_processes_all_get_sigterm_leaves_nothing(job, tmp_path: Path):
    """As by scancel --full --signal=TERM: srun kills the memory nodes."""
    done = job("worker.py", "wait", until=lambda: ranks(tmp_path) == 4, KILL_ON_BAD_EXIT="1")
    assert ranks(tmp_path) == 4, done.stdout
    assert not list(tmp_path.glob("smbox-*"))
    assert not segments()


def test_a_requeued_job_begins_anew(job, tmp_path: Path):
    """Its first start was killed: its folder and the memory of its node are still there."""
    left = tmp_path / f"smbox-{os.getpid()}"
    (left / "keys").mkdir(parents=True)
    (left / "done").touch()
    (left / "ready.0").write_text('{"event": "ready", "address": "tcp://127.0.0.1:1"}')
    memory = Path(f"/dev/shm/smbox.slurm-{os.getpid()}-0.region.000000000000")
    memory.touch(0o600)
    done = job("worker.py", "0", KILL_ON_BAD_EXIT="1", SLURM_RESTART_COUNT="1")
    assert done.returncode == 0, done.stdout
    assert ranks(tmp_path) == 4
    assert not list(tmp_path.glob("smbox-*"))
    assert not segments()


def test_hosts_whose_own_name_is_loopback_take_the_address_of_a_route(job, tmp_path: Path):
    """As on Debian (127.0.1.1), where other hosts cannot reach that address."""
    if shutil.which("ip") is None:
        pytest.skip("needs ip, of the package iproute2")
    other = "192.0.2.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((other, 1))  # sends nothing
        except OSError:
            pytest.skip("this host has no address but loopback")
        own = probe.getsockname()[0]
    names = f'[ "$2" = localhost ] && echo 127.0.1.1 STREAM localhost || echo {other} STREAM'
    (tmp_path / "bin" / "getent").write_text(f"#!/bin/sh\n{names}\n")
    (tmp_path / "bin" / "getent").chmod(0o755)
    said = "import os; print(*(os.environ['SMBOX_' + n] for n in ('MASTER_ADDR', 'ADDRESS')))"
    (tmp_path / "worker.py").write_text(said)
    done = job("worker.py", SLURM_JOB_NODELIST="localhost,other")
    found = re.findall(rf"^{own} tcp://{own}:\d+$", done.stdout, re.MULTILINE)
    assert len(found) == 4, done.stdout


def ranks(folder: Path) -> int:
    return len(list(folder.glob("rank?")))


def segments() -> list[Path]:
    return list(Path("/dev/shm").glob(f"smbox.slurm-{os.getpid()}-*"))

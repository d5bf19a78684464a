"""Tests of the job file of docs/slurm.md: its options, and the processes that it starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
    if sys.argv[1] != "0" and world.rank == 1:
        sys.exit(int(sys.argv[1]))
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
        "SLURM_NNODES": "2",
        "SLURM_NTASKS": "4",
        "SLURM_NTASKS_PER_NODE": "2",
        "MEMORY": "16MiB",
    }

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["timeout", "90", "bash", SCRIPT, *words],  # it ends all processes of the job
            cwd=tmp_path,
            env=environment | more,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
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
    calls = re.findall(r"^srun ((?:.*\\\n)*.*?) bash -c", SCRIPT.read_text(), re.MULTILINE)
    assert len(calls) == 2
    assert {name for call in calls for name in re.findall(r"--([a-z-]+)", call)} == SRUN


def test_workers_find_their_places_and_all_memory_nodes(job, tmp_path: Path):
    done = job("worker.py", "0", MEMORY_NODES="2", KILL_ON_BAD_EXIT="1")
    assert done.returncode == 0, done.stdout + done.stderr
    said = [(tmp_path / f"rank{rank}").read_text() for rank in range(4)]
    assert said == [f"({rank}, {rank % 2}, {rank // 2}, 2) 64.0 [0, 1]" for rank in range(4)]
    assert not list(tmp_path.glob("smbox-*"))  # keys included


@pytest.mark.parametrize(("kills", "code"), [("0", 7), ("1", 143)])  # srun's is the highest
def test_the_job_fails_with_a_worker_and_leaves_nothing(kills, code, job, tmp_path: Path):
    done = job("worker.py", "7", KILL_ON_BAD_EXIT=kills)
    assert done.returncode == code, done.stdout + done.stderr
    assert (tmp_path / "rank1").read_text().endswith("[0]")
    assert not list(tmp_path.glob("smbox-*"))


def test_a_memory_node_that_does_not_start_ends_the_job(job, tmp_path: Path):
    done = job("worker.py", "0", MEMORY="plenty")
    assert done.returncode == 1
    assert "plenty" in done.stderr
    assert "memory node 0 did not start" in done.stderr
    assert not list(tmp_path.glob("*rank*"))
    assert not list(tmp_path.glob("smbox-*"))

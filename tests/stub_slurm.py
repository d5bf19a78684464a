"""Stand-ins for srun and scontrol. They run real tasks; every "host" is this one.

python stub_slurm.py NAME ARGUMENTS; a file NAME in the PATH of a test calls it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys

NAME = "localhost"


def srun(arguments: list[str]) -> int:
    """Run the tasks of a step; return the highest exit code, as srun(1) does.

    A task has its own session: a signal to the job's processes does not reach it, but srun
    forwards SIGTERM as SIGKILL. What remains when a task ends is killed.
    """
    parser = argparse.ArgumentParser("srun", allow_abbrev=False)
    inherited = {name: os.environ.get(f"SLURM_{name}") for name in ("NNODES", "NTASKS")}
    parser.add_argument("--nodes", type=int, default=inherited["NNODES"])
    parser.add_argument("--ntasks", type=int, default=inherited["NTASKS"])
    parser.add_argument(
        "--ntasks-per-node", type=int, default=os.environ["SLURM_NTASKS_PER_NODE"]
    )
    parser.add_argument("--cpus-per-task", type=int, default=1)
    parser.add_argument("--kill-on-bad-exit", type=int, choices=(0, 1), default=0)
    parser.add_argument("--distribution", choices=("block", "cyclic"), default="block")
    parser.add_argument("--overlap", action="store_true", required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    step = parser.parse_args(arguments)
    assert step.ntasks <= step.nodes * step.ntasks_per_node
    tasks = {
        subprocess.Popen(
            step.command, env=os.environ | told(step, task), start_new_session=True
        ).pid
        for task in range(step.ntasks)
    }
    signal.signal(signal.SIGTERM, lambda *_: [end(task, signal.SIGKILL) for task in tasks])
    highest = 0
    while tasks:
        ended, status = os.wait()
        tasks.remove(ended)
        end(ended, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(status)
        if code and step.kill_on_bad_exit:
            for task in tasks:
                end(task, signal.SIGTERM)
        highest = max(highest, code if code >= 0 else 128 - code)
    return highest


def end(task: int, by: signal.Signals) -> None:
    """Send a signal to all processes of a task."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(task, by)


def told(step: argparse.Namespace, task: int) -> dict[str, str]:
    """Return the output environment variables of srun(1)."""
    node, local = divmod(task, step.ntasks_per_node)
    values = {
        "SLURM_PROCID": task,
        "SLURM_LOCALID": local,
        "SLURM_NODEID": node,
        "SLURM_NTASKS": step.ntasks,
        "SLURM_NTASKS_PER_NODE": step.ntasks_per_node,
        "SLURM_STEP_NUM_NODES": step.nodes,
        "SLURM_CPUS_PER_TASK": step.cpus_per_task,
        "SLURMD_NODENAME": NAME,
    }
    return {name: str(value) for name, value in values.items()}


def scontrol(arguments: list[str]) -> int:
    """Print the names of a host list, one per line."""
    show, hostnames, hosts = arguments
    assert (show, hostnames) == ("show", "hostnames")
    print("\n".join(hosts.split(",")))
    return 0


if __name__ == "__main__":
    sys.exit({"srun": srun, "scontrol": scontrol}[sys.argv[1]](sys.argv[2:]))

"""Runs a script's workers over the hosts of a laboratory, by the launcher of ``smbox run``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from lab import counters, hosts, nodes
from lab.computing import WAIT_S
from lab.record import Record, RecordingBoard
from lab.spec import Spec
from smbox.errors import ConfigError
from smbox_torch.cluster import Plan
from smbox_torch.launcher import Launcher, terminable
from smbox_torch.program import command_of

TORCHRUN_PORT: Final = 29400


def run(
    spec: Spec, words: Sequence[str], *, out: Path, torchrun: bool, wait_s: float | None
) -> int:
    """Run one command by all workers; return the exit code as ``smbox run`` has it.

    Args:
        spec: of the laboratory.
        words: of the command, as of ``smbox run``.
        out: file of the samples.
        torchrun: start one torchrun in each host, which starts the workers.
        wait_s: what ``lab.computing`` waits for instead of computing; None: it computes.

    Raises:
        ConfigError: no workers, no memory node, or no such command.
    """
    if not spec.per_host or not any(host.memory for host in spec.hosts):
        raise ConfigError("a run needs a host with workers and one with memory (docs/lab.md)")
    env = dict(os.environ)
    computation = "real"
    if wait_s is not None:
        env[WAIT_S] = str(wait_s)
        computation = f"replaced by waiting {wait_s:g} s a step, measured beforehand"
    with (
        terminable(),
        hosts.standing(spec) as stand,
        nodes.serving(stand, has_keys=spec.keys) as told,
        counters.Counters(stand) as counts,
        out.open("w", encoding="utf-8") as file,
    ):
        places = [host for host in stand if host.spec.workers]
        plan = _plan(spec, places, command_of(words, env), told["SMBOX_ADDRESS"], torchrun)
        record = Record(spec.hosts, counts.read, file, computation)
        names = [host.spec.name for host in places for _ in range(plan.per_node)]
        board = RecordingBoard(record, names, Console(highlight=False))
        try:
            code = Launcher(plan, board, env | told).run()
        finally:
            board.close()
        record.sample(now=True)
        Console(width=140).print(record.table())
    return code


def _plan(
    spec: Spec,
    places: Sequence[hosts.Host],
    command: Sequence[str],
    address: str,
    torchrun: bool,  # noqa: FBT001
) -> Plan:
    master = places[0].spec.name
    per_node = spec.per_host
    if torchrun:
        # Its workers learn who they are from torchrun's variables: SMBOX_RANK would win. It
        # closes the pipe of reports.
        command = [
            *("env", "--unset=SMBOX_RANK", "--unset=SMBOX_REPORT_FD"),
            *(command[0], "-m", "torch.distributed.run"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint={master}:{TORCHRUN_PORT}"),
            *(f"--nnodes={len(places)}", f"--nproc-per-node={per_node}", *command[1:]),
        ]
        per_node = 1
    return Plan(
        command,
        nodes=len(places),
        per_node=per_node,
        address=address,
        enter=[host.enter() for host in places],
        master_addr=master,
    )


def run_on(spec: Spec, name: str, words: Sequence[str]) -> int:
    """Run one program in one host, beside the memory nodes; return its exit code.

    Raises:
        ConfigError: there is no such host.
    """
    with (
        terminable(),
        hosts.standing(spec) as stand,
        nodes.serving(stand, has_keys=spec.keys) as told,
    ):
        for host in stand:
            if host.spec.name == name:
                done = subprocess.run(
                    [*host.enter(), *words], env=os.environ | told, check=False
                )
                return done.returncode if done.returncode >= 0 else 128 - done.returncode
        raise ConfigError(f"there is no host {name!r} in the file")

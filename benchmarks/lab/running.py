"""Runs a script's workers over the hosts of a laboratory, by the launcher of ``smbox run``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from msgspec import structs
from rich.console import Console

from lab import counters, hosts, nodes
from lab.computing import WAIT_S
from lab.record import Record, RecordingDisplay
from lab.spec import Spec
from smbox.errors import ConfigError
from smbox_torch.launching.hosts import Host
from smbox_torch.launching.interrupts import terminable
from smbox_torch.launching.launcher import Launcher
from smbox_torch.launching.program import command_of

TORCHRUN_PORT: Final = 29400


def run(
    spec: Spec, words: Sequence[str], *, out: Path, torchrun: bool, wait_s: float | None
) -> int:
    """Run one command by all workers, as ``smbox run --hosts`` does; return its exit code.

    Args:
        spec: of the laboratory.
        words: of the command, as of ``smbox run``.
        out: file of the samples.
        torchrun: start one torchrun in each host, which starts the workers.
        wait_s: what ``lab.computing`` waits for instead of computing; None: it computes.

    Raises:
        ConfigError: no workers, no memory node, or no such command.
    """
    if not all(any(getattr(host, has) for host in spec.hosts) for has in ("workers", "memory")):
        raise ConfigError("a run needs a host with workers and one with memory (docs/lab.md)")
    env = dict(os.environ)
    computation = "real"
    if wait_s is not None:
        env[WAIT_S] = str(wait_s)
        computation = f"replaced by waiting {wait_s:g} s a step, measured beforehand"
    command = _by_torchrun(spec, command_of(words, env)) if torchrun else words
    with (
        terminable(),
        hosts.standing(spec) as stand,
        counters.Counters(stand) as counts,
        out.open("w", encoding="utf-8") as file,
    ):
        plan = nodes.plan(stand, command, has_keys=spec.keys)
        if torchrun:
            plan = replace(plan, hosts=[_with_one(host) for host in plan.hosts])
        record = Record(spec.hosts, counts.read, file, computation)
        names = [plan.hosts[place.host].name for place in plan.places]
        display = RecordingDisplay(record, names, Console(highlight=False))
        try:
            code = Launcher(plan, display, env).run()
        finally:
            display.close()
        record.sample(now=True)
        Console(width=140).print(record.table())
    return code


def _by_torchrun(spec: Spec, command: Sequence[str]) -> list[str]:
    """Return the command that starts a torchrun, which starts a host's workers.

    They learn who they are from torchrun's variables. It closes the pipe
    of reports.

    Raises:
        ConfigError: hosts have different numbers of workers.
    """
    places = [host for host in spec.hosts if host.workers]
    if len({host.workers for host in places}) > 1:
        raise ConfigError("with --torchrun hosts with workers have the same number of them")
    return [
        *("env", "--unset=SMBOX_RANK", "--unset=SMBOX_REPORT_FD"),
        *(command[0], "-m", "torch.distributed.run"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={places[0].name}:{TORCHRUN_PORT}"),
        *(f"--nnodes={len(places)}", f"--nproc-per-node={places[0].workers}", *command[1:]),
    ]


def _with_one(host: Host) -> Host:
    return structs.replace(host, workers=min(1, host.workers))


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

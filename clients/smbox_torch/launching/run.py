"""``smbox run``: start workers of a training script, on this host or on several hosts."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from smbox import toml
from smbox.errors import ConfigError
from smbox_torch.launching.cluster import GRACE_S, OnFailure, Plan
from smbox_torch.launching.display import Display
from smbox_torch.launching.hosts import read
from smbox_torch.launching.launcher import Launcher
from smbox_torch.launching.logs import Logs
from smbox_torch.launching.program import command_of

__all__ = ["command"]


Words = Annotated[
    list[str],
    typer.Argument(
        metavar="COMMAND",
        help="What each worker runs: FILE.py or -m MODULE (by this Python), or any program."
        " All arguments after it are passed to it.",
    ),
]
Nodes = Annotated[int, typer.Option(help="Number of nodes to simulate.", min=1)]
PerNode = Annotated[int, typer.Option(help="Number of workers on each node.", min=1)]
Failure = Annotated[
    OnFailure,
    typer.Option(
        help="Action after a worker fails: end all (stop), let the others finish (continue),"
        " restart it (restart), or end and restart all (restart-all)."
    ),
]
Restarts = Annotated[
    int | None,
    typer.Option(
        help="With --on-failure restart: maximum restarts of each worker; with"
        " restart-all: maximum restarts of all workers. [default: 3]",
        min=0,
    ),
]
Ranks = Annotated[str | None, typer.Option(help="Show only these workers, for example 0,2.")]


def _folder(text: str) -> Path:
    if not text:  # as of an unset variable; Path("") is the current folder
        raise typer.BadParameter("the folder has no name")
    return Path(text)


LogDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        parser=_folder,
        help="Write the output of each worker to rank0.log, ... in this folder.",
    ),
]
TorchrunEnv = Annotated[
    bool,
    typer.Option(
        "--torchrun-env",
        help="Set torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, ...) as well: a"
        " script may then set up torch.distributed.",
    ),
]
Address = Annotated[
    str | None, typer.Option(help="Use this memory node, or several with commas; start none.")
]
Memory = Annotated[
    str | None, typer.Option(help="Memory of each started memory node, e.g. 1GiB.")
]
MemoryNodes = Annotated[
    int, typer.Option(help="Number of memory nodes to start, as one address space.", min=1)
]
Hosts = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.toml",
        help="Run on the hosts that this file describes (docs/hosts.md), without --nodes and"
        " --per-node.",
    ),
]
Keys = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        parser=_folder,
        help="With --hosts: folder of keys, as `smbox keygen` makes it, that memory nodes and"
        " workers read from this path on their hosts.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="With --hosts: use no keys, on a trusted network."),
]
Grace = Annotated[float, typer.Option(help="Seconds between SIGTERM and SIGKILL.", min=0.0)]


def command(
    words: Words,
    *,
    nodes: Nodes = 1,
    per_node: PerNode = 1,
    on_failure: Failure = OnFailure.STOP,
    restarts: Restarts = None,
    ranks: Ranks = None,
    log_dir: LogDir = None,
    torchrun_env: TorchrunEnv = False,
    address: Address = None,
    memory: Memory = None,
    memory_nodes: MemoryNodes = 1,
    hosts: Hosts = None,
    keys: Keys = None,
    insecure: Insecure = False,
    grace_s: Grace = GRACE_S,
) -> None:
    """Start a memory node and NODES x PER_NODE workers of a script, module or program.

    With --hosts, a file describes the hosts and their workers.

    SMBOX_RANK, SMBOX_WORLD_SIZE and so on tell each worker its place, and SMBOX_ADDRESS the
    memory. Torchrun's variables are not set, so a script that uses them runs as a single
    process. Rank 0 reads standard input. With several nodes, workers access the memory over
    tcp. The exit code is that of the first worker that failed. Put options before the command.
    """
    if words[0].startswith("-") and words[0] != "-m":
        raise typer.BadParameter(
            f"no such option: {words[0]}; --per-node sets the number of workers (see --help)"
        )
    plan = Plan(
        words if hosts else command_of(words, os.environ),
        nodes=nodes,
        per_node=per_node,
        on_failure=on_failure,
        restarts=restarts,
        torchrun_env=torchrun_env,
        address=address,
        memory=memory,
        memory_nodes=memory_nodes,
        grace_s=grace_s,
        hosts=toml.read(hosts, read) if hosts else (),
        keys=None if keys is None else str(keys),
        key=_key_of(keys, os.environ) if keys and hosts else None,
        insecure=insecure,
    )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for characters that it cannot encode
    display = Display(
        [plan.hosts[at.host].name if hosts else at.group for at in plan.places],
        Console(highlight=False),
        ranks=None if ranks is None else ranks_of(ranks, plan.workers),
        logs=None if log_dir is None else Logs(log_dir, range(plan.workers)),
    )
    try:
        code = Launcher(plan, display, os.environ).run()
    finally:
        display.close()
    raise typer.Exit(code)


command.context_settings = {  # type: ignore[attr-defined]
    "allow_interspersed_args": False,
    "ignore_unknown_options": True,
}
"""All arguments after the command belong to the command; -m begins a command."""


def _key_of(folder: Path, env: Mapping[str, str]) -> str:
    """Return the key file of the workers: SMBOX_KEY, or the only key in the folder.

    Raises:
        ConfigError: the folder has no key or several, or does not exist.
    """
    if key := env.get("SMBOX_KEY"):
        return key
    if not os.path.isdir(folder):
        raise ConfigError(
            "--keys names no folder; `smbox keygen` makes one", folder=str(folder)
        )
    found = sorted(folder.glob("*.key"))
    if not found:
        raise ConfigError(
            "the folder of --keys has no client's key: make one (smbox keygen DIR --client NAME"
            " --role admin), or set SMBOX_KEY to the workers' key file",
            folder=str(folder),
        )
    if len(found) > 1:
        raise ConfigError(
            "the folder of --keys has several clients' keys: set SMBOX_KEY to the workers' key",
            folder=str(folder),
            found=", ".join(path.name for path in found),
        )
    return str(found[0])


def ranks_of(text: str, workers: int) -> list[int]:
    """Parse ranks such as ``0,2``.

    Raises:
        ConfigError: a rank is not a number, or no worker has it.
    """
    words = [word.strip() for word in text.split(",")]
    ranks = sorted({int(word) for word in words if word.isdecimal()})
    if not all(word.isdecimal() for word in words) or ranks[-1] >= workers:
        raise ConfigError(
            f"--ranks needs ranks from 0 to {workers - 1}, separated by commas, such as 0,2",
            ranks=text,
        )
    return ranks

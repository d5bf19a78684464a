"""The cluster that a launcher plays: who is where, and what each worker is told."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from smbox.config import scheme_of
from smbox.errors import ConfigError

GRACE_S: Final = 5.0
MEMNODE: Final = (sys.executable, "-m", "memnode")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start.

    Args:
        command: program and arguments of a worker.
        nodes: how many nodes to play.
        per_node: workers of each.
        restarts: how often all workers start again after one has failed.
        address: of a memory node that runs already; None starts one.
        memory: size of the node that is started, for example "1GiB"; None: its default.
        grace_s: from SIGTERM to SIGKILL, in seconds.
        memnode: command that starts a memory node.

    Raises:
        ConfigError: no workers, fewer than no restarts, or several nodes at an address that
            only one host can reach.
    """

    command: Sequence[str]
    nodes: int = 1
    per_node: int = 1
    restarts: int = 0
    address: str | None = None
    memory: str | None = None
    grace_s: float = GRACE_S
    memnode: Sequence[str] = MEMNODE

    def __post_init__(self) -> None:
        if min(self.nodes, self.per_node) < 1 or self.restarts < 0:
            raise ConfigError(
                "a run has at least one node and one worker per node",
                nodes=self.nodes,
                per_node=self.per_node,
                restarts=self.restarts,
            )
        if self.nodes > 1 and self.address is not None and scheme_of(self.address) != "tcp":
            raise ConfigError(
                "workers of several nodes reach the memory over tcp: give such an address",
                address=self.address,
                nodes=self.nodes,
            )

    @property
    def workers(self) -> int:
        """How many workers there are in all."""
        return self.nodes * self.per_node


def worker_env(
    plan: Plan, base: Mapping[str, str], rank: int, *, run: Mapping[str, str], restart: int
) -> dict[str, str]:
    """Return the environment of one worker: torchrun's variables and smbox's.

    Args:
        plan: of the run.
        base: what every process inherits.
        rank: of the worker.
        run: what all workers share: run id, address and port of the master, memory node.
        restart: how often the workers have been started before.
    """
    group_rank, local_rank = divmod(rank, plan.per_node)
    told = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": plan.workers,
        "LOCAL_WORLD_SIZE": plan.per_node,
        "GROUP_RANK": group_rank,
        "GROUP_WORLD_SIZE": plan.nodes,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": plan.workers,
        "TORCHELASTIC_RESTART_COUNT": restart,
        "TORCHELASTIC_MAX_RESTARTS": plan.restarts,
        "PYTHONUNBUFFERED": 1,
    }
    env = {**base, **run, **{name: str(value) for name, value in told.items()}}
    env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // plan.workers)))
    if plan.nodes > 1:
        env["SMBOX_TRANSPORT"] = "tcp"
    return env


def free_port() -> int:
    """Return a TCP port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

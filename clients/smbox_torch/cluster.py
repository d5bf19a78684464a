"""The cluster that a launcher plays: who is where, and what each worker is told."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from smbox.config import addresses_of, scheme_of
from smbox.errors import ConfigError
from smbox_torch.world import TORCHELASTIC

GRACE_S: Final = 5.0
RESTARTS: Final = 3
LOOPBACK: Final = "127.0.0.1"
MEMNODE: Final = (sys.executable, "-m", "memnode")


class OnFailure(StrEnum):
    """What a launcher does after a worker has failed."""

    STOP = "stop"
    CONTINUE = "continue"
    RESTART = "restart"
    RESTART_ALL = "restart-all"

    @property
    def restarts(self) -> bool:
        """Whether workers are started again."""
        return self in {OnFailure.RESTART, OnFailure.RESTART_ALL}


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start.

    Args:
        command: program and arguments of a worker.
        nodes: how many nodes to play.
        per_node: workers of each.
        on_failure: end all workers, let the others continue, start the failed worker again, or
            start all again.
        restarts: how often, for each worker or for all together; None: RESTARTS where
            ``on_failure`` starts again, else 0.
        torchrun_env: also tell the workers what torchrun would.
        address: of a memory node that runs already; None starts one.
        memory: size of each memory node that is started, for example "1GiB"; None: its
            default.
        memory_nodes: how many memory nodes to start, as one address space.
        grace_s: from SIGTERM to SIGKILL, in seconds.
        memnode: command that starts a memory node.
        enter: for each node the words that run a program there, in front of the program;
            none: all nodes are played on this host.
        master_addr: host of rank 0, as the workers reach it.

    Raises:
        ConfigError: no workers or memory nodes, restarts that do not fit ``on_failure``, or
            several nodes at an address that only one host can reach.
    """

    command: Sequence[str]
    nodes: int = 1
    per_node: int = 1
    on_failure: OnFailure = OnFailure.STOP
    restarts: int | None = None
    torchrun_env: bool = False
    address: str | None = None
    memory: str | None = None
    memory_nodes: int = 1
    grace_s: float = GRACE_S
    memnode: Sequence[str] = MEMNODE
    enter: Sequence[Sequence[str]] = ()
    master_addr: str = LOOPBACK

    def __post_init__(self) -> None:
        if min(self.nodes, self.per_node) < 1:
            raise ConfigError(
                "a run has at least one node and one worker per node",
                nodes=self.nodes,
                per_node=self.per_node,
            )
        if self.restarts_max < 0 or (self.restarts_max > 0) > self.on_failure.restarts:
            raise ConfigError(
                "restarts begin at 0 and go with --on-failure restart (the failed worker) or"
                " --on-failure restart-all (all workers)",
                restarts=self.restarts,
                on_failure=str(self.on_failure),
            )
        if self.memory_nodes < 1:
            raise ConfigError("a run has at least one memory node", given=self.memory_nodes)
        if self.enter and (len(self.enter) != self.nodes or self.address is None):
            raise ConfigError(
                "a run on other hosts has an entrance for each, and a memory node that runs",
                entrances=len(self.enter),
                nodes=self.nodes,
            )
        addresses = () if self.address is None else addresses_of(self.address)
        if self.nodes > 1 and {scheme_of(address) for address in addresses} - {"tcp"}:
            raise ConfigError(
                "workers of several nodes reach the memory over tcp: give such an address",
                address=self.address,
                nodes=self.nodes,
            )

    def command_on(self, node: int) -> list[str]:
        """Return the words that start a worker on a node."""
        return [*(self.enter[node] if self.enter else ()), *self.command]

    @property
    def workers(self) -> int:
        """How many workers there are in all."""
        return self.nodes * self.per_node

    @property
    def restarts_max(self) -> int:
        """How often workers are started again at most."""
        if self.restarts is not None:
            return self.restarts
        return RESTARTS if self.on_failure.restarts else 0


@dataclass(frozen=True, slots=True)
class Run:
    """What all workers of a run are told alike.

    Args:
        run_id: of no other run.
        address: of the memory node.
        master_port: free TCP port for a store that rank 0 may serve.
        master_addr: host of rank 0.
    """

    run_id: str
    address: str
    master_port: int
    master_addr: str = LOOPBACK


TORCHRUN: Final = frozenset(
    (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT"),
    )
)
"""Variables of torchrun, beside those that begin with TORCHELASTIC."""


def worker_env(
    plan: Plan,
    base: Mapping[str, str],
    rank: int,
    *,
    run: Run,
    restart: int = 0,
    worker_restart: int = 0,
) -> dict[str, str]:
    """Return the environment of one worker: smbox's variables and, if asked for, torchrun's.

    Torchrun's variables in ``base`` are about the launcher and not about the worker, so they
    are left out. So is SMBOX_KEY where the run has a node of its own, which asks for none.

    Args:
        plan: of the run.
        base: what every process inherits.
        rank: of the worker.
        run: what all workers share.
        restart: how often all workers have been started again.
        worker_restart: how often this worker has been started again by itself.
    """
    place = _place(plan, rank, run)
    told: dict[str, object] = {f"SMBOX_{name}": value for name, value in place.items()}
    told["SMBOX_RUN_ID"] = run.run_id
    told["SMBOX_RESTART_COUNT"] = restart
    told["SMBOX_WORKER_RESTART_COUNT"] = worker_restart
    told["SMBOX_ADDRESS"] = run.address
    if plan.torchrun_env:
        told |= place | {
            "ROLE_NAME": "default",
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": plan.workers,
            f"{TORCHELASTIC}RUN_ID": run.run_id,
            f"{TORCHELASTIC}RESTART_COUNT": restart,
            f"{TORCHELASTIC}MAX_RESTARTS": plan.restarts_max,
        }
    told["PYTHONUNBUFFERED"] = 1
    env = {
        name: value
        for name, value in base.items()
        if name not in TORCHRUN and not name.startswith(TORCHELASTIC)
    }
    if plan.address is None:
        env.pop("SMBOX_KEY", None)
    env |= {name: str(value) for name, value in told.items()}
    env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // plan.workers)))
    if (
        plan.nodes > 1 and not plan.enter
    ):  # hosts that are played share memory, real ones do not
        env["SMBOX_TRANSPORT"] = "tcp"
    return env


def _place(plan: Plan, rank: int, run: Run) -> dict[str, object]:
    """Return what smbox and torchrun call by the same names."""
    group_rank, local_rank = divmod(rank, plan.per_node)
    return {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": plan.workers,
        "LOCAL_WORLD_SIZE": plan.per_node,
        "GROUP_RANK": group_rank,
        "GROUP_WORLD_SIZE": plan.nodes,
        "MASTER_ADDR": run.master_addr,
        "MASTER_PORT": run.master_port,
    }


def free_port() -> int:
    """Return a TCP port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def ranked(hosts: Sequence[str]) -> list[tuple[int, dict[str, object]]]:
    """Give ranks to the places that a scheduler has chosen, consecutive on each host.

    Args:
        hosts: host of each place.

    Returns:
        By rank, the number of its place and its variables without their prefix SMBOX_.
    """
    groups = list(dict.fromkeys(hosts))
    order = sorted(range(len(hosts)), key=lambda index: groups.index(hosts[index]))
    ranks: list[tuple[int, dict[str, object]]] = []
    for rank, index in enumerate(order):
        host = hosts[index]
        place: dict[str, object] = {"RANK": rank, "WORLD_SIZE": len(hosts)}
        place |= {"LOCAL_RANK": hosts[:index].count(host)}
        place |= {"LOCAL_WORLD_SIZE": hosts.count(host)}
        place |= {"GROUP_RANK": groups.index(host), "GROUP_WORLD_SIZE": len(groups)}
        ranks.append((index, place))
    return ranks

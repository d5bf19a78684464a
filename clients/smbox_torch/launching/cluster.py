"""The plan of a run: hosts, places of the workers, and the environment of each worker."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from smbox.config import addresses_of, scheme_of
from smbox.errors import ConfigError
from smbox_torch.launching.hosts import WORKERS_MAX, Host, without_places
from smbox_torch.launching.local_host import LOOPBACK
from smbox_torch.world import TORCHELASTIC

GRACE_S: Final = 5.0
RESTARTS: Final = 3
MEMORY_NODES_MAX: Final = 256


class OnFailure(StrEnum):
    """What a launcher does after a worker has failed."""

    STOP = "stop"
    CONTINUE = "continue"
    RESTART = "restart"
    RESTART_ALL = "restart-all"

    @property
    def restarts(self) -> bool:
        """Whether failed workers are restarted."""
        return self in {OnFailure.RESTART, OnFailure.RESTART_ALL}


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a worker.

    Args:
        host: index of its host in the plan; 0 if all nodes are simulated on this host.
        group: its node: number of its host among the hosts with workers.
        local_rank: its number among the workers of its node.
        size: number of workers of its node.
    """

    host: int
    group: int
    local_rank: int
    size: int


@dataclass(frozen=True)
class Plan:
    """The processes that a launcher starts.

    Args:
        command: program and arguments of a worker; with ``hosts``, the arguments of the
            command line, which each host interprets (program.py).
        nodes: number of nodes to simulate.
        per_node: number of workers on each node.
        on_failure: end all workers, let the others continue, start the failed worker again, or
            start all again.
        restarts: maximum number of restarts, of each worker or of all together; None: RESTARTS
            if ``on_failure`` restarts workers, else 0.
        torchrun_env: also set torchrun's variables.
        address: address of a running memory node; None: start one.
        memory: size of each started memory node, for example "1GiB"; None: memnode's default.
        memory_nodes: number of memory nodes to start, as one address space.
        grace_s: seconds between SIGTERM and SIGKILL.
        memnode: command that starts a memory node; empty: memnode of the host's Python.
        hosts: hosts of workers and memory nodes; empty: all nodes are simulated on this host.
        keys: key folder of the memory nodes, by its path on the hosts.
        key: key file of the workers, by its path on the hosts.
        insecure: let memory nodes serve other hosts without keys.

    Raises:
        ConfigError: there are no workers or memory nodes, ``restarts`` does not fit
            ``on_failure``, only one host can reach the address of several nodes, or arguments
            contradict ``hosts``.
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
    memnode: Sequence[str] = ()
    hosts: Sequence[Host] = ()
    keys: str | None = None
    key: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if min(self.nodes, self.per_node) < 1 or self.nodes * self.per_node > WORKERS_MAX:
            raise ConfigError(
                "a run has at least one node and one worker per node, and at most"
                f" {WORKERS_MAX} workers",
                nodes=self.nodes,
                per_node=self.per_node,
            )
        if self.restarts_max < 0 or (self.restarts_max > 0) > self.on_failure.restarts:
            raise ConfigError(
                "--restarts is 0 or more, and goes with --on-failure restart (the failed worker"
                " starts again) or --on-failure restart-all (all workers do)",
                restarts=self.restarts,
                on_failure=str(self.on_failure),
            )
        if not 1 <= self.memory_nodes <= MEMORY_NODES_MAX:
            raise ConfigError(
                f"a run has 1 to {MEMORY_NODES_MAX} memory nodes", given=self.memory_nodes
            )
        self._check_hosts()
        addresses = () if self.address is None else addresses_of(self.address)
        schemes = {scheme_of(address) for address in addresses}
        if schemes and (self.memory or self.memory_nodes > 1):
            raise ConfigError(
                "with --address no memory node is started: leave out --memory, --memory-nodes"
            )
        if self.groups > 1 and schemes - {"tcp"}:
            raise ConfigError(
                "workers of several nodes reach the memory over tcp: give such an address",
                address=self.address,
                nodes=self.groups,
            )

    def _check_hosts(self) -> None:
        if self.hosts and (self.nodes, self.per_node) != (1, 1):
            raise ConfigError("a file of hosts sets the workers: leave out --nodes, --per-node")
        if not self.hosts and (self.keys or self.insecure):
            raise ConfigError("--keys and --insecure go with --hosts: here all is on one host")
        sized = [host.name for host in self.hosts if host.memory]
        if sized and (self.address or self.memory or self.memory_nodes > 1):
            raise ConfigError(
                "the file of hosts says where memory nodes run: leave out --address, --memory"
                " and --memory-nodes",
                hosts=", ".join(sized),
            )
        self._check_ports()

    def _check_ports(self) -> None:
        binds = [self.hosts[index].bind() for index in self.memory_hosts if self.hosts]
        twice = [bind for bind in binds if binds.count(bind) > 1 and not bind.endswith(":0")]
        if twice:
            raise ConfigError(
                "several memory nodes would listen at one port: leave out `port` of the host,"
                " or start fewer --memory-nodes",
                address=twice[0],
                nodes=len(twice),
            )

    @cached_property  # read several times for each worker
    def places(self) -> Sequence[Place]:
        """The place of each worker, by rank, host by host."""
        shares = [host.workers for host in self.hosts] or [self.per_node] * self.nodes
        groups = [index for index, size in enumerate(shares) if size]
        return [
            Place(index if self.hosts else 0, group, local_rank, shares[index])
            for group, index in enumerate(groups)
            for local_rank in range(shares[index])
        ]

    @property
    def groups(self) -> int:
        """Number of nodes, which are the hosts with workers."""
        return sum(1 for host in self.hosts if host.workers) if self.hosts else self.nodes

    @property
    def workers(self) -> int:
        """Number of all workers."""
        return len(self.places)

    @property
    def memory_hosts(self) -> list[int]:
        """Index of the host of each started memory node; 0 if all nodes are simulated here."""
        if self.address is not None:
            return []
        sized = [index for index, host in enumerate(self.hosts) if host.memory]
        return sized or [node % max(1, len(self.hosts)) for node in range(self.memory_nodes)]

    def named(self, place: Place) -> str:
        """Return the name of a worker's node."""
        return f"host {self.hosts[place.host].name}" if self.hosts else f"node {place.group}"

    @property
    def restarts_max(self) -> int:
        """Maximum number of restarts."""
        if self.restarts is not None:
            return self.restarts
        return RESTARTS if self.on_failure.restarts else 0


@dataclass(frozen=True, slots=True)
class Run:
    """The settings that all workers of a run share.

    Args:
        run_id: unique identifier of the run.
        address: address of the memory nodes.
        master_port: free TCP port for a store that rank 0 may serve.
        master_addr: host of rank 0.
    """

    run_id: str
    address: str
    master_port: int
    master_addr: str = LOOPBACK


def worker_env(
    plan: Plan,
    base: Mapping[str, str],
    rank: int,
    *,
    run: Run,
    restart: int = 0,
    worker_restart: int = 0,
) -> dict[str, str]:
    """Return the environment of one worker: smbox's variables and, on request, torchrun's.

    Torchrun's variables in ``base`` describe the launcher, not the worker, so they are left
    out. If the run starts its own memory nodes, SMBOX_KEY is the plan's key.

    Args:
        plan: plan of the run.
        base: environment that all processes inherit.
        rank: rank of the worker.
        run: settings that all workers share.
        restart: how often all workers have been restarted.
        worker_restart: how often this worker alone has been restarted.
    """
    place = _place(plan, plan.places[rank], rank, run)
    variables: dict[str, object] = {f"SMBOX_{name}": value for name, value in place.items()}
    variables["SMBOX_RUN_ID"] = run.run_id
    variables["SMBOX_RESTART_COUNT"] = restart
    variables["SMBOX_WORKER_RESTART_COUNT"] = worker_restart
    variables["SMBOX_ADDRESS"] = run.address
    if plan.torchrun_env:
        variables |= place | {
            "ROLE_NAME": "default",
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": plan.workers,
            f"{TORCHELASTIC}RUN_ID": run.run_id,
            f"{TORCHELASTIC}RESTART_COUNT": restart,
            f"{TORCHELASTIC}MAX_RESTARTS": plan.restarts_max,
        }
    variables["PYTHONUNBUFFERED"] = 1
    env = without_places(base)
    if plan.address is None:
        env.pop("SMBOX_KEY", None)
    variables |= {"SMBOX_KEY": plan.key} if plan.key else {}
    env |= {name: str(value) for name, value in variables.items()}
    if plan.hosts:  # the agent knows the number of cores
        return env
    env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // plan.workers)))
    if plan.nodes > 1:  # simulated nodes share memory, real nodes do not
        env["SMBOX_TRANSPORT"] = "tcp"
    return env


def _place(plan: Plan, place: Place, rank: int, run: Run) -> dict[str, object]:
    """Return the variables that have the same name in smbox and torchrun."""
    return {
        "RANK": rank,
        "LOCAL_RANK": place.local_rank,
        "WORLD_SIZE": plan.workers,
        "LOCAL_WORLD_SIZE": place.size,
        "GROUP_RANK": place.group,
        "GROUP_WORLD_SIZE": plan.groups,
        "MASTER_ADDR": run.master_addr,
        "MASTER_PORT": run.master_port,
    }


def ranked(hosts: Sequence[str]) -> list[tuple[int, dict[str, object]]]:
    """Assign ranks to the places that a scheduler chose, consecutive on each host.

    Args:
        hosts: host of each place.

    Returns:
        By rank, the number of its place and its variables without the prefix SMBOX_.
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

"""The rank and run of this process, as ``smbox run`` or torchrun set them.

``smbox run`` sets SMBOX_RANK, SMBOX_WORLD_SIZE and so on; ``torchrun`` sets RANK, WORLD_SIZE
and so on. If SMBOX_RANK is set, only ``smbox run``'s variables are read, else only torchrun's.
If both are set and contradict each other, torchrun was started inside ``smbox run`` (which
never sets contradictory variables), and only torchrun's are read. Without both, the run has one
worker.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from smbox.errors import ConfigError

TORCHELASTIC = "TORCHELASTIC_"
"""Prefix of the variables that torchrun's agent sets."""

UNNAMED = "none"
"""torchrun's id of a run that it was given no id for."""


@dataclass(frozen=True, slots=True)
class World:
    """A worker's place among all workers, read once.

    Args:
        rank: rank of this worker in the run, from 0.
        local_rank: rank of this worker on its host, from 0.
        world_size: number of all workers.
        local_world_size: number of workers on this host.
        group_rank: number of the host, from 0.
        address: address of the memory nodes, or None if it is not set.
        run_id: identifier that all workers of a run share; unique among the runs on this host.
        launch: identifier of the launch, the same on all hosts; empty if the launcher gave
            none, as torchrun without ``--rdzv-id``.
        restart: how often the launcher has restarted all workers of this run.
        group_world_size: number of hosts, or None if it is not set.
        worker_restart: how often the launcher has restarted this worker alone.
        master_addr: host where rank 0 serves torch's store, or None.
        master_port: its TCP port, or None.

    Raises:
        ConfigError: a rank is out of range.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    group_rank: int = 0
    address: str | None = None
    run_id: str = ""
    launch: str = ""
    restart: int = 0
    group_world_size: int | None = None
    worker_restart: int = 0
    master_addr: str | None = None
    master_port: int | None = None

    def __post_init__(self) -> None:
        for name, value, limit in (
            ("RANK", self.rank, self.world_size),
            ("LOCAL_RANK", self.local_rank, self.local_world_size),
            ("LOCAL_WORLD_SIZE", self.local_world_size, self.world_size + 1),
            ("GROUP_RANK", self.group_rank, self.group_world_size or self.group_rank + 1),
        ):
            if not 0 <= value < limit:
                raise ConfigError(f"{name} must be from 0 and below {limit}", value=value)
        if min(self.restart, self.worker_restart) < 0 or self.local_world_size < 1:
            raise ConfigError(
                "the restart counts must be at least 0, LOCAL_WORLD_SIZE at least 1",
                restart=self.restart,
                worker_restart=self.worker_restart,
                local_world_size=self.local_world_size,
            )

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Read the variables of ``smbox run`` or of torchrun, and SMBOX_ADDRESS.

        Without LOCAL_RANK and LOCAL_WORLD_SIZE, all workers are assumed to be on this host.

        Raises:
            ConfigError: a variable is not a number, or the numbers contradict each other.
        """
        prefix, elastic = ("SMBOX_", "SMBOX_") if _is_by_smbox(env) else ("", TORCHELASTIC)
        rank = number_of(env, f"{prefix}RANK", 0)
        world_size = number_of(env, f"{prefix}WORLD_SIZE", 1)
        master = [env.get(f"{prefix}{name}", "") for name in ("MASTER_ADDR", "MASTER_PORT")]
        address = env.get("SMBOX_ADDRESS", "")
        given = env.get(f"{elastic}RUN_ID", "")
        return cls(
            rank=rank,
            local_rank=number_of(env, f"{prefix}LOCAL_RANK", rank),
            world_size=world_size,
            local_world_size=number_of(env, f"{prefix}LOCAL_WORLD_SIZE", world_size),
            group_rank=number_of(env, f"{prefix}GROUP_RANK", 0),
            address=address or None,
            run_id="|".join((given, *master, address)),
            launch="" if given == UNNAMED else given,
            restart=number_of(env, f"{elastic}RESTART_COUNT", 0),
            group_world_size=number_of(env, f"{prefix}GROUP_WORLD_SIZE", 0) or None,
            worker_restart=number_of(env, "SMBOX_WORKER_RESTART_COUNT", 0) if prefix else 0,
            master_addr=master[0] or None,
            master_port=number_of(env, f"{prefix}MASTER_PORT", 0) or None,
        )

    @property
    def groups(self) -> int | None:
        """Number of hosts; None if it is not set and the hosts' numbers of workers differ."""
        if self.group_world_size is not None:
            return self.group_world_size
        groups, left = divmod(self.world_size, self.local_world_size)
        return None if left else groups

    @property
    def is_group_root(self) -> bool:
        """Whether this worker is the root of its host."""
        return self.local_rank == 0

    @property
    def start_id(self) -> str:
        """Identifier that all workers of one start of the run share."""
        return f"{self.run_id}|{self.restart}"

    @property
    def host_token(self) -> str:
        """Identifier that this host's workers of one start share: 12 hex digits."""
        identity = f"{self.start_id}|{self.group_rank}|{self.local_world_size}"
        return hashlib.sha256(identity.encode()).hexdigest()[:12]

    def rank_of(self, local_rank: int) -> int:
        """Return the rank of a worker of this host; ranks on a host are consecutive."""
        return self.rank - self.local_rank + local_rank


def world_or_default(world: World | None) -> World:
    """Return the given world, or that of the environment.

    Raises:
        TypeError: the argument is not a World.
    """
    if world is not None and not isinstance(world, World):
        raise TypeError(f"world must be a World, not {type(world).__name__}")
    return World.from_env(os.environ) if world is None else world


def world_or_launched(world: World | None, group: object = None) -> World:
    """Return the given world, or that of the launcher.

    Args:
        world: the user's argument.
        group: the user's process group, or None. A group of several ranks defines the ranks
            itself.

    Raises:
        ConfigError: the rank of this process is unknown.
    """
    if world is None and group is None and not is_launched(os.environ):
        raise ConfigError(
            "the rank of this process is unknown: start the script by a launcher (smbox run, "
            "torchrun), or pass world=World(rank=..., world_size=..., ...) of "
            "smbox_torch.world; world=World() for a single worker"
        )
    return world_or_default(world)


def _is_by_smbox(env: Mapping[str, str]) -> bool:
    """Return whether to read ``smbox run``'s variables; a torchrun inside it overrides them."""
    if not env.get("SMBOX_RANK"):
        return False
    pairs = [(env.get(name), env.get(f"SMBOX_{name}")) for name in ("RANK", "WORLD_SIZE")]
    return not all(torch for torch, _ in pairs) or all(torch == own for torch, own in pairs)


def number_of(env: Mapping[str, str], name: str, default: int) -> int:
    """Return an integer variable; ``default`` if it is missing or empty.

    Raises:
        ConfigError: it is not an integer.
    """
    text = env.get(name, "")
    try:
        return int(text) if text else default
    except ValueError as error:
        raise ConfigError(f"{name} must be a whole number", value=text) from error


def is_launched(env: Mapping[str, str]) -> bool:
    """Return whether a launcher (``smbox run``, torchrun) gave this process a rank."""
    return bool(env.get("SMBOX_RANK") or env.get("RANK"))


def bracketed(host: str) -> str:
    """Return a host as an address with a port has it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host

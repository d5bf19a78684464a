"""Ray: memory nodes as actors on its hosts, and workers as tasks that smbox knows by rank."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from smbox.errors import ConfigError, ConnectError, PeerLostError, WorkerLostError
from smbox_torch.launching.access import Access, made_keys
from smbox_torch.launching.cluster import GRACE_S, RESTARTS, OnFailure, ranked
from smbox_torch.launching.detached_node import DetachedNode
from smbox_torch.launching.local_host import free_port
from smbox_torch.launching.node_keeper import READY_S

try:
    import ray
    from ray.exceptions import RayError
    from ray.util import placement_group, placement_group_table, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "smbox_torch.integrations.ray needs ray: pip install 'smbox[ray]'", name="ray"
    ) from error

__all__ = ["Access", "MemoryNodes"]

CPU: Final = {"CPU": 1.0}
LOST: Final = (
    "memory node {} is lost, and its memory: {}; all workers are ended. Make new MemoryNodes,"
    " and go on from a checkpoint"
)
FAILURES: Final = (OnFailure.STOP, OnFailure.CONTINUE, OnFailure.RESTART)


class MemoryNodes(AbstractContextManager["MemoryNodes"]):
    """Memory nodes on the hosts of a Ray cluster: one address space, with keys of its own.

    Args:
        count: how many; Ray spreads them over its hosts as far as it has room.
        memory: size of each, for example "4GiB".
        resources: what Ray keeps for each: "CPU", "GPU" and what the cluster names itself.
        timeout_s: until Ray has room for them, and again until they serve, in seconds.

    Attributes:
        access: for every process that connects; it may be passed to tasks and actors.

    Raises:
        ConfigError: Ray is not connected, or has no room in time; nothing is left.
        ConnectError: a node did not start; nothing is left.
    """

    def __init__(
        self,
        count: int = 1,
        *,
        memory: str = "1GiB",
        resources: Mapping[str, float] = CPU,
        timeout_s: float = READY_S,
    ) -> None:
        self._places = Places(resources, count, "SPREAD", timeout_s)
        files, key = made_keys()
        self._serving: list[Any] = []
        self._nodes = []
        for index, host in enumerate(self._places.addresses):
            actor = self._places.put(DetachedNode, index, max_concurrency=2)  # serve and stop
            self._nodes.append(actor.remote(index, memory, files, f"tcp://{host}:0"))
        try:
            ready = [node.start.remote() for node in self._nodes]
            self.access = Access(",".join(ray.get(ready, timeout=timeout_s)), key)
        except RayError as error:
            self.close()
            raise ConnectError(f"a memory node did not start: {reason(error)}") from error
        self._serving = [node.serve.remote() for node in self._nodes]

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        workers: int,
        resources: Mapping[str, float] = CPU,
        strategy: str = "PACK",
        on_failure: str = OnFailure.STOP,
        restarts: int = RESTARTS,
        timeout_s: float = READY_S,
    ) -> list[Any]:
        """Call a function in every worker and wait for all; ``smbox.connect()`` works inside.

        A worker is a task of Ray, whose process ends with it. It finds SMBOX_RANK and the other
        variables of ``smbox run``. Ranks of one host are consecutive.

        Args:
            function: of a worker.
            *args: its arguments, the same for all.
            workers: how many.
            resources: what Ray keeps for each, as above.
            strategy: how Ray places them: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD".
            on_failure: what follows when one raises or is killed: "stop" ends all, with
                "continue" the others go on, with "restart" it starts again meanwhile.
            restarts: of each worker at most, with "restart".
            timeout_s: until Ray has room for all, in seconds.

        Returns:
            What the function returned, by rank; Ray's exception for a worker that failed.

        Raises:
            ConfigError: an argument is impossible, or Ray has no room; nothing was started.
            PeerLostError: a memory node is lost, and its memory; all workers were ended.
            WorkerLostError: with "stop", names the rank; all workers were ended.
        """
        if on_failure not in FAILURES:
            raise ConfigError(f"on_failure is one of {', '.join(FAILURES)}", given=on_failure)
        places = Places(resources, workers, strategy, timeout_s)
        again = restarts if on_failure == OnFailure.RESTART else 0
        job, is_fatal = (self.access, function, args), on_failure == OnFailure.STOP
        try:
            return lead(places, self._serving, job, again, is_fatal=is_fatal)
        finally:
            places.give_back()

    def close(self) -> None:
        """End all nodes; their memory is removed."""
        for node in self._nodes if self._serving else ():
            node.stop.remote()
        if self._serving:
            ray.wait(self._serving, num_returns=len(self._serving), timeout=GRACE_S)
        for node in self._nodes:
            ray.kill(node)
        self._places.give_back()

    def __exit__(self, *_: object) -> None:
        self.close()


class Places:
    """Room that Ray keeps on its hosts, of one size each.

    Args:
        resources: of each.
        count: how many.
        strategy: how Ray chooses the hosts.
        timeout_s: until Ray has them, in seconds.

    Attributes:
        hosts: Ray's id of the host of each.
        addresses: IP address of the host of each.

    Raises:
        ConfigError: Ray is not connected, or has no room in time; nothing is kept.
    """

    def __init__(
        self, resources: Mapping[str, float], count: int, strategy: str, timeout_s: float
    ) -> None:
        if not ray.is_initialized() or count < 1:
            raise ConfigError("call ray.init() first, and ask for one or more", asked=count)
        self._resources = dict(resources)
        self._group = placement_group([self._resources] * count, strategy=strategy)
        if not self._group.wait(timeout_s):
            self.give_back()
            raise ConfigError(
                "Ray has no room: ask for less, wait for other jobs, or add hosts",
                wanted=f"{count} x {self._resources}, {strategy}",
                free=ray.available_resources(),
                timeout_s=timeout_s,
            )
        chosen = placement_group_table(self._group)["bundles_to_node_id"]
        self.hosts: list[str] = [chosen[index] for index in range(count)]
        known = {host["NodeID"]: host["NodeManagerAddress"] for host in ray.nodes()}
        self.addresses: list[str] = [known[host] for host in self.hosts]

    def put(self, what: Any, index: int, **options: Any) -> Any:
        """Return a task, or the class of an actor, that runs in one of them."""
        more = dict(self._resources)
        return ray.remote(
            num_cpus=more.pop("CPU", 0),
            num_gpus=more.pop("GPU", 0),
            resources=more,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, index),
            **options,
        )(what)

    def give_back(self) -> None:
        """Give them back to Ray, which ends what still runs there."""
        remove_placement_group(self._group)


def lead(
    places: Places, serving: list[Any], job: Sequence[Any], restarts: int, *, is_fatal: bool
) -> list[Any]:
    """Start a worker in each place, and wait for all; see ``MemoryNodes.run``.

    Args:
        places: for them.
        serving: tasks that end with a memory node: PeerLostError.
        job: the first arguments of ``Access.call``.
        restarts: of each worker at most.
        is_fatal: raise WorkerLostError when one has failed.
    """
    ranks = ranked(places.hosts)
    first, _ = ranks[0]
    shared: dict[str, object] = {"RUN_ID": uuid.uuid4().hex}
    shared["MASTER_ADDR"] = places.addresses[first]
    shared["MASTER_PORT"] = ray.get(places.put(free_port, first).remote())
    running: dict[Any, int | None] = {}
    again, results = [0] * len(ranks), [None] * len(ranks)

    def start(rank: int) -> None:
        index, place = ranks[rank]
        told = shared | place | {"WORKER_RESTART_COUNT": again[rank]}
        # max_calls: what a worker leaves in its process (threads, boxes) ends with it.
        task = places.put(Access.call, index, max_calls=1, max_retries=0)
        running[task.remote(*job, told)] = rank

    for each in range(len(ranks)):
        start(each)
    while running:
        (ended,), _ = ray.wait([*running, *serving], num_returns=1)
        rank = running.pop(ended, None)
        try:
            result = ray.get(ended)
            if rank is None:
                raise PeerLostError("the memory nodes were closed; all workers are ended")
        except RayError as error:
            if rank is None:
                raise PeerLostError(LOST.format(serving.index(ended), reason(error))) from error
            if is_fatal:
                told = f"rank {rank} failed: {reason(error)}; all workers are ended"
                raise WorkerLostError(told, rank=rank) from error
            result = error
            if again[rank] < restarts:
                again[rank] += 1
                start(rank)
        results[rank] = result
    return results


def reason(error: RayError) -> str:
    """Word in one line why a task or an actor failed."""
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {str(cause).partition(chr(10))[0]}"

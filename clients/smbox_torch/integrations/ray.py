"""Adapter for Ray: memory nodes as actors on its hosts, and workers as tasks with ranks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
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
    "memory node {} and its memory are lost: {}; all workers are ended. Create new MemoryNodes,"
    " and continue from a checkpoint"
)
FAILURES: Final = (OnFailure.STOP, OnFailure.CONTINUE, OnFailure.RESTART)


class MemoryNodes(AbstractContextManager["MemoryNodes"]):
    """Memory nodes on the hosts of a Ray cluster: one address space with its own keys.

    Args:
        count: number of nodes; Ray spreads them over its hosts if resources allow.
        memory: size of each, for example "4GiB".
        resources: Ray resources of each: "CPU", "GPU" and custom resources.
        timeout_s: longest wait for Ray's resources, and again for the start of the nodes, in
            seconds.

    Attributes:
        access: address and key for clients; it may be passed to tasks and actors.

    Raises:
        ConfigError: Ray is not connected, or lacks the resources; nothing is left.
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
        self._places = Placement(resources, count, "SPREAD", timeout_s)
        self._serving: list[Any] = []
        self._nodes: list[Any] = []
        with ExitStack() as undo:
            undo.callback(self.close)
            self.access = self._start(memory, timeout_s)
            self._serving = [node.serve.remote() for node in self._nodes]
            undo.pop_all()

    def _start(self, memory: str, timeout_s: float) -> Access:
        files, key = made_keys()
        for index, host in enumerate(self._places.addresses):
            actor = self._places.put(DetachedNode, index, max_concurrency=2)  # serve and stop
            self._nodes.append(actor.remote(index, memory, files, f"tcp://{host}:0"))
        ready = [node.start.remote() for node in self._nodes]
        try:
            return Access(",".join(ray.get(ready, timeout=timeout_s)), key)
        except RayError as error:
            ray.wait(ready, num_returns=len(ready), timeout=GRACE_S)  # each removes its keys
            raise ConnectError(f"a memory node did not start: {reason(error)}") from error

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
        """Call a function in every worker and wait for all; it may call ``smbox.connect()``.

        A worker is a task of Ray, whose process ends with it. It has SMBOX_RANK and the other
        variables of ``smbox run``. The ranks on one host are consecutive.

        Args:
            function: function that each worker calls.
            *args: its arguments, the same for all workers.
            workers: number of workers.
            resources: Ray resources of each, as above.
            strategy: Ray's placement strategy: "PACK", "SPREAD", "STRICT_PACK" or
                "STRICT_SPREAD".
            on_failure: action after a worker raises or is killed: "stop" ends all, "continue"
                lets the others finish, "restart" restarts it while the others continue.
            restarts: maximum number of restarts of each worker, with "restart".
            timeout_s: longest wait for Ray's resources, in seconds.

        Returns:
            The function's results, by rank; Ray's exception for a worker that failed.

        Raises:
            ConfigError: an argument is invalid, or Ray lacks the resources; nothing was
                started.
            PeerLostError: a memory node and its memory are lost; all workers were ended.
            WorkerLostError: with "stop": a worker failed; the error names its rank, and all
                workers were ended.
        """
        if on_failure not in FAILURES:
            raise ConfigError(f"on_failure is one of {', '.join(FAILURES)}", given=on_failure)
        if restarts < 0:
            raise ConfigError("restarts must be at least 0", restarts=restarts)
        places = Placement(resources, workers, strategy, timeout_s)
        again = restarts if on_failure == OnFailure.RESTART else 0
        job, is_fatal = (self.access, function, args), on_failure == OnFailure.STOP
        try:
            return lead(places, self._serving, job, again, is_fatal=is_fatal)
        finally:
            places.give_back()

    def close(self) -> None:
        """End all nodes and remove their memory; after ``ray.shutdown()`` it does nothing."""
        if not ray.is_initialized():  # else the calls below would start a new cluster
            return
        for node in self._nodes if self._serving else ():
            node.stop.remote()
        if self._serving:
            ray.wait(self._serving, num_returns=len(self._serving), timeout=GRACE_S)
        for node in self._nodes:
            ray.kill(node)
        self._places.give_back()

    def __exit__(self, *_: object) -> None:
        self.close()


class Placement:
    """Equal bundles of resources that Ray reserves on its hosts (a placement group).

    Args:
        resources: Ray resources of each.
        count: number of bundles.
        strategy: Ray's placement strategy.
        timeout_s: longest wait for Ray's resources, in seconds.

    Attributes:
        hosts: Ray's id of the host of each.
        addresses: IP address of the host of each.

    Raises:
        ConfigError: Ray is not connected, or lacks the resources; nothing is reserved.
    """

    def __init__(
        self, resources: Mapping[str, float], count: int, strategy: str, timeout_s: float
    ) -> None:
        if not ray.is_initialized() or count < 1:
            raise ConfigError("call ray.init() first, and request at least one", asked=count)
        self._resources = dict(resources)
        self._group = placement_group([self._resources] * count, strategy=strategy)
        with ExitStack() as undo:
            undo.callback(self.give_back)
            if not self._group.wait(timeout_s):
                free = ray.available_resources()
                raise ConfigError(
                    "Ray has no room: ask for less, wait for other jobs, or add hosts",
                    wanted=f"{count} x {self._resources}, {strategy}",
                    free={name: free.get(name, 0.0) for name in self._resources},
                    timeout_s=timeout_s,
                )
            chosen = placement_group_table(self._group)["bundles_to_node_id"]
            self.hosts: list[str] = [chosen[index] for index in range(count)]
            known = {host["NodeID"]: host["NodeManagerAddress"] for host in ray.nodes()}
            self.addresses: list[str] = [known[host] for host in self.hosts]
            undo.pop_all()

    def put(self, what: Any, index: int, **options: Any) -> Any:
        """Return a remote task or actor class that runs in one of the bundles."""
        more = dict(self._resources)
        return ray.remote(
            num_cpus=more.pop("CPU", 0),
            num_gpus=more.pop("GPU", 0),
            resources=more,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, index),
            **options,
        )(what)

    def give_back(self) -> None:
        """Release the bundles; Ray ends the tasks that still run in them."""
        remove_placement_group(self._group)


def lead(
    places: Placement, serving: list[Any], job: Sequence[Any], restarts: int, *, is_fatal: bool
) -> list[Any]:
    """Start a worker in each bundle, and wait for all; see ``MemoryNodes.run``.

    Args:
        places: bundles of the workers.
        serving: tasks that end with a memory node; one that ends raises PeerLostError.
        job: the first arguments of ``Access.call``.
        restarts: maximum number of restarts of each worker.
        is_fatal: raise WorkerLostError if a worker fails.
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
        variables = shared | place | {"WORKER_RESTART_COUNT": again[rank]}
        # max_calls: the process ends with the task, and so do its threads and boxes.
        task = places.put(Access.call, index, max_calls=1, max_retries=0)
        running[task.remote(*job, variables)] = rank

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
                message = f"rank {rank} failed: {reason(error)}; all workers are ended"
                raise WorkerLostError(message, rank=rank) from error
            result = error
            if again[rank] < restarts:
                again[rank] += 1
                start(rank)
        results[rank] = result
    return results


def reason(error: RayError) -> str:
    """Return the reason why a task or an actor failed, in one line."""
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {str(cause).partition(chr(10))[0]}"

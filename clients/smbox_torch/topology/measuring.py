"""Measurement of the links from all workers to all memory nodes, in disjoint rounds.

In each round, a worker measures at most one node and a node is measured by at most one worker:
worker w of W measures node (w + round) modulo max(W, N) of N. All workers put concurrently,
then all get, so a full-duplex link carries at most one measurement in each direction.

    NAME.topology.members       the workers of the run, see smbox.join
    NAME.topology.begin.L.R     barrier of restart R of launch L (its hash); never freed
    NAME.topology.links.WxN     f64[W, N, COLUMNS]: the measurements; never freed
    NAME.topology.probe         u8[...] on each node: put and got in measurements; then freed
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from smbox import Box, Member, MemberInfo, Region, join
from smbox.errors import ConnectError, RequestTimeoutError, SmboxError, WorkerLostError
from smbox.head import check_prefix
from smbox.member_record import hash_of
from smbox_torch.boxes import check_box
from smbox_torch.checks import seconds
from smbox_torch.topology.links import COLUMNS, HOST, IS_LOCAL, Links
from smbox_torch.world import World, world_or_default

__all__ = ["LINK_TIMEOUT_S", "PROBE_NBYTES", "boxes_of", "measure", "turns"]

PROBE_NBYTES: Final = 4 << 20
FIRST_NBYTES: Final = 256 << 10
"""Size of the first transfer, which warms up the connection; on a slow link the only one."""
SLOW_S: Final = 0.5
"""If the first transfer takes longer than this, the link needs no larger transfer."""
TAKES: Final = 2
PINGS: Final = 8
LINK_TIMEOUT_S: Final = 30.0
TIMEOUT_S: Final = 300.0


def boxes_of(box: Box) -> dict[int, Box]:
    """Return, for each memory node, a box on that node alone, by ascending node id."""
    found: dict[int, Box] = {}
    count = len(box.nodes)
    for number in itertools.count():  # hashing spreads names evenly over the nodes
        home = box.home_of(f"node {number}")
        found.setdefault(home.node.node_id, home)
        if len(found) == count:
            break
    return dict(sorted(found.items()))


def turns(rank: int, workers: int, nodes: int) -> list[int | None]:
    """Return the node that a worker measures in each round; None: it measures no node.

    No two workers measure the same node in one round, and each worker measures each node once.
    """
    rounds = max(workers, nodes)
    found = [(rank + turn) % rounds for turn in range(rounds)]
    return [node if node < nodes else None for node in found]


def measure(
    box: Box,
    name: str,
    *,
    world: World | None = None,
    timeout_s: float = TIMEOUT_S,
    link_timeout_s: float = LINK_TIMEOUT_S,
) -> Links:
    """Measure all links of a run; all workers must call it, and all get the same result.

    A worker that was restarted alone reads the earlier measurements: the others are training.

    Args:
        box: the memory. With a memory node on every host, any hosts can form a group.
        name: name of the run, the prefix of the regions.
        world: place of this process; None: from the launcher's variables.
        timeout_s: longest wait for the other workers, in seconds.
        link_timeout_s: seconds after which a node that does not answer is abandoned.

    Raises:
        TypeError, LimitError: the name is not valid; no region was created.
        ConnectError: a link cannot be measured; the error names both hosts. All workers that
            still reach the memory raise it.
        RequestTimeoutError: a worker did not join; the error names its rank.
        WorkerLostError: a worker died before it measured all its links; the error names its
            rank.
    """
    check_box(box)
    check_prefix(name)
    seconds("timeout_s", timeout_s)
    seconds("link_timeout_s", link_timeout_s)
    world = world_or_default(world)
    boxes = boxes_of(box)
    shape = (world.world_size, len(boxes), COLUMNS)
    region = f"{name}.topology.links.{shape[0]}x{shape[1]}"
    rows = box.create(region, shape, "float64", np.nan, exist_ok=True)
    if world.worker_restart and not np.isnan(kept := rows.get()).any():
        return Links.from_array(kept, tuple(boxes))
    with join(
        box,
        f"{name}.topology",
        rank=world.rank,
        expected=world.world_size,
        launch=world.start_id,
    ) as member:
        _gather(box, name, member, world, timeout_s)
        row = np.full((1, *shape[1:]), np.nan)
        rows[world.rank : world.rank + 1].put(row)  # replaces that of an earlier start
        error = _measure_all(world, boxes, name, member, row[0], timeout_s, link_timeout_s)
        rows[world.rank : world.rank + 1].put(row)
        member.meet(timeout_s=timeout_s)
        array = rows.get()
        view = member.read()
        members = [view.of(rank) for rank in range(world.world_size)]
        member.meet(timeout_s=timeout_s)
        _free(boxes, name, row[0])
    hosts = [each.host or "?" for each in members]
    _check_alive(array, members)
    _check(array, hosts, boxes, error)
    return Links.from_array(array, tuple(boxes), _names(array, hosts))


def _gather(box: Box, name: str, member: Member, world: World, timeout_s: float) -> None:
    """Wait until all workers have joined: a meeting does not wait for workers that left.

    Each launch and restart has its own barrier, because a worker that was killed in a barrier
    counts as arrived. Hosts may reach the memory by different addresses, unlike ``start_id``.
    """
    barrier = f"{name}.topology.begin.{hash_of(world.launch):x}.{world.restart}"
    try:
        box.home_of(f"{name}.topology").barrier(barrier, world.world_size, timeout_s=timeout_s)
    except RequestTimeoutError as error:
        alive = member.read().alive()
        absent = [rank for rank in range(world.world_size) if rank not in alive]
        raise RequestTimeoutError(
            f"rank {absent or '?'} did not come to measure its links: start all workers with"
            ' groups="auto"',
            **error.facts,
        ) from error


def _measure_all(
    world: World,
    boxes: Mapping[int, Box],
    name: str,
    member: Member,
    row: NDArray[np.float64],
    timeout_s: float,
    link_timeout_s: float,
) -> SmboxError | None:
    """Fill in this worker's row; return the first error."""
    error: SmboxError | None = None
    ids = list(boxes)
    for index in turns(world.rank, world.world_size, len(ids)):
        probe: _Probe | None = None
        member.meet(timeout_s=timeout_s)
        if index is not None:
            try:
                probe = _Probe(boxes[ids[index]], name, link_timeout_s)
                probe.time_put()
            except SmboxError as failed:
                probe, error = None, error or failed
        member.meet(timeout_s=timeout_s)
        if index is not None and probe is not None:
            try:
                row[index] = (*probe.time_get(), world.group_rank)
            except SmboxError as failed:
                error = error or failed
    return error


class _Probe:
    """One worker's measurement of one node.

    Args:
        box: a box on the node alone.
        name: name of the run.
        timeout_s: timeout of each transfer.
    """

    def __init__(self, box: Box, name: str, timeout_s: float) -> None:
        self._region: Region = box.create(
            f"{name}.topology.probe", PROBE_NBYTES, "uint8", exist_ok=True, timeout_s=timeout_s
        )
        self._timeout_s = timeout_s
        self._data = np.zeros(PROBE_NBYTES, np.uint8)
        one = np.zeros(1, np.uint8)
        self._latency_s = min(_timed(lambda: self._get(one)) for _ in range(PINGS))

    def time_put(self) -> None:
        """Measure the rate of puts."""
        self._put_rate = self._rate(self._put)

    def time_get(self) -> tuple[float, float, float, bool]:
        """Measure the rate of gets; return the fields of a Link."""
        get_rate = self._rate(self._get)
        return self._latency_s, self._put_rate, get_rate, self._region.is_local

    def _rate(self, transfer: Callable[[NDArray[np.uint8]], None]) -> float:
        first = self._data[:FIRST_NBYTES]
        first_s = _timed(lambda: transfer(first))
        if first_s > SLOW_S:
            return FIRST_NBYTES / max(first_s - self._latency_s, first_s / 2.0)
        best_s = min(_timed(lambda: transfer(self._data)) for _ in range(TAKES))
        return PROBE_NBYTES / max(best_s - self._latency_s, best_s / 2.0)

    def _put(self, data: NDArray[np.uint8]) -> None:
        self._region[: data.size].put(data, timeout_s=self._timeout_s)

    def _get(self, out: NDArray[np.uint8]) -> None:
        self._region[: out.size].get(out, timeout_s=self._timeout_s)


def _timed(work: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def _free(boxes: Mapping[int, Box], name: str, row: NDArray[np.float64]) -> None:
    """Free the probes on the nodes that have answered this worker; others would time out.

    All workers do it, because any of them may have died.
    """
    for box, link in zip(boxes.values(), row, strict=True):
        if not np.isnan(link).any():
            with suppress(SmboxError):
                box.free(f"{name}.topology.probe")


def _names(array: NDArray[np.float64], hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the name of each host; simulated hosts of one machine also get their number."""
    numbers = map(int, array[:, 0, HOST])
    by_number = dict(zip(numbers, hosts, strict=True))
    is_played = len(set(by_number.values())) < len(by_number)
    return tuple(
        f"{by_number.get(number, '?')}{f' ({number})' if is_played else ''}"
        for number in range(max(by_number) + 1)
    )


def _host_of(address: str) -> str:
    """Return the host of an address; for a path, the address itself."""
    scheme, _, rest = address.partition("://")
    return rest.rpartition(":")[0] if scheme == "tcp" else address


def _check_alive(array: NDArray[np.float64], members: Sequence[MemberInfo]) -> None:
    """Raise if a worker died before it had measured all its links; the others raise it too."""
    for each in members:
        if not each.alive and np.isnan(array[each.rank]).any():
            raise WorkerLostError(
                f"rank {each.rank} died while links were measured: start all workers again",
                rank=each.rank,
                host=each.host,
                pid=each.pid,
            )


def _check(
    array: NDArray[np.float64],
    hosts: Sequence[str],
    boxes: Mapping[int, Box],
    error: SmboxError | None,
) -> None:
    """Raise if a link is missing; all workers report the same link, the first."""
    missing = np.argwhere(np.isnan(array).any(axis=2))
    if not len(missing):
        return
    rank, index = (int(each) for each in missing[0])
    node_id, box = list(boxes.items())[index]
    near = np.flatnonzero(array[:, index, IS_LOCAL] == 1.0)
    there = hosts[int(near[0])] if len(near) else _host_of(box.address)
    raise ConnectError(
        f"the link from rank {rank} on host {hosts[rank]} to memory node {node_id} on host"
        f" {there} cannot be measured: check that the first host reaches {box.address} and that"
        " the node runs there, then start all workers again; or give groups= a number",
        rank=rank,
        host=hosts[rank],
        node=node_id,
        node_host=there,
        node_address=box.address,
        missing=len(missing),
    ) from error

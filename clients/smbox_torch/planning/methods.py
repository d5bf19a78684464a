"""The data that each training method moves in an iteration, phase by phase. Pure.

S bytes of parameters in float32, W workers, N memory nodes; all links are equal, full duplex.
Bytes are those of the busiest worker and the busiest node, which determine the end of a phase.

    method          phases of an iteration
    server-sync     compute; push: S to the node from each worker, and S more from rank 0, which
                    clears the next sum; pull: S from the node to each worker
    server-async    compute; push and fetch in one operation: S each way for each worker
    ring            compute; 2 (W - 1) / W S from each worker to the next
    ddp             forward; backward, with 2 (W - 1) / W S as in ring at the same time
    hybrid          compute; every period: S each way for each of W / per_host groups
    easgd           compute; every period: S each way for each worker
    easgd-striped   as easgd, with the bytes spread over N nodes

Ring: Patarasuk and Yuan, 2009. Server: Li et al., OSDI 2014. Elastic averaging: Zhang et al.,
NIPS 2015. The classes of this package send these bytes, see docs/planner.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Final

__all__ = ["METHODS", "Phase", "Setup"]

BACKWARD: Final = 2 / 3
"""Share of the backward pass in the compute time: two products for each in the forward pass."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The parameters that determine the bytes of an iteration.

    Attributes:
        workers: W.
        nbytes: S, bytes of all parameters in float32.
        compute_s: seconds of the forward and backward pass of one worker's batch.
        period: iterations between two elastic exchanges.
        nodes: N, number of memory nodes over which easgd-striped spreads its center.
        per_host: number of workers on a host, for hybrid.
    """

    workers: int
    nbytes: float
    compute_s: float
    period: int = 10
    nodes: int = 2
    per_host: int = 2


@dataclass(frozen=True, slots=True)
class Phase:
    """Work that is done concurrently; the phases of an iteration follow one another.

    Attributes:
        compute_s: seconds of computation of each worker.
        worker_out: bytes that the busiest worker's host sends.
        worker_in: bytes that it receives.
        node_out: bytes that the busiest memory node sends.
        node_in: bytes that it receives.
        messages: number of sequential messages, each with the latency of a link.
    """

    compute_s: float = 0.0
    worker_out: float = 0.0
    worker_in: float = 0.0
    node_out: float = 0.0
    node_in: float = 0.0
    messages: float = 0.0


def server_sync(setup: Setup) -> list[Phase]:
    """Return the phases of ParameterServer: push, meet, pull."""
    every, nbytes = setup.workers * setup.nbytes, setup.nbytes
    return [
        Phase(compute_s=setup.compute_s),
        # Round trips of two verbs, of the two of a meeting, and of one more verb of rank 0.
        Phase(worker_out=2 * nbytes, node_in=every + nbytes, messages=10),
        Phase(worker_in=nbytes, node_out=every, messages=4),
    ]


def server_async(setup: Setup) -> list[Phase]:
    """Return the phases of Downpour with n_push = n_fetch = 1: an exchange each iteration."""
    return [Phase(compute_s=setup.compute_s), _exchange(setup, setup.workers, nodes=1)]


def ring(setup: Setup) -> list[Phase]:
    """Return the phases of RingAllReduce, whose sum begins after the backward pass."""
    # The table of flags is summed first.
    return [Phase(compute_s=setup.compute_s), _around(setup, turns=2)]


def ddp(setup: Setup) -> list[Phase]:
    """Return the phases of DistributedDataParallel, which overlaps sum and backward pass."""
    backward_s = BACKWARD * setup.compute_s
    return [
        Phase(compute_s=(1 - BACKWARD) * setup.compute_s),
        replace(_around(setup, turns=1), compute_s=backward_s),
    ]


def hybrid(setup: Setup) -> list[Phase]:
    """Return the phases of HybridSGD: the roots of the groups exchange once per period."""
    groups = -(-setup.workers // setup.per_host)
    return _periodic(setup, _exchange(setup, groups, nodes=1))


def easgd(setup: Setup) -> list[Phase]:
    """Return the phases of EASGD: all workers exchange once per period."""
    return _periodic(setup, _exchange(setup, setup.workers, nodes=1))


def easgd_striped(setup: Setup) -> list[Phase]:
    """Return the phases of EASGD with a center that is striped over several nodes."""
    return _periodic(setup, _exchange(setup, setup.workers, nodes=setup.nodes))


def _exchange(setup: Setup, clients: int, *, nodes: int) -> Phase:
    """Return the phase in which all clients send S and receive S concurrently."""
    nbytes, at_node = setup.nbytes, clients * setup.nbytes / nodes
    return Phase(
        worker_out=nbytes, worker_in=nbytes, node_out=at_node, node_in=at_node, messages=2
    )


def _around(setup: Setup, *, turns: int) -> Phase:
    """Return the phase in which a sum travels around a ring."""
    hops = 2 * (setup.workers - 1)
    sent = hops / setup.workers * setup.nbytes
    return Phase(worker_out=sent, worker_in=sent, messages=turns * hops)


def _periodic(setup: Setup, phase: Phase) -> list[Phase]:
    """Return compute, and 1 / period of a phase that runs once per period."""
    share = 1 / setup.period
    part = Phase(*(share * number for number in astuple(phase)))
    return [Phase(compute_s=setup.compute_s), part]


METHODS: Final[Mapping[str, Callable[[Setup], Sequence[Phase]]]] = {
    "server-sync": server_sync,
    "server-async": server_async,
    "ring": ring,
    "ddp": ddp,
    "hybrid": hybrid,
    "easgd": easgd,
    "easgd-striped": easgd_striped,
}
"""Each training method by its name in files."""

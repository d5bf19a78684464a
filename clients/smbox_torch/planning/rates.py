"""Images per second of a training method, and the resource that limits them. Pure.

A phase lasts as long as its busiest resource, and the messages in it that wait for one another
one latency each:

    phase      = max(compute, worker's bytes / B, node's bytes / B, node's bytes both ways / R)
                 + messages * latency
    iteration  = sum of the phases
    images/s   = batch * workers / iteration

B bytes a second of payload through a link, each way; R bytes a second through a memory node's
processor. The resource that saturates is that with the largest sum of seconds over the phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from smbox_torch.planning.ways import WAYS, Phase, Setup

__all__ = ["PAYLOAD", "Prediction", "Rates", "Resource", "predict"]

PAYLOAD: Final = 1448 / 1514
"""Share of payload in full TCP segments over Ethernet, headers included in the link's rate."""


class Resource(StrEnum):
    """What an iteration can wait for."""

    COMPUTE = "compute"
    WORKER_LINK = "link of a worker"
    NODE_LINK = "link of a node"
    NODE_PROCESSOR = "processor of a node"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True)
class Rates:
    """What links and memory nodes can do.

    Attributes:
        link_mbit: of every host's link, each way, in 10^6 bit/s with Ethernet headers.
        latency_s: of a message from host to host.
        node_gbytes: that a memory node's processor moves, both ways together, in 10^9 bytes/s.
    """

    link_mbit: float
    latency_s: float
    node_gbytes: float

    @property
    def payload(self) -> float:
        """Bytes of payload that a link carries each way in a second."""
        return self.link_mbit * 1e6 / 8 * PAYLOAD


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one way and number of workers.

    Attributes:
        way: its name.
        workers: number of them.
        images_per_s: of all workers.
        speed_up: against one worker that exchanges nothing.
        utilisation: share of an iteration in which a worker computes.
        iteration_s: seconds of an iteration, means over a period.
        saturates: resource that takes the most of an iteration.
        worker_out: bytes that the busiest worker's host sends in an iteration.
        worker_in: bytes that it receives.
        node_out: bytes that the busiest memory node sends.
        node_in: bytes that it receives.
    """

    way: str
    workers: int
    images_per_s: float
    speed_up: float
    utilisation: float
    iteration_s: float
    saturates: Resource
    worker_out: float
    worker_in: float
    node_out: float
    node_in: float


def predict(way: str, setup: Setup, rates: Rates, *, batch: int) -> Prediction:
    """Predict one way of training.

    Args:
        way: key of WAYS.
        setup: model, workers and periods.
        rates: of links and nodes.
        batch: images of one worker's iteration.
    """
    phases = WAYS[way](setup)
    iteration_s = sum(_lasts_s(phase, rates) for phase in phases)
    return Prediction(
        way=way,
        workers=setup.workers,
        images_per_s=batch * setup.workers / iteration_s,
        speed_up=setup.workers * setup.compute_s / iteration_s,
        utilisation=setup.compute_s / iteration_s,
        iteration_s=iteration_s,
        saturates=_busiest(phases, rates),
        worker_out=sum(phase.worker_out for phase in phases),
        worker_in=sum(phase.worker_in for phase in phases),
        node_out=sum(phase.node_out for phase in phases),
        node_in=sum(phase.node_in for phase in phases),
    )


def _lasts_s(phase: Phase, rates: Rates) -> float:
    """Return the seconds of a phase."""
    taken = _seconds(phase, rates)
    latency_s = taken.pop(Resource.LATENCY)
    return max(taken.values()) + latency_s


def _busiest(phases: Sequence[Phase], rates: Rates) -> Resource:
    taken = [_seconds(phase, rates) for phase in phases]
    return max(Resource, key=lambda resource: sum(each[resource] for each in taken))


def _seconds(phase: Phase, rates: Rates) -> dict[Resource, float]:
    """Return how long each resource needs for a phase by itself."""
    payload = rates.payload
    return {
        Resource.COMPUTE: phase.compute_s,
        Resource.WORKER_LINK: max(phase.worker_out, phase.worker_in) / payload,
        Resource.NODE_LINK: max(phase.node_out, phase.node_in) / payload,
        Resource.NODE_PROCESSOR: (phase.node_out + phase.node_in) / (rates.node_gbytes * 1e9),
        Resource.LATENCY: phase.messages * rates.latency_s,
    }

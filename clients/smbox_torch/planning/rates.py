"""Images per second of a training method, and the resource that limits them. Pure.

A phase lasts as long as its busiest resource, plus one latency for each sequential message:

    phase      = max(compute, worker's bytes / B, node's bytes / B, node's bytes both ways / R)
                 + messages * latency
    iteration  = sum of the phases
    images/s   = batch * workers / iteration

A link carries B bytes of payload per second each way. A memory node's processor moves R bytes
per second. The saturated resource has the largest sum of seconds over the phases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from smbox_torch.planning.methods import METHODS, Phase, Setup

__all__ = ["PAYLOAD", "Prediction", "Rates", "Resource", "predict"]

PAYLOAD: Final = 1448 / 1514
"""Share of payload in full TCP segments over Ethernet; the link's rate includes headers."""


class Resource(StrEnum):
    """A resource that can limit an iteration."""

    COMPUTE = "compute"
    WORKER_LINK = "link of a worker"
    NODE_LINK = "link of a node"
    NODE_PROCESSOR = "processor of a node"
    LATENCY = "latency"


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of links and memory nodes.

    Attributes:
        link_mbit: rate of every host's link, each way, in 10^6 bit/s with Ethernet headers.
        latency_s: latency of a message between two hosts.
        node_gbytes: rate of a memory node's processor, both directions together, in
            10^9 bytes/s.
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
    """The prediction for one training method and number of workers.

    Attributes:
        method: name of the method.
        workers: number of workers.
        images_per_s: images per second of all workers.
        speed_up: relative to one worker that exchanges nothing.
        utilisation: share of an iteration in which a worker computes.
        iteration_s: seconds of an iteration, averaged over a period.
        saturates: resource that is busy for the largest part of an iteration.
        worker_out: bytes that the busiest worker's host sends in an iteration.
        worker_in: bytes that it receives.
        node_out: bytes that the busiest memory node sends.
        node_in: bytes that it receives.
    """

    method: str
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


def predict(method: str, setup: Setup, rates: Rates, *, batch: int) -> Prediction:
    """Predict one training method.

    Args:
        method: key of METHODS.
        setup: model, workers and periods.
        rates: rates of links and nodes.
        batch: images of one worker's iteration.
    """
    phases = METHODS[method](setup)
    taken = [_seconds(phase, rates) for phase in phases]
    iteration_s = sum(map(_lasts_s, taken))
    return Prediction(
        method=method,
        workers=setup.workers,
        images_per_s=batch * setup.workers / iteration_s,
        speed_up=setup.workers * setup.compute_s / iteration_s,
        utilisation=setup.compute_s / iteration_s,
        iteration_s=iteration_s,
        saturates=max(Resource, key=lambda resource: sum(each[resource] for each in taken)),
        worker_out=sum(phase.worker_out for phase in phases),
        worker_in=sum(phase.worker_in for phase in phases),
        node_out=sum(phase.node_out for phase in phases),
        node_in=sum(phase.node_in for phase in phases),
    )


def _lasts_s(taken: Mapping[Resource, float]) -> float:
    """Return the seconds of a phase: latency, and the busiest of the other resources."""
    busy = [seconds for resource, seconds in taken.items() if resource != Resource.LATENCY]
    return max(busy) + taken[Resource.LATENCY]


def _seconds(phase: Phase, rates: Rates) -> dict[Resource, float]:
    """Return the seconds that each resource alone needs for a phase."""
    payload = rates.payload
    return {
        Resource.COMPUTE: phase.compute_s,
        Resource.WORKER_LINK: max(phase.worker_out, phase.worker_in) / payload,
        Resource.NODE_LINK: max(phase.node_out, phase.node_in) / payload,
        Resource.NODE_PROCESSOR: (phase.node_out + phase.node_in) / (rates.node_gbytes * 1e9),
        Resource.LATENCY: phase.messages * rates.latency_s,
    }

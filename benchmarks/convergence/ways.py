"""The ways of training that are compared, each with the learning rate that it was tuned to.

All have the same network, data, momentum and samples. The learning rate rises over the first
twentieth of a run and falls linearly to zero, which lets workers and center come together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from smbox.box import Box
from smbox_torch.downpour import Downpour
from smbox_torch.eamsgd import EAMSGD
from smbox_torch.easgd import EASGD
from smbox_torch.hogwild import Hogwild
from smbox_torch.hybrid import HybridSGD
from smbox_torch.seasgd import SEASGD
from smbox_torch.ssp import SSP
from smbox_torch.sync_group import SyncGroup
from smbox_torch.wrapper import BoxOptimizer

MOMENTUM = 0.9
WARM_UP = 0.05
NAME = "run"


@dataclass(frozen=True)
class Way:
    """One way of training.

    Attributes:
        name: short, of files and command lines.
        title: for tables.
        kind: key of KINDS.
        lr: highest learning rate.
        workers: in all.
        nodes: that the workers are spread over; more than one means tcp.
        batch: pictures of one worker's step.
        part: of the samples of the other ways, where fewer are enough.
        options: arguments of the optimizer wrapper.
    """

    name: str
    title: str
    kind: str
    lr: float
    workers: int = 4
    nodes: int = 1
    batch: int = 8
    part: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)

    def steps(self, pictures: int, epochs: float) -> int:
        """Return the steps of each worker, so that all together see every picture so often."""
        return max(1, round(epochs * pictures * self.part / (self.workers * self.batch)))


_RATE = 0.5
"""Moving rate of exchanges every 10 steps and more; 0.9 / 4 and 0.9 did worse in short runs."""

_HYBRID_RATE = 0.7
"""The same for two groups."""

_CROWD: dict[str, Any] = {
    "workers": 16,
    "nodes": 16,
    "part": 0.25,
    "options": {"period": 1, "moving_rate": 0.2},
}
"""Over tcp, as ShmCaffe's workers: read and add lie further apart than in mapped memory."""


def _elastic(kind: str, lr: float, **options: Any) -> list[Way]:
    """EASGD or EAMSGD at three periods."""
    return [
        Way(
            f"{kind}-{period}",
            f"{kind.upper()} x 4, period {period}",
            kind,
            lr,
            options=options | {"period": period, "moving_rate": rate},
        )
        for period, rate in ((1, None), (10, _RATE), (64, _RATE))
    ]


def _downpour(lr: float) -> list[Way]:
    """Downpour at three periods."""
    return [
        Way(
            f"downpour-{period}",
            f"Downpour x 4, period {period}",
            "downpour",
            lr,
            options={"n_push": period, "n_fetch": period},
        )
        for period in (1, 10, 64)
    ]


WAYS = {
    way.name: way
    for way in (
        Way("one", "one process", "one", 0.02, workers=1, batch=32),
        Way("sync", "SyncGroup x 4", "sync", 0.02),
        Way("ddp", "DDP, gloo x 4", "ddp", 0.02),
        *_elastic("easgd", 0.02),
        Way(
            "easgd-10-overlap",
            "EASGD x 4, period 10, overlapped",
            "easgd",
            0.02,
            options={"period": 10, "moving_rate": _RATE, "overlap": True},
        ),
        *_elastic("eamsgd", 0.02, momentum=MOMENTUM),
        *_downpour(0.005),
        Way("ssp", "SSP x 4, staleness 3", "ssp", 0.005, options={"staleness": 3}),
        Way("hogwild", "Hogwild x 4", "hogwild", 0.005),
        Way(
            "hybrid",
            "HybridSGD 2 x 2, period 10",
            "hybrid",
            0.02,
            nodes=2,
            options={"period": 10, "moving_rate": _HYBRID_RATE},
        ),
        Way(
            "hybrid-overlap",
            "HybridSGD 2 x 2, period 10, overlapped",
            "hybrid",
            0.02,
            nodes=2,
            options={"period": 10, "moving_rate": _HYBRID_RATE, "overlap": True},
        ),
        Way("seasgd-16", "SEASGD x 16, rate 0.2, tcp", "seasgd", 0.02, **_CROWD),
        Way("easgd-16", "EASGD x 16, rate 0.2, tcp", "easgd", 0.02, **_CROWD),
    )
}


@dataclass
class Trainer:
    """What a worker trains with.

    Attributes:
        forward: the model, perhaps wrapped.
        optimizer: steps and exchanges.
        settle: finish what is under way, before all workers meet at the end.
        center: copy what is judged into the model; called by rank 0 after all have settled.
        close: let go of the rest.
    """

    forward: nn.Module
    optimizer: torch.optim.Optimizer
    settle: Callable[[], None] = lambda: None
    center: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None


def schedule(lr: float, done: float) -> float:
    """Return the learning rate when this share of the steps is done."""
    return lr * min(1.0, done / WARM_UP) * min(1.0, (1.0 - done) / (1.0 - WARM_UP))


def _one(way: Way, model: nn.Module, box: Box) -> Trainer:  # noqa: ARG001 - as the others
    return Trainer(model, _sgd(way, model))


def _sync(way: Way, model: nn.Module, box: Box) -> Trainer:  # noqa: ARG001 - no node needed
    optimizer = SyncGroup(_sgd(way, model), model)
    return Trainer(model, optimizer, close=optimizer.close)


def _ddp(way: Way, model: nn.Module, box: Box) -> Trainer:  # noqa: ARG001 - no node needed
    torch.distributed.init_process_group("gloo")
    forward = nn.parallel.DistributedDataParallel(model)
    close = torch.distributed.destroy_process_group
    return Trainer(forward, _sgd(way, model), close=close)


def _hogwild(way: Way, model: nn.Module, box: Box) -> Trainer:
    optimizer = Hogwild(_sgd(way, model), box, NAME, **way.options)
    return Trainer(model, optimizer, close=optimizer.close)


def _hybrid(way: Way, model: nn.Module, box: Box) -> Trainer:
    optimizer = HybridSGD(_sgd(way, model), box, NAME, model=model, **way.options)
    return Trainer(
        model, optimizer, optimizer.close, center=lambda: optimizer.center_into(model)
    )


def _boxed(
    wrapper: Callable[..., BoxOptimizer], momentum: float = MOMENTUM
) -> Callable[[Way, nn.Module, Box], Trainer]:
    def build(way: Way, model: nn.Module, box: Box) -> Trainer:
        optimizer = wrapper(_sgd(way, model, momentum), box, NAME, **way.options)
        return Trainer(
            model, optimizer, optimizer.close, center=lambda: optimizer.center_into(model)
        )

    return build


KINDS: dict[str, Callable[[Way, nn.Module, Box], Trainer]] = {
    "one": _one,
    "sync": _sync,
    "ddp": _ddp,
    "easgd": _boxed(EASGD),
    "eamsgd": _boxed(EAMSGD, momentum=0.0),  # its momentum is its own
    "seasgd": _boxed(SEASGD),
    "downpour": _boxed(Downpour),
    "ssp": _boxed(SSP),
    "hogwild": _hogwild,
    "hybrid": _hybrid,
}


def _sgd(way: Way, model: nn.Module, momentum: float = MOMENTUM) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=way.lr, momentum=momentum)

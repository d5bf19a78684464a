"""How each algorithm of the comparison is built, and what of it is judged."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from parts import Scope
from rows import Row
from torch import nn

import smbox
import smbox_torch
from smbox_torch.optimizer.moving_rate import FUSED_MOVING_RATE, unfused_moving_rate

NAME = "run"
WARM_UP = 0.05
"""Share of a run in which the learning rate rises."""
UNFUSED = {"seasgd", "easgd_sync"}
"""Algorithms that read first and add later: their default moving rate is another."""


@dataclass
class Trainer:
    """What a worker trains with.

    Attributes:
        forward: the model, perhaps wrapped.
        optimizer: steps and exchanges.
        shared_into: copies what is judged into another model: the center, or the common model.
        settle: finishes what is under way, before the workers meet at the end.
        close: lets go of the rest.
    """

    forward: nn.Module
    optimizer: Any
    shared_into: Callable[[nn.Module], None]
    settle: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None


Build = Callable[[Row, nn.Module, smbox.Box], Trainer]


@dataclass(frozen=True)
class Kind:
    """An algorithm of the comparison.

    Attributes:
        build: makes a worker's trainer.
        algorithm: the class of smbox_torch; None: torch's own.
        pace: who waits for a slow worker.
        fate: who cannot step without one worker.
        ms_per_sample: wall time of four workers on two cores, for estimates: measured with
            400,000 samples of the network of three convolutions.
    """

    build: Build
    algorithm: type | None = None
    pace: Scope = "worker"
    fate: Scope = "worker"
    ms_per_sample: float = 0.28

    def default(self, option: str) -> Any:
        """Return the default of an argument of the class; None if it has no such argument."""
        if self.algorithm is None:
            return None
        argument = inspect.signature(self.algorithm).parameters.get(option)
        return None if argument is None else argument.default

    def takes(self, option: str) -> bool:
        """Tell whether the class has such an argument."""
        return (
            self.algorithm is not None
            and option in inspect.signature(self.algorithm).parameters
        )


def schedule(lr: float, done: float) -> float:
    """Return the learning rate when this share of the run is done.

    It rises over the first WARM_UP of the run and falls linearly to zero, which lets workers
    and center come together.
    """
    return lr * min(1.0, done / WARM_UP) * max(0.0, min(1.0, (1.0 - done) / (1.0 - WARM_UP)))


def period_of(row: Row) -> int | None:
    """Return the steps between two exchanges; None where nothing is exchanged in steps."""
    if row.workers == 1 or row.kind in {"hogwild", "hogwild_pp", "dogwild"}:
        return None
    for option in ("period", "n_push"):
        if KINDS[row.kind].takes(option):
            return int(row.options.get(option, KINDS[row.kind].default(option)))
    return 1


def moving_rate_of(row: Row) -> float | None:
    """Return the moving rate, given or by default; None of other algorithms."""
    if not KINDS[row.kind].takes("moving_rate"):
        return None
    members = row.nodes if row.kind == "hybrid" else row.workers
    given = row.options.get("moving_rate")
    if given is not None:
        return float(given)
    return unfused_moving_rate(members) if row.kind in UNFUSED else FUSED_MOVING_RATE


def own_momentum_of(row: Row) -> float | None:
    """Return the momentum of the algorithm itself; None where it has none."""
    if not KINDS[row.kind].takes("momentum"):
        return None
    return float(row.options.get("momentum", KINDS[row.kind].default("momentum")))


def _sgd(row: Row, model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=row.lr, momentum=row.momentum)


def _copying(model: nn.Module) -> Callable[[nn.Module], None]:
    """Return how the worker's own model is copied: it is what the workers have in common."""

    def copy(target: nn.Module) -> None:
        target.load_state_dict(model.state_dict())

    return copy


# The argument `box` of algorithms that need no node is there because all are built alike.


def _one(row: Row, model: nn.Module, _box: smbox.Box) -> Trainer:
    return Trainer(model, _sgd(row, model), _copying(model))


def _ddp(row: Row, model: nn.Module, _box: smbox.Box) -> Trainer:
    torch.distributed.init_process_group("gloo")
    forward = nn.parallel.DistributedDataParallel(model)
    close = torch.distributed.destroy_process_group
    return Trainer(forward, _sgd(row, model), _copying(model), close=close)


def _sync(row: Row, model: nn.Module, _box: smbox.Box) -> Trainer:
    optimizer = smbox_torch.SyncGroup(_sgd(row, model), model, **row.options)
    return Trainer(model, optimizer, _copying(model), close=optimizer.close)


def _ring(row: Row, model: nn.Module, _box: smbox.Box) -> Trainer:
    optimizer = smbox_torch.RingAllReduce(_sgd(row, model), **row.options)
    return Trainer(model, optimizer, _copying(model), close=optimizer.close)


def _hogwild(row: Row, model: nn.Module, box: smbox.Box) -> Trainer:
    optimizer = smbox_torch.Hogwild(_sgd(row, model), box, NAME, **row.options)
    return Trainer(model, optimizer, _copying(model), close=optimizer.close)


def _hogwild_pp(row: Row, model: nn.Module, box: smbox.Box) -> Trainer:
    optimizer = smbox_torch.HogwildPP(_sgd(row, model), box, NAME, **row.options)
    return Trainer(model, optimizer, optimizer.center_into, close=optimizer.close)


def _dogwild(row: Row, model: nn.Module, box: smbox.Box) -> Trainer:
    optimizer = smbox_torch.Dogwild(_sgd(row, model), box, NAME, **row.options)
    return Trainer(model, optimizer, _copying(model), optimizer.close)  # rank 0 is the master


def own_options(row: Row) -> dict[str, Any]:
    """Return the options of this worker: ``{rank}`` in a text is its rank."""
    rank = os.environ["RANK"]
    return {
        name: each.format(rank=rank) if isinstance(each, str) else each
        for name, each in row.options.items()
    }


def _boxed(algorithm: Any) -> Build:
    """Return how an algorithm with a center is built."""

    def build(row: Row, model: nn.Module, box: smbox.Box) -> Trainer:
        optimizer = algorithm(_sgd(row, model), box, NAME, model=model, **own_options(row))
        return Trainer(model, optimizer, optimizer.center_into, optimizer.close)

    return build


def _kind(algorithm: Any, **more: Any) -> Kind:
    return Kind(_boxed(algorithm), algorithm, **more)


KINDS: dict[str, Kind] = {
    "one": Kind(_one, ms_per_sample=0.25),
    "ddp": Kind(_ddp, pace="all", fate="all", ms_per_sample=0.64),
    "sync": Kind(_sync, smbox_torch.SyncGroup, pace="all", fate="all", ms_per_sample=0.40),
    "ring": Kind(_ring, smbox_torch.RingAllReduce, pace="all", fate="all", ms_per_sample=0.60),
    "server": _kind(smbox_torch.ParameterServer, pace="all", fate="all", ms_per_sample=0.50),
    "easgd": _kind(smbox_torch.EASGD),
    "eamsgd": _kind(smbox_torch.EAMSGD, ms_per_sample=0.30),
    "seasgd": _kind(smbox_torch.SEASGD, ms_per_sample=0.35),
    "easgd_sync": _kind(smbox_torch.SyncEASGD, pace="all", fate="all", ms_per_sample=0.30),
    "downpour": _kind(smbox_torch.Downpour),
    "adownpour": _kind(smbox_torch.ADownpour, ms_per_sample=0.35),
    "mvadownpour": _kind(smbox_torch.MVADownpour, ms_per_sample=0.35),
    "mdownpour": _kind(smbox_torch.MDownpour, ms_per_sample=0.35),
    "server_downpour": _kind(smbox_torch.ServerDownpour, ms_per_sample=0.35),
    "ssp": _kind(smbox_torch.SSP, pace="all", ms_per_sample=0.34),
    "hogwild": Kind(_hogwild, smbox_torch.Hogwild),
    "hogwild_pp": Kind(_hogwild_pp, smbox_torch.HogwildPP),
    "dogwild": Kind(_dogwild, smbox_torch.Dogwild),
    "hybrid": _kind(smbox_torch.HybridSGD, pace="node", fate="node", ms_per_sample=0.46),
}

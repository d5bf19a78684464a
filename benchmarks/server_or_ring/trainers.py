"""The ways of training: what wraps the optimizer, or the model, in a worker."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

import smbox
from server_or_ring.rows import Row
from smbox_torch.averaging.parameter_server import ParameterServer
from smbox_torch.averaging.ring_all_reduce import RingAllReduce
from smbox_torch.downpour.downpour import Downpour
from smbox_torch.elastic.easgd import EASGD
from smbox_torch.hybrid.hybrid import HybridSGD

NAME = "run"
LR = 1e-4
TIMEOUT_S = 600.0
BUCKET_MB = 25.0
"""DDP's default; scaled with the model, so that there are as many buckets."""

Model = Callable[[], torch.Tensor]


def striped(box: smbox.Box) -> smbox.Box:
    """Let a box create the center of parameters over all its nodes, and return it."""
    single = box.create

    def create(name: str, *words: Any, **named: Any) -> smbox.Region:
        layout = "striped" if name == f"{NAME}.float32" else "single"
        return single(name, *words, layout=layout, **named)

    box.create = create  # the classes of smbox_torch have no such option
    return box


def make(
    row: Row, model: torch.nn.Module, box: smbox.Box
) -> tuple[Model, torch.optim.Optimizer]:
    """Return the model to call and the optimizer to step with.

    Args:
        row: says the way.
        model: whose parameters are trained.
        box: the memory.
    """
    sgd = torch.optim.SGD(model.parameters(), lr=LR)
    match row.way:
        case "server-sync":
            return model, ParameterServer(sgd, box, NAME, timeout_s=TIMEOUT_S)
        case "server-async":
            return model, Downpour(sgd, box, NAME)
        case "ring":
            return model, RingAllReduce(sgd)
        case "ddp":
            os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
            distributed.init_process_group("gloo")
            bucket = BUCKET_MB / row.scale
            return torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket), sgd
        case "hybrid":
            return model, HybridSGD(sgd, box, NAME, period=row.period, timeout_s=TIMEOUT_S)
        case "easgd":
            return model, EASGD(sgd, box, NAME, period=row.period)
        case "easgd-striped":
            return model, EASGD(sgd, striped(box), NAME, period=row.period)
    raise ValueError(row.way)

"""Optimizers of all algorithms on the ill-conditioned quadratic, and boxes on a shared node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import smbox
from smbox.testing.quadratic import LR, Descent, start
from smbox_torch.averaging.parameter_server import ParameterServer
from smbox_torch.downpour.adownpour import ADownpour
from smbox_torch.downpour.downpour import Downpour
from smbox_torch.downpour.mdownpour import MDownpour
from smbox_torch.downpour.mvadownpour import MVADownpour
from smbox_torch.downpour.server_downpour import ServerDownpour
from smbox_torch.downpour.ssp import SSP
from smbox_torch.elastic.eamsgd import EAMSGD
from smbox_torch.elastic.easgd import EASGD
from smbox_torch.elastic.easgd_sync import SyncEASGD
from smbox_torch.elastic.seasgd import SEASGD
from smbox_torch.hogwild.dogwild import Dogwild

WAIT_S = 60.0


class Algorithm(NamedTuple):
    """An optimizer's class, and settings under which nine steps are pending, if any can be."""

    make: type
    settings: dict[str, Any]
    waits_in_steps: bool = False


LAZY = {
    "EASGD": Algorithm(EASGD, {"period": 10}),
    "EASGD overlapped": Algorithm(EASGD, {"period": 10, "overlap": True}),
    "EAMSGD": Algorithm(EAMSGD, {"period": 10, "momentum": 0.5}),
    "EAMSGD overlapped": Algorithm(EAMSGD, {"period": 10, "momentum": 0.5, "overlap": True}),
    "SEASGD": Algorithm(SEASGD, {"period": 10}),
    "SyncEASGD": Algorithm(SyncEASGD, {"period": 10}, waits_in_steps=True),
    "Downpour": Algorithm(Downpour, {"n_push": 20, "n_fetch": 20}),
    "ServerDownpour": Algorithm(ServerDownpour, {"n_push": 20, "n_fetch": 20}),
    "ADownpour": Algorithm(ADownpour, {"period": 20}),
    "MVADownpour": Algorithm(MVADownpour, {"period": 20, "rate": 0.5}),
    "SSP": Algorithm(SSP, {"period": 20}),
}
"""Algorithms that do not share every step."""

EAGER = {
    "MDownpour": Algorithm(MDownpour, {}),
    "ParameterServer": Algorithm(ParameterServer, {}, waits_in_steps=True),
    "Dogwild": Algorithm(Dogwild, {}),
}
ALL = LAZY | EAGER


@pytest.fixture(params=LAZY)
def lazy(request: pytest.FixtureRequest) -> Algorithm:
    """Each algorithm that does not share every step."""
    return LAZY[request.param]


@pytest.fixture(params=ALL)
def algorithm(request: pytest.FixtureRequest) -> Algorithm:
    """Each algorithm."""
    return ALL[request.param]


@pytest.fixture
def own_box(node: smbox.Box) -> Iterator[smbox.Box]:
    """A box of this test on the node of its file (which is marked ``shares``)."""
    with smbox.connect(node.address, timeout_s=WAIT_S) as box:
        yield box


@pytest.fixture
def worker(run: str) -> Callable[..., Descent]:
    """``worker(box, kind, number, ...)``: one worker of this test's run; it announces one."""

    def make(box: Any, kind: type = EASGD, number: int = 0, **settings: Any) -> Descent:
        x = torch.nn.Parameter(torch.from_numpy(start()))
        settings = {"workers": 1} | settings
        return Descent(number, x, kind(torch.optim.SGD([x], lr=LR), box, run, **settings))

    return make


@pytest.fixture
def center(run: str) -> Callable[[Any], np.ndarray]:
    """``center(box)``: the center of this test's run."""
    return lambda box: box.attach(f"{run}.float32").get()

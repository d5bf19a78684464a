"""Tests that the algorithms give the same bits on a memory node as on the model memory."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import smbox
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import HALF, LR, Descent, gradient, start
from smbox_torch import (
    EAMSGD,
    EASGD,
    SEASGD,
    SSP,
    ADownpour,
    Downpour,
    MDownpour,
    MVADownpour,
    ServerDownpour,
    SyncEASGD,
)

pytestmark = pytest.mark.shares
torch.set_num_threads(1)
STEPS = 5
ELASTIC = {"moving_rate": 0.3, "period": 2}


def ran(algorithm, *shared, steps: int = STEPS, **settings) -> np.ndarray:
    """Return the center after a sequential run of an oracle."""
    x, c = start(), start()
    oracles.run(algorithm(x, c, *shared, gradient(0), steps=steps, lr=LR, **settings))
    return c


def synchronous() -> np.ndarray:
    c = start()
    oracles.sync_easgd([start()], c, gradient(0), steps=STEPS, lr=LR, **ELASTIC)
    return c


def averaged(rate) -> np.ndarray:
    return ran(oracles.adownpour, start(), rate=rate, clock=[0])


CASES = {
    "EASGD": (EASGD, ELASTIC, lambda: ran(oracles.easgd, **ELASTIC)),
    "EASGD-overlap": (
        EASGD,
        {"overlap": True, **ELASTIC},  # no exchange is due in the step behind the last one
        lambda: ran(oracles.easgd, **ELASTIC),
    ),
    "EAMSGD": (
        EAMSGD,
        {"momentum": HALF, **ELASTIC},
        lambda: ran(oracles.eamsgd, momentum=HALF, **ELASTIC),
    ),
    "SyncEASGD": (SyncEASGD, ELASTIC, synchronous),
    "SEASGD": (
        SEASGD,
        {"overlap": False, **ELASTIC},
        lambda: ran(oracles.seasgd, **ELASTIC),
    ),
    "Downpour": (
        Downpour,
        {"n_push": 2, "n_fetch": 3},
        lambda: ran(oracles.downpour, n_push=2, n_fetch=3),
    ),
    "ADownpour": (ADownpour, {}, lambda: averaged(lambda t: 1 / (t + 1))),
    "MVADownpour": (MVADownpour, {"rate": 0.25}, lambda: averaged(lambda t: 0.25)),
    "MDownpour": (
        MDownpour,
        {"momentum": 0.9},
        lambda: ran(oracles.mdownpour, np.zeros_like(start()), momentum=0.9),
    ),
    "SSP": (SSP, {"staleness": 0}, lambda: ran(oracles.ssp, fetches=range(STEPS))),
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with smbox.local("64MiB") as box:
        yield box.address


def descent(box, name: str, kind: type, settings: dict, worker: int = 0) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start()))
    return Descent(
        worker, x, kind(torch.optim.SGD([x], lr=LR), box, name, workers=1, **settings)
    )


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("case", CASES)
def test_one_worker_is_the_sequential_algorithm(case: str, transport: str, address: str):
    kind, settings, expected = CASES[case]
    name = f"{case}.{transport}"
    with smbox.connect(address, transport=transport) as box:
        one = descent(box, name, kind, settings)
        one.run(STEPS)
        one.optimizer.close(exchange=False)
        center = box.attach(f"{name}.float32")
        np.testing.assert_array_equal(center.get(), expected())
        assert one.optimizer.stats().exchanges > 0


NARROW = {
    "EASGD": (EASGD, ELASTIC),
    "EASGD-overlap": (EASGD, {"overlap": True, **ELASTIC}),
    "Downpour": (Downpour, {"n_push": 2, "n_fetch": 3}),
    "MDownpour": (MDownpour, {"momentum": 0.9}),
    "ServerDownpour": (ServerDownpour, {}),
}


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", NARROW)
def test_a_narrow_wire_gives_the_same_bits_as_on_the_model_memory(
    case: str, wire: str, transport: str, address: str
):
    kind, settings = NARROW[case]
    name, model = f"{case}.{wire}.{transport}", ModelBox()
    with smbox.connect(address, transport=transport) as box:
        ones = [
            descent(where, name, kind, {"wire": wire, **settings}) for where in (box, model)
        ]
        for one in ones:
            one.run(STEPS)
            one.optimizer.close()
        found, wanted = (where.attach(f"{name}.float32").get() for where in (box, model))
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(ones[0].values(), ones[1].values())
        assert not np.array_equal(found, start())


def test_the_bytes_that_are_counted_are_those_that_travel(address: str):
    size, period = 200_000, {"period": 1, "moving_rate": 0.3}
    x = torch.nn.Parameter(torch.ones(size))
    with smbox.connect(address, transport="tcp") as box:
        sgd = torch.optim.SGD([x], lr=LR)
        opt = EASGD(sgd, box, "bytes", workers=1, wire="bfloat16", **period)
        before = box.stats()
        for _ in range(5):
            opt.step()
        after = box.stats()
    travelled = sum(after[key] - before[key] for key in ("received_nbytes", "sent_nbytes"))
    assert opt.stats().nbytes == 5 * (2 + 4) * size
    assert opt.stats().nbytes <= travelled < 1.01 * opt.stats().nbytes


WORKER = """
import sys

import torch

import smbox
from smbox.testing.quadratic import LR, Descent, start
from smbox_torch import EASGD, Stopping

torch.set_num_threads(1)
address, transport, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
x = torch.nn.Parameter(torch.from_numpy(start()))
with smbox.connect(address, transport=transport) as box:
    sgd = torch.optim.SGD([x], lr=LR)
    easgd = EASGD(sgd, box, "team", period=1, workers=2, overlap=transport == "tcp")
    one = Descent(number, x, easgd)
    stopping = Stopping(box, "team", "mean", 20, rank=number, workers=2)
    while True:
        one.run()
        if stopping.step():
            break
    easgd.close()
    box.counter("team.left").add(1)
"""


def test_processes_of_both_paths_share_a_center_and_stop_together(preloaded: str, address: str):
    team = [
        subprocess.Popen([preloaded, "-c", WORKER, address, transport, str(number)])
        for number, transport in enumerate(("shm", "tcp"))
    ]
    assert [process.wait(90) for process in team] == [0, 0]
    with smbox.connect(address) as box:
        assert box.counter("team.left").value == 2
        assert box.attach("team.stop.iterations").get().sum() >= 40
        center = box.attach("team.float32").get()
    assert np.abs(center).max() < np.abs(start()).max()  # all descend towards zero

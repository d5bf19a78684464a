"""Models on a CUDA device train as they do on the CPU, where the other tests judge them."""

from __future__ import annotations

import copy
import itertools
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import smbox
from smbox_torch import (
    EASGD,
    SEASGD,
    SSP,
    Dogwild,
    Downpour,
    Hogwild,
    HybridSGD,
    Publisher,
    RingAllReduce,
    Subscriber,
)
from smbox_torch.world import World

pytestmark = [
    pytest.mark.shares,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

Wrap = Callable[[torch.optim.Optimizer, torch.nn.Module], Any]
STEPS = 21
GRADIENT_CYCLES = 400_000_000
"""A few tenths of a second at a GPU's clock; an exchange of these models takes milliseconds."""

TOLERANCES = {"rtol": 1e-3, "atol": 1e-4}
RANK = """
import json, os, sys, torch
from smbox_torch import SyncGroup
device, store = sys.argv[1:]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
made = torch.Generator().manual_seed(rank)
torch.manual_seed(4)
layers = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
model = torch.nn.Sequential(*layers).to(device)
group = None
if store:
    torch.distributed.init_process_group(
        "nccl", init_method="file://" + store, rank=rank, world_size=size
    )
    group = torch.distributed.group.WORLD
opt = SyncGroup(torch.optim.SGD(model.parameters(), lr=0.05), model, group=group)
for _ in range(21):
    xs = torch.randn(16, 6, generator=made).to(device)
    opt.zero_grad()
    model(xs).square().mean().backward()
    opt.step()
opt.close()
values = torch.cat([each.flatten().float() for each in model.state_dict().values()])
print(json.dumps(values.tolist()))
if store:
    torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def box() -> Iterator[smbox.Box]:
    with smbox.local(memory="256MiB") as made:
        yield made


def network(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(4)
    layers = (
        torch.nn.Linear(6, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.Tanh(),
        torch.nn.Linear(8, 3),
    )
    return torch.nn.Sequential(*layers).to(dtype)


def batches(dtype: torch.dtype = torch.float32) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    made = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        xs = torch.randn(16, 6, generator=made, dtype=torch.float32)
        yield xs.to(dtype), (xs[:, :3] > 0).to(dtype)


def trained(
    model: torch.nn.Module,
    device: str,
    wrap: Callable[[torch.optim.Optimizer, torch.nn.Module], Any],
) -> list[torch.Tensor]:
    """All values of the trained model, and of the center where there is one, on the CPU."""
    model = copy.deepcopy(model).to(device)
    opt = wrap(torch.optim.SGD(model.parameters(), lr=0.05), model)
    dtype = next(model.parameters()).dtype
    for xs, ys in batches(dtype):
        opt.zero_grad()
        torch.nn.functional.mse_loss(model(xs.to(device)), ys.to(device)).backward()
        opt.step()
    assert {p.device.type for p in model.parameters()} == {device}
    found = [value.detach().cpu().clone() for value in model.state_dict().values()]
    if hasattr(opt, "center_into"):
        center = network(dtype).to(device)
        opt.center_into(center)
        found += [value.detach().cpu() for value in center.state_dict().values()]
    opt.close()
    return found


def assert_equal(found: list[torch.Tensor], wanted: list[torch.Tensor], **more: float) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, **TOLERANCES | more)


def test_classes_with_a_center_train_as_on_the_cpu(
    centered: type, box: smbox.Box, alone_in: Callable[..., Wrap]
):
    found, wanted = (
        trained(network(), device, alone_in(box, centered)) for device in ("cuda", "cpu")
    )
    assert_equal(found, wanted)


def test_an_exchange_behind_the_gradient_moves_the_same(
    box: smbox.Box, alone_in: Callable[..., Wrap]
):
    """On the CPU, only a center over tcp is exchanged behind the gradient."""
    found = trained(network(), "cuda", alone_in(box, EASGD, overlap=True, period=1))
    with smbox.connect(box.address, transport="tcp") as far:
        wanted = trained(network(), "cpu", alone_in(far, EASGD, overlap=True, period=1))
    assert_equal(found, wanted)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("kind", [EASGD, SEASGD])
def test_what_the_gradient_takes_is_no_wait(kind: type, box: smbox.Box, *, overlap: bool):
    model = network().cuda()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    opt = kind(sgd, box, uuid.uuid4().hex, workers=1, overlap=overlap)
    for xs, _ in itertools.islice(batches(), 3):
        opt.zero_grad()
        model(xs.cuda()).square().mean().backward()
        torch.cuda._sleep(GRADIENT_CYCLES)  # after the copy of the batch, which waits for it
        began_s, before_ms = time.monotonic(), opt.stats().waited_ms
        opt.step()
        took_ms = 1000.0 * (time.monotonic() - began_s)
        assert opt.stats().waited_ms - before_ms < took_ms / 2
    opt.close()


@pytest.mark.parametrize("kind", [EASGD, Downpour, SSP])
def test_a_bfloat16_model_keeps_its_float32_master_on_the_device(
    kind: type, box: smbox.Box, alone_in: Callable[..., Wrap]
):
    model = network(torch.bfloat16)
    found, wanted = (trained(model, device, alone_in(box, kind)) for device in ("cuda", "cpu"))
    assert_equal(found, wanted, rtol=0.05, atol=0.05)


def averaged(device: str, size: int, store: str = "") -> list[torch.Tensor]:
    """The values of all ranks' models. Each is a process: autograd has one thread a device."""
    env = os.environ | {"WORLD_SIZE": str(size), "TORCHELASTIC_RUN_ID": uuid.uuid4().hex}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, device, store],
            env=env | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        told = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for each in ranks:
            each.kill()
            each.communicate()
    return [torch.tensor(json.loads(each)) for each in told]


def test_ranks_of_one_host_average_the_gradients_of_a_device():
    found, other = averaged("cuda", 2)
    assert torch.equal(found, other)
    assert_equal([found], averaged("cpu", 2)[:1])


def test_sync_group_averages_over_nccl(tmp_path: Path):
    """One rank: NCCL takes one process per device, and most machines have one device."""
    assert_equal(averaged("cuda", 1, str(tmp_path / "store")), averaged("cpu", 1))


def test_a_ring_takes_the_gradients_of_a_device(worlds: Callable[..., list[World]]):
    def wrap(sgd: torch.optim.Optimizer, model: torch.nn.Module) -> RingAllReduce:
        return RingAllReduce(
            sgd, model, world=worlds(1, 1)[0], exchange=lambda address: [address]
        )

    found, wanted = (trained(network(), device, wrap) for device in ("cuda", "cpu"))
    assert_equal(found, wanted)


@pytest.mark.parametrize("overlap", [False, True])
def test_hybrid_exchanges_a_devices_model(
    box: smbox.Box, worlds: Callable[..., list[World]], *, overlap: bool
):
    def wrap(sgd: torch.optim.Optimizer, model: torch.nn.Module) -> HybridSGD:
        options = {"model": model, "world": worlds(1, 1)[0], "period": 3, "overlap": overlap}
        return HybridSGD(sgd, box, uuid.uuid4().hex, **options)

    found, wanted = (trained(network(), device, wrap) for device in ("cuda", "cpu"))
    assert_equal(found, wanted)


def test_dogwild_streams_the_gradients_of_a_device(box: smbox.Box):
    def wrap(sgd: torch.optim.Optimizer, _: torch.nn.Module) -> Dogwild:
        return Dogwild(sgd, box, uuid.uuid4().hex, rank=0, workers=1)

    found, wanted = (trained(network(), device, wrap) for device in ("cuda", "cpu"))
    assert_equal(found, wanted)


def test_hogwild_refuses_a_model_on_a_device(box: smbox.Box):
    model = network().cuda()
    with pytest.raises(smbox.ConfigError, match="keep it on the CPU"):
        Hogwild(torch.optim.SGD(model.parameters(), lr=0.1), box, "refused")


def test_a_scaler_that_finds_inf_skips_the_step_of_the_wrapper(box: smbox.Box):
    model = network().cuda()
    opt = EASGD(torch.optim.SGD(model.parameters(), lr=0.1), box, "scaled", workers=1)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    before = [p.detach().clone() for p in model.parameters()]
    for is_bad, (xs, _) in zip((True, False), batches(), strict=False):
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(xs.cuda()).square().sum()
        scaler.scale(loss * (float("inf") if is_bad else 1.0)).backward()
        scaler.step(opt)
        scaler.update()
        if is_bad:
            assert all(
                torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)
            )
    assert opt.steps == 1
    assert not torch.equal(next(model.parameters()), before[0])
    opt.close()


def test_a_devices_model_is_published_and_pulled(box: smbox.Box):
    model, other = network().cuda(), network().cuda()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    with Publisher(box, "policy", model) as publisher:
        version = publisher.publish()
        assert Subscriber(box, "policy").pull(into=other, timeout_s=30) == version
    for one, two in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two)

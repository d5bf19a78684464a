from __future__ import annotations

import pytest
import torch

from smbox.errors import WorkerLostError
from smbox.testing.model_box import ModelBox
from smbox.testing.model_region import ModelRegion
from smbox_torch import HybridSGD


@pytest.mark.parametrize("exchange", ["elastic", "seasgd"])
@pytest.mark.parametrize("overlap", [False, True])
def test_statistics_of_a_group_stay_equal_and_never_become_negative(
    run_ranks, overlap: bool, exchange: str
):
    box = ModelBox()

    def work(world) -> list[float]:
        model = torch.nn.Sequential(
            torch.nn.BatchNorm1d(3, momentum=1.0), torch.nn.Linear(3, 1)
        )
        generator, found = torch.Generator().manual_seed(world.rank), []
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        settings = {"period": 1, "moving_rate": 0.9, "overlap": overlap, "groups": 1}
        settings["exchange"] = exchange
        with HybridSGD(sgd, box, "run", model=model, world=world, **settings) as optimizer:
            for t in range(8):
                optimizer.zero_grad()
                scale = 1e-3 if t % 2 else 1e3
                model(scale * torch.randn(4, 3, generator=generator)).sum().backward()
                optimizer.step()
                found += model[0].running_var.tolist()
            assert optimizer.stats().exchanges == 8  # those of the statistics do not count
        return found + model[0].running_var.tolist()

    first, second = run_ranks(2, work)
    assert first == second
    assert min(first) >= 0
    assert box.attach("run.buffers.float32").get()[3:].min() >= 0


def test_a_root_that_cannot_exchange_the_statistics_is_named_by_the_others(
    run_ranks, monkeypatch
):
    def fail(*_, **__) -> None:
        raise ConnectionError("the memory is gone")

    def work(world) -> None:
        model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
        box = ModelBox() if world.is_group_root else None
        sgd = torch.optim.SGD(model.parameters())
        optimizer = HybridSGD(sgd, box, "run", model=model, world=world, timeout_s=20.0)
        lost = (WorkerLostError, "rank 0 has left")
        error, words = (ConnectionError, "gone") if world.is_group_root else lost
        model(torch.ones(4, 3)).sum().backward()
        with pytest.raises(error, match=words), optimizer:
            optimizer.step()

    monkeypatch.setattr(ModelRegion, "elastic", fail)
    run_ranks(2, work)


def test_statistics_end_at_the_center_too(worlds):
    net, box = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)), ModelBox()
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    options = {"model": net, "world": worlds(1, 1)[0], "moving_rate": 0.25}
    optimizer = HybridSGD(sgd, box, "run", **options)
    for value in 1.0, 2.0:
        optimizer.zero_grad()
        net(torch.tensor([[value] * 3, [0.0] * 3])).sum().backward()
        optimizer.step()
    optimizer.finish()
    center = box.attach("run.buffers.float32").get()[:3]
    assert net[0].running_mean.tolist() == center.tolist()

"""Counts of batches are the most that anybody counted, and statistics move by the rate."""

from __future__ import annotations

import pytest
import torch

from smbox.testing.model_box import ModelBox
from smbox_torch import EASGD, SEASGD, SSP, Downpour, ServerDownpour, SyncEASGD

BATCHES = 20
OPTIONS = {Downpour: {"n_push": 1, "n_fetch": 1}, ServerDownpour: {}}


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4, momentum=None))


def wrapped(kind, box, model, rank):
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    options = OPTIONS.get(kind, {"period": 1})
    return kind(sgd, box, "run", model=model, workers=2, rank=rank, **options)


def train(model, optimizer, batch, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", [EASGD, SEASGD, Downpour, ServerDownpour])
def test_who_joins_late_counts_on_where_the_others_are(kind):
    box, model, late = ModelBox(), network(), network()
    first = wrapped(kind, box, model, 0)
    train(model, first, torch.randn(64, 4), BATCHES)
    second = wrapped(kind, box, late, 1)
    assert late[1].num_batches_tracked.item() == BATCHES
    before = late[1].running_mean.clone()
    train(late, second, torch.randn(4, 4) + 10, 1)
    moved = (late[1].running_mean - before).abs().max().item()
    assert moved < 10 * 4 / BATCHES  # one batch of many, and not the average itself
    copy = network()
    first.center_into(copy)
    assert copy[1].num_batches_tracked.item() == BATCHES + 1
    for optimizer in (second, first):
        optimizer.close(exchange=False)


def test_synchronous_workers_share_them_at_the_end():
    box, model = ModelBox(), network()
    only = SyncEASGD(
        torch.optim.SGD(model.parameters(), lr=0.0), box, "run", model=model, workers=1
    )
    train(model, only, torch.randn(8, 4), 3)
    only.finish()
    assert box.attach("run.counts").get().tolist() == [3]


def test_each_count_is_shared_by_itself():
    box, models = (
        ModelBox(),
        [
            torch.nn.Sequential(torch.nn.BatchNorm1d(1), torch.nn.BatchNorm1d(1))
            for _ in range(2)
        ],
    )
    for rank, counts in enumerate([(5, 2), (3, 4)]):
        for norm, count in zip(models[rank], counts, strict=True):
            norm.num_batches_tracked.fill_(count)
    workers = [wrapped(EASGD, box, model, rank) for rank, model in enumerate(models)]
    for worker in workers:
        worker.eval()
    assert [[n.num_batches_tracked.item() for n in model] for model in models] == [[5, 4]] * 2
    floats = 2 * 4 * 4 * 2  # in float32: weight, bias and two statistics of each, both ways
    assert workers[0].exchange_nbytes == floats + 2 * 2 * 8
    for worker in workers:
        worker.close(exchange=False)


def test_another_integer_buffer_stays_the_workers_own():
    box, model = ModelBox(), network()
    model.register_buffer("position", torch.tensor([6]))
    only = wrapped(EASGD, box, model, 0)
    train(model, only, torch.randn(8, 4), 1)
    model.position.fill_(0)  # the end of a queue
    train(model, only, torch.randn(8, 4), 1)
    assert model.position.item() == 0
    only.close(exchange=False)


@pytest.mark.parametrize(
    ("kind", "options", "rate", "exchanges"),  # of two steps, and with the one of close
    [
        (EASGD, {"moving_rate": 0.25}, 0.25, (2, 3)),
        (EASGD, {"moving_rate": 0.25, "overlap": True}, 0.25, (3, 3)),
        (SEASGD, {"moving_rate": 0.25}, 0.25, (2, 2)),
        (SyncEASGD, {"moving_rate": 0.25}, 0.25, (2, 3)),
        (Downpour, {"n_push": 2}, 0.45, (1, 1)),
        (ServerDownpour, {"n_push": 2}, 0.45, (1, 1)),
        (SSP, {"period": 2}, 0.45, (1, 1)),
    ],
)
def test_statistics_move_by_the_rate_when_parameters_do(kind, options, rate, exchanges):
    box, model = ModelBox(), torch.nn.BatchNorm1d(1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    only = kind(sgd, box, "run", model=model, workers=1, **options)
    model.running_mean.fill_(8.0)  # the center holds 0
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.zeros(1)
        only.step()
    left = [model.running_mean.item()]
    only.close()
    left.append(model.running_mean.item())
    assert left == pytest.approx([4 + 4 * (1 - 2 * rate) ** times for times in exchanges])
    assert box.attach("run.buffers.float32").get()[0] == pytest.approx(8 - left[1])


def test_the_bytes_of_a_push_include_statistics_and_counts():
    found = []
    for passes in (False, True):
        net = torch.nn.BatchNorm1d(2)
        sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        model = net if passes else None
        one = Downpour(sgd, ModelBox(), "run", workers=1, model=model)
        net(torch.ones(3, 2)).sum().backward()
        one.step()
        found.append(one.stats().nbytes)
        one.close(exchange=False)
    statistics, counts = 4 * 4, 8
    assert found[1] - found[0] == 2 * (statistics + counts)

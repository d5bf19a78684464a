"""Predictions on cases that are computed by hand."""

from __future__ import annotations

import pytest

from smbox_torch.planning.methods import METHODS, Setup
from smbox_torch.planning.rates import PAYLOAD, Rates, Resource, predict

S = 100e6
COMPUTE_S = 2.0
RATES = Rates(link_mbit=800 / PAYLOAD, latency_s=0.0, node_gbytes=100.0)
"""Links of 100e6 bytes/s of payload: S takes one second."""

BY_HAND_S = {
    # compute, then push W S + S (rank 0 clears a sum), then pull W S
    "server-sync": {1: 2 + 2 + 1, 2: 2 + 3 + 2, 6: 2 + 7 + 6},
    # compute, then W S each way
    "server-async": {1: 2 + 1, 2: 2 + 2, 6: 2 + 6},
    # compute, then 2 (W - 1) / W S
    "ring": {1: 2, 2: 2 + 1, 6: 2 + 10 / 6},
    # forward 2/3, then backward 4/3 or the ring, whichever is longer
    "ddp": {1: 2, 2: 2, 6: 2 / 3 + 10 / 6},
    # every ten iterations S each way for each group of two
    "hybrid": {1: 2 + 0.1, 2: 2 + 0.1, 6: 2 + 0.3},
    "easgd": {1: 2 + 0.1, 2: 2 + 0.2, 6: 2 + 0.6},
    # over two nodes half of it, but never less than a worker's own link needs
    "easgd-striped": {1: 2 + 0.1, 2: 2 + 0.1, 6: 2 + 0.3},
}
CASES = [(method, workers, by[workers]) for method, by in BY_HAND_S.items() for workers in by]


def setup(workers: int, **other: float) -> Setup:
    return Setup(workers, S, COMPUTE_S, **other)


def test_every_way_has_cases():
    assert set(BY_HAND_S) == set(METHODS)


@pytest.mark.parametrize(("method", "workers", "by_hand_s"), CASES)
def test_an_iteration_is_the_sum_of_its_phases(method: str, workers: int, by_hand_s: float):
    found = predict(method, setup(workers), RATES, batch=8)
    assert found.iteration_s == pytest.approx(by_hand_s)
    assert found.images_per_s == pytest.approx(8 * workers / by_hand_s)
    assert found.speed_up == pytest.approx(workers * COMPUTE_S / by_hand_s)
    assert found.utilisation == pytest.approx(COMPUTE_S / by_hand_s)


def test_bytes_are_those_of_the_busiest_worker_and_node():
    sync = predict("server-sync", setup(4), RATES, batch=8)
    assert (sync.worker_out, sync.worker_in) == (2 * S, S)
    assert (sync.node_out, sync.node_in) == (4 * S, 5 * S)
    ring = predict("ring", setup(4), RATES, batch=8)
    assert (ring.worker_out, ring.worker_in, ring.node_out) == (1.5 * S, 1.5 * S, 0)
    striped = predict("easgd-striped", setup(6, period=5, nodes=3), RATES, batch=8)
    assert striped.worker_out == striped.worker_in == pytest.approx(S / 5)
    assert striped.node_in == pytest.approx(6 / 3 * S / 5)


def test_a_group_that_is_not_full_exchanges_too():
    found = predict("hybrid", setup(5, per_host=2), RATES, batch=8)
    assert found.node_in == pytest.approx(3 * S / 10)


@pytest.mark.parametrize(
    ("method", "workers", "rates", "resource"),
    [
        ("easgd", 6, RATES, Resource.COMPUTE),
        ("server-sync", 1, RATES, Resource.WORKER_LINK),  # 2 s out and 1 s in, 2 s of computing
        ("server-async", 6, RATES, Resource.NODE_LINK),
        ("ring", 200, Rates(100 / PAYLOAD, 0.0, 100.0), Resource.WORKER_LINK),
        ("server-async", 6, Rates(800e3, 0.0, 0.1), Resource.NODE_PROCESSOR),
        ("ring", 200, Rates(800e3, 0.05, 0.1), Resource.LATENCY),
    ],
)
def test_the_resource_that_takes_the_most_saturates(method, workers, rates, resource):
    assert predict(method, setup(workers), rates, batch=8).saturates is resource


def test_the_node_s_processor_moves_both_directions():
    rates = Rates(800e3, 0.0, node_gbytes=0.1)  # S a second, in and out together
    found = predict("server-async", setup(3), rates, batch=8)
    assert found.iteration_s == pytest.approx(2 + 3 * 2)


def test_messages_that_wait_for_one_another_cost_a_latency_each():
    rates = Rates(RATES.link_mbit, 0.01, 100.0)
    # the table of flags goes around, then the gradient: 2 (W - 1) hops each
    found = predict("ring", setup(4), rates, batch=8)
    assert found.iteration_s == pytest.approx(2 + 1.5 + 2 * 6 * 0.01)
    found = predict("easgd", setup(1), rates, batch=8)
    assert found.iteration_s == pytest.approx(2 + (1 + 2 * 0.01) / 10)
    # of the gradient alone, beside the backward pass
    found = predict("ddp", setup(4), rates, batch=8)
    assert found.iteration_s == pytest.approx(2 / 3 + 1.5 + 6 * 0.01)
    # five round trips to push and meet, two to pull
    found = predict("server-sync", setup(1), rates, batch=8)
    assert found.iteration_s == pytest.approx(2 + 2 + 1 + 2 * (5 + 2) * 0.01)


def test_a_link_carries_headers_too():
    assert Rates(1000.0, 0.0, 1.0).payload == pytest.approx(125e6 * 1448 / 1514)

from __future__ import annotations

import time

import pytest
from server_or_ring.layers import Layer
from server_or_ring.waiting import GRADIENT, Waiting

LAYERS = [Layer((8, 3), 0.5), Layer((5,), 0.5)]


def test_parameters_are_scaled_and_get_gradients():
    model = Waiting(LAYERS, 4.0)
    model().backward()
    assert [p.numel() for p in model.parameters()] == [2, 1, 2]
    assert all((p.grad == pytest.approx(GRADIENT)) for p in model.parameters())


def test_it_waits_as_long_as_the_passes_last():
    model = Waiting(LAYERS, 1.0)
    model.wait_s = 0.12
    began_s = time.monotonic()
    loss = model()
    assert time.monotonic() - began_s >= 0.04
    loss.backward()
    assert time.monotonic() - began_s >= 0.12


def test_the_last_layer_s_gradient_is_there_before_the_first_s():
    model = Waiting(LAYERS, 1.0)
    model.wait_s = 0.3
    first, _, last = model.parameters()
    order: list[tuple[str, float]] = []
    for name, parameter in (("first", first), ("last", last)):
        parameter.register_post_accumulate_grad_hook(
            lambda _, name=name: order.append((name, time.monotonic()))
        )
    began_s = time.monotonic()
    model().backward()
    assert [name for name, _ in order] == ["last", "first"]
    assert order[0][1] - began_s >= 0.2  # forward takes 0.1 s, backward of each layer as long
    assert order[1][1] - began_s >= 0.3

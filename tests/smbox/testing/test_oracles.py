from __future__ import annotations

import numpy as np
import pytest

from smbox.testing import oracles
from smbox.testing.quadratic import LR, SIZE, gradient, start
from smbox.testing.workers import descend

SETTINGS = {"steps": 6, "lr": LR}
ELASTIC = {**SETTINGS, "moving_rate": 0.25, "period": 2}


def still(x: np.ndarray, t: int) -> np.ndarray:
    """No gradient: only the exchange moves anything."""
    return np.zeros_like(x)


def apart() -> tuple[np.ndarray, np.ndarray]:
    return np.ones(SIZE, np.float32), np.zeros(SIZE, np.float32)


def descended(steps: int) -> np.ndarray:
    x = start()
    for t in range(steps):
        descend(x, gradient(0)(x, t), LR)
    return x


def test_an_elastic_exchange_preserves_the_sum():
    x, c = apart()
    d = oracles.elastic(x, c, 0.25)
    assert d.tolist() == [0.25] * SIZE
    assert c.tolist() == [0.25] * SIZE


@pytest.mark.parametrize("algorithm", [oracles.easgd, oracles.seasgd])
def test_elastic_algorithms_close_the_distance_at_their_rate(algorithm):
    x, c = apart()
    oracles.run(algorithm(x, c, still, **ELASTIC))
    assert (x - c)[0] == pytest.approx(0.5**3)  # three exchanges, each by 1 - 2 alpha
    assert (x + c)[0] == pytest.approx(1.0)


def test_eamsgd_without_momentum_is_easgd():
    x, c = start(), start()
    y, d = start(), start()
    oracles.run(oracles.eamsgd(x, c, gradient(0), momentum=0.0, **ELASTIC))
    oracles.run(oracles.easgd(y, d, gradient(0), **ELASTIC))
    np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(c, d)


def test_synchronous_easgd_moves_the_center_by_beta_towards_the_mean():
    xs = [np.full(SIZE, value, np.float32) for value in (1.0, 3.0)]
    c = np.zeros(SIZE, np.float32)
    oracles.sync_easgd(xs, c, still, steps=1, lr=LR, moving_rate=0.25, period=1)
    assert c[0] == pytest.approx(0.5 * 2.0)  # beta = 2 * 0.25, mean 2


def test_downpour_and_ssp_of_one_worker_are_sgd():
    for run in (
        lambda x, c: oracles.downpour(x, c, gradient(0), n_push=1, n_fetch=1, **SETTINGS),
        lambda x, c: oracles.ssp(x, c, gradient(0), fetches=range(6), **SETTINGS),
    ):
        x, c = start(), start()
        oracles.run(run(x, c))
        np.testing.assert_allclose(x, descended(6), rtol=0, atol=1e-6)
        np.testing.assert_array_equal(x, c)


def test_the_average_of_downpour_is_the_mean_of_its_centers():
    x, c, z = start(), start(), start()
    oracles.run(
        oracles.adownpour(
            x, c, z, gradient(0), rate=lambda t: 1 / (t + 1), clock=[0], **SETTINGS
        )
    )
    np.testing.assert_allclose(z, np.mean([descended(n) for n in range(7)], axis=0), atol=1e-6)


def test_downpour_with_momentum_is_nesterov():
    x, c, v = start(), start(), np.zeros(SIZE, np.float32)
    oracles.run(oracles.mdownpour(x, c, v, gradient(0), momentum=0.9, **SETTINGS))
    y, w = start(), np.zeros(SIZE, np.float32)
    for t in range(6):
        w = 0.9 * w - LR * gradient(0)(y + 0.9 * w, t)
        y = y + w
    np.testing.assert_allclose(c, y, rtol=0, atol=1e-5)


def test_the_parameter_server_steps_with_the_mean():
    x = start()
    oracles.parameter_server(x, [gradient(0)] * 2, **SETTINGS)
    np.testing.assert_allclose(x, descended(6), rtol=0, atol=1e-6)

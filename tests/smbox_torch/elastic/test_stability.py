from __future__ import annotations

import warnings

import numpy as np
import pytest

from smbox.errors import ConfigError
from smbox_torch.elastic import stability


def radius(matrix: list[list[float]]) -> float:
    return float(np.abs(np.linalg.eigvals(np.array(matrix))).max())


@pytest.mark.parametrize("workers", [1, 4, 16])
@pytest.mark.parametrize("lr", [0.0, 0.3, 1.0])
def test_the_unfused_bound_is_where_the_mean_mode_turns_unstable(workers: int, lr: float):
    beta = stability.unfused_bound(workers, lr)

    def mode(scale: float) -> float:
        b = beta * scale
        return radius([[1 - lr - b / workers, b / workers], [b, 1 - b]])

    assert mode(0.99) <= 1 + 1e-9
    assert mode(1.01) > 1


@pytest.mark.parametrize("lr", [0.1, 1.0])
def test_the_fused_bound_is_where_one_exchange_turns_unstable(lr: float):
    def mode(alpha: float) -> float:
        return radius([[1 - lr - alpha, alpha], [alpha * (1 - lr), 1 - alpha]])

    bound = stability.fused_bound(lr)
    assert bound == (4 - 2 * lr) / (4 - lr)
    assert mode(0.9 * bound) <= 1


def test_known_values():
    assert stability.unfused_bound(16) == pytest.approx(1.882, abs=1e-3)
    assert stability.fused_bound() == 1.0


def test_impossible_values_are_refused():
    for rate in (0.0, -0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError):
            stability.check_moving_rate(rate)
    assert stability.check_moving_rate(1) == 1.0
    assert stability.check_moving_rate(None) is None


def test_the_warning_names_bound_and_cure():
    with pytest.warns(stability.StabilityWarning, match=r"1\.88.*0\.0563"):
        stability.warn_if_unstable(0.2, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stability.warn_if_unstable(0.2, 8)
        stability.warn_if_unstable(None, 1024)

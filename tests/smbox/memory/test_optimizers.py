from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import ConfigError
from smbox.memory.kernels import OPTIMIZERS, OptimizerCode, check_parameters
from smbox.testing.kernels import stepped
from smbox.wire.operands import PARAMETERS_MAX

RNG = np.random.default_rng(5)
GOOD = {
    OptimizerCode.MOMENTUM: (0.1, 0.9),
    OptimizerCode.NESTEROV: (0.1, 0.9),
    OptimizerCode.ADAGRAD: (0.1, 1e-10),
    OptimizerCode.ADAM: (0.01, 0.9, 0.999, 1e-8),
}


def textbook(code: OptimizerCode, p, gradients, by) -> np.ndarray:
    """Compute the published formulas in float64, without the kernels."""
    p = p.astype(np.float64)
    m = v = np.zeros_like(p)
    for t, g in enumerate(gradients, start=1):
        if code is OptimizerCode.MOMENTUM:
            m = by[1] * m + g
            p = p - by[0] * m
        elif code is OptimizerCode.NESTEROV:
            m = by[1] * m + g
            p = p - by[0] * (g + by[1] * m)
        elif code is OptimizerCode.ADAGRAD:
            v = v + g**2
            p = p - by[0] * g / (np.sqrt(v) + by[1])
        else:
            lr, b1, b2, eps = by
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * g**2
            p = p - lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
    return p


@pytest.mark.parametrize("code", OptimizerCode)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float64, 1e-14)])
def test_steps_follow_the_published_rule(code, dtype, tolerance):
    p = RNG.standard_normal(50).astype(dtype)
    gradients = [RNG.standard_normal(50).astype(dtype) for _ in range(5)]
    expected = textbook(code, p, gradients, GOOD[code])
    states = [np.zeros(50, dtype) for _ in OPTIMIZERS[code].states]
    for t, g in enumerate(gradients, start=1):
        p, *states = stepped(code, p, states, g, GOOD[code], t)
    assert p.dtype == dtype
    np.testing.assert_allclose(p, expected, rtol=tolerance, atol=tolerance)


def test_parameters_are_checked():
    for code, by in GOOD.items():
        check_parameters(code, by)
        assert len(OPTIMIZERS[code].parameters) <= PARAMETERS_MAX
        with pytest.raises(ConfigError):
            check_parameters(code, by[:-1])
        with pytest.raises(ConfigError, match="range"):
            check_parameters(code, (float("nan"), *by[1:]))
    with pytest.raises(ConfigError, match="beta2"):
        check_parameters(OptimizerCode.ADAM, (0.1, 0.9, 1.0, 1e-8))

"""What an exchange has added is taken once, and is never that of another stripe."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.memory.kept_delta import KeptDelta
from smbox.memory.kernels import KernelCode, elastic_delta, run_kernel


def exchange(kept: KeptDelta, source, data):
    run_kernel(KernelCode.ELASTIC, data, source, source.dtype.type(0.3), kept)


def random(count, dtype=np.float32):
    return np.random.default_rng(count).standard_normal((2, count)).astype(dtype)


def test_it_is_taken_once():
    kept = KeptDelta()
    (source, data), (_, old) = random(50), random(50)  # the same twice
    exchange(kept, source, data)
    taken = kept.take()
    assert taken is not None
    assert taken.tobytes() == elastic_delta(source, old, np.float32(0.3)).tobytes()
    assert kept.take() is None


def test_the_region_gets_the_same_bits_as_without():
    (source, kept_data), (_, data) = random(50), random(50)  # the same twice
    exchange(KeptDelta(), source, kept_data)
    run_kernel(KernelCode.ELASTIC, data, source, np.float32(0.3))
    assert kept_data.tobytes() == data.tobytes()


def test_a_stripe_that_failed_leaves_nothing_of_the_one_before(monkeypatch):
    """The delta of a rolled back change is no delta of the next one."""
    kept = KeptDelta()
    exchange(kept, *random(50))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(np, "multiply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            exchange(kept, *random(50))
    assert kept.take() is None


def test_other_kernels_keep_nothing():
    kept = KeptDelta()
    source, data = random(50)
    run_kernel(KernelCode.SUM, data, source, np.float32(1), kept)
    assert kept.take() is None


def test_a_longer_stripe_and_another_type_have_room():
    kept = KeptDelta()
    for count, dtype in ((10, np.float32), (50, np.float32), (20, np.float64), (5, np.float16)):
        exchange(kept, *random(count, dtype))
        taken = kept.take()
        assert taken is not None
        assert (taken.size, taken.dtype) == (count, np.dtype(dtype))

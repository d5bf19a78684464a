"""The vectors of L-BFGS at the node do what numpy does in memory."""

from __future__ import annotations

import uuid
from collections import deque

import numpy as np
import pytest

from smbox.errors import (
    ConfigError,
    OutOfMemoryError,
    RegionExistsError,
    RegionFreedError,
)
from smbox.testing.lbfgs import lbfgs
from smbox_torch.sandblaster.node_lbfgs import NodeLBFGS

pytestmark = pytest.mark.shares

COUNT = 300
CURVES = np.linspace(1, 50, COUNT)
TRUTH = np.cos(np.arange(COUNT))
ARMIJO = 1e-4


def name():
    return f"run-{uuid.uuid4().hex[:8]}"


def bowl(x):
    """A convex function and its gradient, of x's dtype; losses in float64."""
    off = x.astype(float) - TRUTH
    value = float(CURVES @ off**2 / 2 + 0.1 * (off**4).sum())
    return value, (CURVES * off + 0.4 * off**3).astype(x.dtype)


def descend(vectors, steps):
    """The loop of a coordinator, with an evaluation here."""

    def evaluate():
        loss, g = bowl(vectors.x.get())
        vectors.gradient.put(g)
        return loss

    loss = evaluate()
    for _ in range(steps):
        slope = vectors.direct()
        vectors.begin()
        step = 1.0 if vectors.pairs else min(1.0, slope**-0.5)
        vectors.move(step)
        while not (found := evaluate()) <= loss - ARMIJO * step * slope:
            step /= 2
            vectors.move(step)
        vectors.learn(step)
        loss = found
        yield vectors.x.get(), loss, step


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-11), ("float32", 1e-5)])
def test_iterates_equal_those_in_memory_to_rounding(box, dtype, rtol):
    vectors = NodeLBFGS(box, name(), COUNT, dtype, history=5)
    wanted = lbfgs(np.zeros(COUNT, dtype), bowl, 5)
    steps = 12  # more than pairs are kept
    for at, ((x, loss, step), (x0, loss0, step0)) in enumerate(
        zip(descend(vectors, steps), wanted, strict=False)
    ):
        assert step == pytest.approx(step0, rel=rtol), at
        np.testing.assert_allclose(x, x0, rtol=rtol, atol=rtol)
        assert loss == pytest.approx(loss0, rel=rtol, abs=1e-9)
    assert len(vectors.pairs) == 5
    assert loss < 1e-3 * bowl(np.zeros(COUNT))[0]
    vectors.close()


def test_no_vector_travels(node):
    import smbox

    with smbox.connect(node.address, transport="tcp", timeout_s=60.0) as box:
        vectors = NodeLBFGS(box, name(), 100_000, "float32", history=3)
        vectors.gradient.put(np.ones(100_000, np.float32))
        before = box.stats()
        for _ in range(4):
            vectors.direct()
            vectors.begin()
            vectors.move(0.5)
            vectors.gradient.scale(0.5)
            vectors.learn(0.5)
        after = box.stats()
        moved = sum(after[key] - before[key] for key in ("received_nbytes", "sent_nbytes"))
        assert 0 < moved < 0.05 * vectors.x.nbytes
        vectors.close()


def test_a_pair_without_curvature_is_left_out_and_undo_goes_back(box):
    vectors = NodeLBFGS(box, name(), 4, "float64", history=2)
    vectors.x.put(np.arange(4.0))
    vectors.gradient.put(np.ones(4))
    assert vectors.direct() == 4.0
    vectors.begin()
    vectors.move(0.25)
    assert vectors.x.get().tolist() == [-0.25, 0.75, 1.75, 2.75]
    assert not vectors.learn(0.25)  # the gradient did not change
    assert len(vectors.pairs) == 0
    vectors.gradient.put(np.full(4, 0.5))
    assert vectors.learn(0.25)
    assert (vectors.pairs[0].rho, vectors.pairs[0].gamma) == (2.0, 0.5)
    vectors.undo()
    assert vectors.x.get().tolist() == [0, 1, 2, 3]
    assert vectors.gradient.get().tolist() == [1] * 4
    assert len(vectors.pairs) == 0
    vectors.close()


def test_a_gradient_that_is_not_finite_has_no_slope(box):
    vectors = NodeLBFGS(box, name(), 3, "float32")
    vectors.gradient.put(np.array([1, np.nan, 2], np.float32))
    assert np.isnan(vectors.direct())
    vectors.close()


def pair_of(vectors, gradient, after, step):
    """Learn the pair of a step along a gradient, which is another one there."""
    dtype = vectors.x.dtype
    vectors.gradient.put(np.full(4, gradient, dtype))
    vectors.direct()
    vectors.begin()
    vectors.gradient.put(np.full(4, after, dtype))
    return vectors.learn(step)


@pytest.mark.parametrize(
    ("dtype", "gradient", "after", "step"),
    [
        ("float64", 1e-163, 0.0, 1e180),  # y.y is 0 where s.y is not
        ("float64", 1e-158, 0.0, 1e2),  # 1 / s.y is infinite
        ("float64", 1e160, 0.0, 1.0),  # y.y is infinite
        ("float32", 1e-30, 1e-30 * (1 - 2**-10), 1e38),  # s.y / y.y is, as float32
        ("float32", 1e30, 0.0, 1e-44),  # s.y / y.y is no normal float32
        ("float64", 1.0, 1.0, 1.0),  # y is 0
        ("float64", 1.0, 1.0 - 2.0**-53, 1.0),  # s.y is the rounding error of step g.d
        ("float64", 1.0, 2.0, 1.0),  # s.y is negative
        ("float64", 1.0, float("nan"), 1.0),
        ("float64", 1.0, float("inf"), 1.0),
    ],
)
def test_a_pair_beyond_the_numbers_is_left_out(box, dtype, gradient, after, step):
    vectors = NodeLBFGS(box, name(), 4, dtype, history=2)
    assert not pair_of(vectors, gradient, after, step)
    assert len(vectors.pairs) == 0
    vectors.gradient.put(np.ones(4, dtype))
    assert vectors.direct() == 4.0
    vectors.close()


@pytest.mark.parametrize("scale", [1e-140, 1e-30, 1.0, 1e30, 1e140])
def test_pairs_are_kept_whatever_the_scale_of_the_function(box, scale):
    vectors = NodeLBFGS(box, name(), 4, "float64", history=2)
    assert pair_of(vectors, scale, scale / 2, 1.0 / scale)
    assert vectors.pairs[0].gamma == pytest.approx(2.0 / scale)
    vectors.close()


def test_an_interrupt_loses_no_vectors(box, monkeypatch):
    """The handler of a signal runs right after a call, before its result is stored."""
    vectors = NodeLBFGS(box, name(), 4, "float64", history=1)
    assert pair_of(vectors, 1.0, 0.5, 1.0)

    class Interrupted(deque):
        def popleft(self):
            super().popleft()
            raise KeyboardInterrupt

    monkeypatch.setattr(vectors, "pairs", Interrupted(vectors.pairs))
    with pytest.raises(KeyboardInterrupt):
        pair_of(vectors, 1.0, 0.5, 1.0)
    assert pair_of(vectors, 1.0, 0.5, 1.0)
    vectors.close()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_no_numbers_raise_and_no_factor_that_is_kept_is_infinite(box, dtype):
    draw, limits = np.random.default_rng(3), np.finfo(dtype)
    exponent = -np.log10(float(limits.tiny))
    vectors = NodeLBFGS(box, name(), 4, dtype, history=3)
    kept = 0
    for _ in range(150):
        size, other, step = 10 ** draw.uniform(-exponent, exponent, 3)
        with np.errstate(all="ignore"):
            first = (draw.standard_normal(4) * size).astype(dtype)
            second = (first + draw.standard_normal(4) * other).astype(dtype)
        vectors.gradient.put(first)
        if not 0.0 < vectors.direct() < np.inf:
            vectors.forget()
        vectors.begin()
        vectors.gradient.put(second)
        kept += vectors.learn(float(np.clip(step, limits.tiny, 1.0)))
        for pair in vectors.pairs:
            assert np.isfinite([pair.rho, pair.gamma]).all()
            assert np.dtype(dtype).type(pair.gamma) > 0.0
    assert kept >= 10
    vectors.close()


def test_a_direction_beyond_the_numbers_has_no_slope(box):
    vectors = NodeLBFGS(box, name(), 4, "float32", history=2)
    assert pair_of(vectors, 1e-8, 0.0, 1e30)
    vectors.gradient.put(np.full(4, 1e30, np.float32))
    assert not np.isfinite(vectors.direct())  # H g is 1e60
    vectors.close()


def test_what_makes_no_sense_is_refused_and_close_frees_all_but_x(box):
    run = name()
    for dtype, history in (("float16", 10), ("int64", 10), ("float32", 0)):
        with pytest.raises(ConfigError):
            NodeLBFGS(box, run, 4, dtype, history)
    for history in (1.0, True, "3", None):
        with pytest.raises(TypeError, match="history"):
            NodeLBFGS(box, run, 4, "float32", history)
    assert not [info for info in box.regions() if info.name.startswith(run)]
    vectors = NodeLBFGS(box, run, 4, "float32", history=1)
    with pytest.raises(RegionExistsError):
        NodeLBFGS(box, run, 4, "float32")
    gradient = vectors.gradient
    vectors.close()
    vectors.close()
    with pytest.raises(RegionFreedError):
        gradient.get()
    assert [info.name for info in box.regions() if info.name.startswith(run)] == [f"{run}.x"]


def test_what_cannot_be_made_leaves_nothing(box):
    run = name()
    other = box.create(f"{run}.y1", 1)
    with pytest.raises(RegionExistsError):
        NodeLBFGS(box, run, 4, "float32", history=2)
    assert [info.name for info in box.regions() if info.name.startswith(run)] == [f"{run}.y1"]
    box.free(other)
    with pytest.raises(OutOfMemoryError):
        NodeLBFGS(box, run, 10_000_000, "float64", history=10)
    assert not [info for info in box.regions() if info.name.startswith(run)]

from __future__ import annotations

import numpy as np
import pytest

from smbox import dtypes
from smbox.memory import kernels
from smbox.memory.kernels import KernelCode
from smbox.memory.modes import Mode, factors, mode_of

pytest.importorskip("numba", reason="compiled code is an extra")

from smbox.memory import compile_cache

with compile_cache.in_use():
    from smbox.memory import compiled

BLOCK = compiled.BLOCK_NBYTES
CASES = [
    (code, dtype)
    for code in KernelCode
    for dtype in dtypes.TABLE
    if mode_of(code, dtype) != Mode.NUMPY
]
LENGTHS = [1, 2, 3, 17, 511, 512, 513, 1023, 1024, 1025, 5000]


def elements(dtype: dtypes.DType, count: int, seed: int) -> np.ndarray:
    """Numbers of all sizes, with what floats can be besides."""
    rng = np.random.default_rng(seed)
    if dtype.name not in {"float32", "float64"}:
        return rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype.numpy)
    spread = rng.standard_normal(count) * 10.0 ** rng.integers(-9, 9, count)
    spread[rng.integers(0, count, 3)] = [0.0, -0.0, np.inf]
    return spread.astype(dtype.numpy)


@pytest.mark.parametrize(
    ("code", "dtype"), CASES, ids=lambda value: str(getattr(value, "name", value))
)
def test_the_bits_are_numpys(code: KernelCode, dtype: dtypes.DType):
    scale = {KernelCode.REPLACE: 1, KernelCode.SUM: 3, KernelCode.ELASTIC: 0.3}[code]
    if code == KernelCode.SUM and dtype.kind == "float":
        scale = -0.1
    for count in LENGTHS:
        data, source = (elements(dtype, count, seed) for seed in (count, count + 1))
        wanted, old = data.copy(), np.zeros(data.nbytes + 8, np.uint8)
        before, progress = data.copy(), np.zeros(3, np.uint64)
        journal = np.zeros(data.nbytes, np.uint8)
        kernels.journaled(
            code, wanted.view("u1"), source, journal, dtype, scale, progress.copy(), 0
        )
        compiled.journaled(
            mode_of(code, dtype),
            data.view("u1"),
            source.view("u1"),
            old,
            *factors(code, dtype, scale),
            progress,
            1,
        )
        assert data.tobytes() == wanted.tobytes(), count
        assert old.tobytes() == before.tobytes() + bytes(8), count
        assert progress.tolist() == [0, before.nbytes, 0]


def test_an_element_may_begin_at_any_byte():
    dtype = dtypes.by_name("float32")
    memory, source = np.zeros(4001, np.uint8), np.ones(1000, "f4")
    old, progress = np.zeros(4000, np.uint8), np.zeros(1, np.uint64)
    compiled.journaled(
        int(Mode.SUM_FLOAT32), memory[1:], source.view("u1"), old, 2.0, 1, progress, 0
    )
    assert memory[0] == 0
    assert (memory[1:].copy().view(dtype.numpy) == 2).all()


@pytest.mark.parametrize("mode", [m for m in Mode if m != Mode.NUMPY])
def test_nothing_is_changed_before_its_old_bytes_are_published(mode: Mode):
    """The source is the journal itself, block by block: a kernel ahead of it would show."""
    count = 3 * BLOCK // 8
    data = np.full(count, 5, "i8" if mode == Mode.SUM_INT64 else "f8").view(np.uint8)
    before, old, progress = data.copy(), np.zeros(data.size, np.uint8), np.zeros(1, np.uint64)
    compiled.journaled(int(mode), data, old, old, 1.0, 1, progress, 0)
    assert old.tobytes() == before.tobytes()
    doubled = mode in {Mode.SUM_FLOAT32, Mode.SUM_FLOAT64, Mode.SUM_INT64}
    number = data.view("i8" if mode == Mode.SUM_INT64 else "f8")
    if mode == Mode.SUM_FLOAT32:
        assert (data.view("f4") == 2 * before.view("f4")).all()
    else:
        assert (number == (10 if doubled else 5)).all()


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("count", [1, 7, 1025])
def test_a_worker_moves_by_the_bits_that_the_center_moved_by(name: str, count: int):
    dtype = dtypes.by_name(name)
    rate = kernels.scale_of(KernelCode.ELASTIC, dtype, 0.3)
    center, x = (elements(dtype, count, seed) for seed in (1, 2))
    center[~np.isfinite(center)] = x[~np.isfinite(x)] = 1
    delta = kernels.elastic_delta(x, center, rate)
    for how, wanted in ((compiled._MOVED, x - delta), (compiled._DELTA, delta)):
        back = x.copy()
        mode = mode_of(KernelCode.ELASTIC, dtype)
        operand = compiled.Operand(mode, x.ctypes.data, float(rate), 1, how, back.ctypes.data)
        compiled.give_back(operand, 0, x.nbytes, center.ctypes.data)
        assert back.tobytes() == wanted.tobytes()

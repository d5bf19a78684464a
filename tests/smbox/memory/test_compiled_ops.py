from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

numba = pytest.importorskip("numba", reason="these are numba's intrinsics")

from smbox.memory import compiled_ops as ops  # noqa: E402


@numba.njit
def _address(array):
    return ops.address_of(array)


@numba.njit
def _copy(target, source, nbytes):
    ops.copy_bytes(ops.address_of(target), ops.address_of(source), nbytes)


@numba.njit
def _copy_line(target, source):
    ops.prefetch(0)
    ops.prefetch(ops.address_of(source))
    ops.copy_line(ops.address_of(target), ops.address_of(source))


@numba.njit
def _scaled(array, address, factor):
    for i, value in enumerate(numba.carray(ops.float32_at(address), 2)):
        array[i] = value * np.float32(factor)
    wide = numba.carray(ops.float64_at(address + 8), 1)
    whole = numba.carray(ops.int64_at(address + 16), 1)
    return wide[0], whole[0]


@numba.njit
def _lock(fd, byte):
    return ops.try_lock(fd, byte)


@numba.njit
def _unlock(fd, byte):
    return ops.unlock(fd, byte)


@numba.njit
def _fenced(word):
    word[0] = 1
    ops.barrier()
    word[0] = 2


@numba.njit
def _unfenced(word):
    word[0] = 1
    word[0] = 2


def test_address_of():
    array = np.arange(9, dtype=np.uint8)
    assert _address(array) == array.ctypes.data
    assert _address(array[3:]) == array.ctypes.data + 3


def test_copy_bytes():
    source, target = np.arange(9, dtype=np.uint8), np.zeros(9, np.uint8)
    _copy(target, source, 5)
    assert target.tolist() == [0, 1, 2, 3, 4, 0, 0, 0, 0]


def test_copy_line_wherever_it_lies():
    source, target = np.arange(70, dtype=np.uint8), np.zeros(70, np.uint8)
    _copy_line(target[3:], source[1:])
    assert target.tolist() == [0, 0, 0, *range(1, 65), 0, 0, 0]
    assert "prefetch" in next(iter(_copy_line.inspect_asm().values()))


def test_numbers_at_an_address():
    memory = np.zeros(24, np.uint8)
    memory[:8].view("f4")[:] = 1.5, -2
    memory[8:16].view("f8")[:] = 0.1
    memory[16:].view("i8")[:] = -(2**62)
    out = np.zeros(2, np.float32)
    assert _scaled(out, memory.ctypes.data, 2.0) == (0.1, -(2**62))
    assert out.tolist() == [3.0, -4.0]


def test_a_barrier_keeps_a_store_that_a_later_one_hides():
    def stores(function) -> int:
        function(np.zeros(1, np.uint64))
        return next(iter(function.inspect_llvm().values())).count("store i64 1,")

    assert stores(_fenced) > stores(_unfenced)


def test_locks_are_of_the_open_file_and_of_one_byte(tmp_path: Path):
    path, byte = tmp_path / "locks", (1 << 48) - 4096
    path.touch()
    mine, other = (os.open(path, os.O_RDWR) for _ in range(2))
    try:
        assert _lock(mine, byte) == 0
        assert _lock(other, byte) == -1
        assert _lock(other, byte + 1) == 0
        assert _lock(other, byte - 1) == 0
        assert _unlock(mine, byte) == 0
        assert _lock(other, byte) == 0
        assert _lock(mine, byte) == -1
    finally:
        os.close(mine)
        os.close(other)


def test_a_closed_file_locks_nothing():
    assert _lock(-1, 0) == -1

"""The kernels compiled by numba, and the journaled block loop around them.

Imported only through accel.py, which knows whether numba is there. A mode is a kernel for an
element type, as one number, so that one compiled function serves all of them; what has no
mode runs in numpy. The bits are those of kernels.py: no fastmath, no fused multiply-add.

A block's old bytes are whole and published before its first store: a pass that saved each
element as it went could not be rolled back. Addresses are int64 numbers.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba import carray, float64, int64, njit, types
from numpy.typing import NDArray

from smbox.memory.compiled_ops import (
    LINE_NBYTES,
    address_of,
    barrier,
    copy_bytes,
    copy_line,
    float32_at,
    float64_at,
    int64_at,
    prefetch,
)
from smbox.memory.layout import PAGE_NBYTES
from smbox.memory.modes import Back, Mode

BLOCK_PAGES: Final = 2
BLOCK_NBYTES: Final = BLOCK_PAGES * PAGE_NBYTES
"""Bytes saved, published and changed at a time: from 4 to 16 KiB were measured on 100 and 528
MiB, and with 8 KiB (old and new bytes of a block lie in L1) elastic ran fastest."""

BYTES: Final = types.Array(types.uint8, 1, "C")
SOURCE: Final = types.Array(types.uint8, 1, "C", readonly=True)
WORDS: Final = types.Array(types.uint64, 1, "C")

# Compiled code takes its numbers from globals.
_REPLACE: Final = int(Mode.REPLACE)
_SUM_FLOAT32: Final = int(Mode.SUM_FLOAT32)
_SUM_FLOAT64: Final = int(Mode.SUM_FLOAT64)
_SUM_INT64: Final = int(Mode.SUM_INT64)
_ELASTIC_FLOAT32: Final = int(Mode.ELASTIC_FLOAT32)
_ELASTIC_FLOAT64: Final = int(Mode.ELASTIC_FLOAT64)
_MOVED: Final = int(Back.MOVED)
_DELTA: Final = int(Back.DELTA)
_OLD: Final = int(Back.OLD)


class Operand(NamedTuple):
    """What a kernel works with.

    Attributes:
        mode: a value of ``Mode``.
        source: address of the source's first byte.
        scale: factor of the floating kernels.
        whole: factor of the whole-number kernels.
    """

    mode: int
    source: int
    scale: float
    whole: int


@njit
def _sum(data: Any, source: Any, scale: Any) -> None:
    for i in range(data.size):
        data[i] += scale * source[i]


@njit
def _elastic(data: Any, source: Any, scale: Any) -> None:
    for i in range(data.size):
        data[i] += scale * (source[i] - data[i])


@njit
def _move(moved: Any, old: Any, scale: Any) -> None:
    for i in range(moved.size):
        moved[i] -= scale * (moved[i] - old[i])


@njit
def _delta(out: Any, source: Any, old: Any, scale: Any) -> None:
    for i in range(out.size):
        out[i] = scale * (source[i] - old[i])


@njit
def change_block(operand: Operand, data: int, at: int, nbytes: int) -> None:
    """Run the kernel on the block at address ``data``; its source is ``at`` bytes on."""
    source = operand.source + at
    floats, doubles = nbytes // 4, nbytes // 8
    scale = np.float32(operand.scale)
    if operand.mode == _REPLACE:
        copy_bytes(data, source, nbytes)
    elif operand.mode == _SUM_FLOAT32:
        _sum(carray(float32_at(data), floats), carray(float32_at(source), floats), scale)
    elif operand.mode == _ELASTIC_FLOAT32:
        _elastic(carray(float32_at(data), floats), carray(float32_at(source), floats), scale)
    elif operand.mode == _SUM_FLOAT64:
        here, there = carray(float64_at(data), doubles), carray(float64_at(source), doubles)
        _sum(here, there, operand.scale)
    elif operand.mode == _ELASTIC_FLOAT64:
        here, there = carray(float64_at(data), doubles), carray(float64_at(source), doubles)
        _elastic(here, there, operand.scale)
    elif operand.mode == _SUM_INT64:
        _sum(carray(int64_at(data), doubles), carray(int64_at(source), doubles), operand.whole)


@njit
def _save(old: int, data: int, source: int, nbytes: int) -> None:
    """Copy a block's old bytes, and have its source fetched meanwhile.

    Pages side by side: alone, each would wait for its address translation and first lines.
    """
    if nbytes != BLOCK_NBYTES:
        copy_bytes(old, data, nbytes)
        return
    for line in range(0, PAGE_NBYTES, LINE_NBYTES):
        for page in range(BLOCK_PAGES):
            there = line + page * PAGE_NBYTES
            copy_line(old + there, data + there)
            prefetch(source + there)


@njit
def change_blocks(
    operand: Operand, data: int, at: int, nbytes: int, old: int, progress: Any, progress_at: int
) -> None:
    """Save, publish and change block after block.

    Args:
        operand: kernel and source.
        data: address of the bytes to change.
        at: how many bytes of the source come before theirs.
        nbytes: how many.
        old: address that the old bytes go to.
        progress: words of the journal slot.
        progress_at: index of the word that counts the saved bytes.
    """
    done = 0
    while done < nbytes:
        count = min(BLOCK_NBYTES, nbytes - done)
        _save(old + done, data + done, operand.source + at + done, count)
        barrier()
        progress[progress_at] = done + count
        barrier()
        change_block(operand, data + done, at + done, count)
        done += count
    barrier()


@njit
def give_back(how: int, back: int, operand: Operand, at: int, nbytes: int, old: int) -> None:
    """Hand a caller its share of a finished commit, while the old bytes are in cache.

    Args:
        how: a value of ``Back``.
        back: address of the caller's bytes.
        operand: kernel and source of the commit.
        at: how many bytes of the source come before the commit's.
        nbytes: length of the commit.
        old: address of its old bytes.
    """
    source = operand.source + at
    floats, doubles = nbytes // 4, nbytes // 8
    if how == _OLD:
        copy_bytes(back, old, nbytes)
    elif operand.mode == _ELASTIC_FLOAT32:
        out, was = carray(float32_at(back), floats), carray(float32_at(old), floats)
        if how == _MOVED:
            _move(out, was, np.float32(operand.scale))
        elif how == _DELTA:
            _delta(out, carray(float32_at(source), floats), was, np.float32(operand.scale))
    elif operand.mode == _ELASTIC_FLOAT64:
        wide, before = carray(float64_at(back), doubles), carray(float64_at(old), doubles)
        if how == _MOVED:
            _move(wide, before, operand.scale)
        elif how == _DELTA:
            _delta(wide, carray(float64_at(source), doubles), before, operand.scale)


@njit(
    types.void(int64, BYTES, SOURCE, BYTES, float64, int64, WORDS, int64),
    nogil=True,
    cache=True,
)
def journaled(
    mode: int,
    data: NDArray[np.uint8],
    source: NDArray[np.uint8],
    old: NDArray[np.uint8],
    scale: float,
    whole: int,
    progress: NDArray[np.uint64],
    progress_at: int,
) -> None:
    """Do what ``kernels.journaled`` does, in blocks; the caller has checked all lengths."""
    operand = Operand(mode, address_of(source), scale, whole)
    change_blocks(
        operand, address_of(data), 0, data.size, address_of(old), progress, progress_at
    )


@njit(
    types.void(WORDS, int64, int64, float64, int64, BYTES, SOURCE, SOURCE),
    nogil=True,
    cache=True,
)
def give_back_once(
    last: NDArray[np.uint64],
    mark: int,
    mode: int,
    scale: float,
    how: int,
    back: NDArray[np.uint8],
    source: NDArray[np.uint8],
    old: NDArray[np.uint8],
) -> None:
    """Do what ``give_back`` does, unless ``last[0]`` is ``mark`` already; then set it.

    Both in one call, which no signal handler of Python's can divide.
    """
    if last[0] == mark or back.size != old.size or source.size != old.size:
        return
    operand = Operand(mode, address_of(source), scale, 0)
    give_back(how, address_of(back), operand, 0, old.size, address_of(old))
    barrier()
    last[0] = mark

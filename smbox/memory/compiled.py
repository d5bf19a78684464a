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
    address_of,
    barrier,
    copy_bytes,
    float32_at,
    float64_at,
    int64_at,
)
from smbox.memory.compiled_tuning import (
    BLOCK_NBYTES,
    COPIED_NBYTES,
    STEP_NBYTES,
    fetch_ahead,
    save,
)
from smbox.memory.modes import Back, Mode

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
_NONE: Final = int(Back.NONE)
_MOVED: Final = int(Back.MOVED)
_DELTA: Final = int(Back.DELTA)
_OLD: Final = int(Back.OLD)


class Operand(NamedTuple):
    """What a kernel works with, and what its caller wants of it.

    Attributes:
        mode: a value of ``Mode``.
        source: address of the source's first byte.
        scale: factor of the floating kernels.
        whole: factor of the whole-number kernels.
        how: a value of ``Back``.
        back: address of the caller's first byte, where ``how`` is not NONE.
    """

    mode: int
    source: int
    scale: float
    whole: int
    how: int
    back: int


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
def _exchange(data: Any, moved: Any, scale: Any) -> None:
    for i in range(data.size):
        delta = scale * (moved[i] - data[i])
        data[i] += delta
        moved[i] -= delta


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
def give_back(operand: Operand, at: int, nbytes: int, old: int) -> None:
    """Hand a caller its share of what the kernel did to a block with these old bytes."""
    how, back, source = operand.how, operand.back + at, operand.source + at
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


@njit
def is_exchange(operand: Operand) -> bool:
    """Tell whether the caller's share is to move the source itself: ``exchange_block``."""
    is_elastic = operand.mode in (_ELASTIC_FLOAT32, _ELASTIC_FLOAT64)
    return is_elastic and operand.how == _MOVED and operand.back == operand.source


@njit
def exchange_block(operand: Operand, data: int, at: int, nbytes: int) -> None:
    """Do what ``change_block`` and ``give_back`` do, in one pass that needs no old bytes."""
    source, floats, doubles = operand.source + at, nbytes // 4, nbytes // 8
    if operand.mode == _ELASTIC_FLOAT32:
        here, there = carray(float32_at(data), floats), carray(float32_at(source), floats)
        _exchange(here, there, np.float32(operand.scale))
    else:
        wide, other = carray(float64_at(data), doubles), carray(float64_at(source), doubles)
        _exchange(wide, other, operand.scale)


@njit
def _change_saved(operand: Operand, data: int, at: int, nbytes: int, old: int) -> None:
    """Change a block whose old bytes are saved, and give back, step by step."""
    if operand.mode == _REPLACE:  # libc fetches ahead by itself
        change_block(operand, data, at, nbytes)
        give_back(operand, at, nbytes, old)
        return
    in_one_pass = is_exchange(operand)
    done = 0
    while done < nbytes:
        count = min(STEP_NBYTES, nbytes - done)
        fetch_ahead(data + done, operand.source + at + done, count)
        if in_one_pass:
            exchange_block(operand, data + done, at + done, count)
        else:
            change_block(operand, data + done, at + done, count)
            give_back(operand, at + done, count, old + done)
        done += count


@njit
def change_blocks(
    operand: Operand, data: int, at: int, nbytes: int, old: int, progress: Any, progress_at: int
) -> None:
    """Save, publish, change and give back block after block.

    The caller has its share before the commit is done: nothing comes between but the end of
    the process, and most callers' arrays end with it.

    Args:
        operand: kernel, source, and what its caller wants.
        data: address of the bytes to change.
        at: how many bytes of the source come before theirs.
        nbytes: how many.
        old: address that the old bytes go to.
        progress: words of the journal slot.
        progress_at: index of the word that counts the saved bytes.
    """
    block = COPIED_NBYTES if operand.mode == _REPLACE else BLOCK_NBYTES
    done = 0
    while done < nbytes:
        count = min(block, nbytes - done)
        save(old + done, data + done, operand.source + at + done, count)
        barrier()
        progress[progress_at] = done + count
        barrier()
        _change_saved(operand, data + done, at + done, count, old + done)
        done += count
    barrier()


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
    operand = Operand(mode, address_of(source), scale, whole, _NONE, 0)
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
    operand = Operand(mode, address_of(source), scale, 0, how, address_of(back))
    give_back(operand, 0, old.size, address_of(old))
    barrier()
    last[0] = mark

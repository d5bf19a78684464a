"""Copies past the caches, for ranges that would only sweep them.

libc does the same inside one very large copy, but a region is copied stripe by stripe, and
no stripe is large to it. x86 only: the stores want an ``sfence`` behind them.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from smbox.memory.compiled_ops import (
    LINE_NBYTES,
    VECTOR_NBYTES,
    Generated,
    copy_bytes,
    move_line,
)
from smbox.memory.layout import PAGE_NBYTES

STREAM_ABOVE_NBYTES: Final = 32 * 1024 * 1024
"""Measured: up to 32 MiB memmove wins by some 5 %, from 64 MiB on streaming by a half."""

PAGES: Final = 4
"""Pages that are copied side by side: alone, each would wait for its address translation and
for the first lines to be fetched. Four were a third faster than one on shared memory."""

_GROUP: Final = PAGES * PAGE_NBYTES


@intrinsic
def stream_line(_typing: Any, _target: Any, _source: Any) -> Generated:
    """Copy 64 bytes to an address that 64 divides, by stores that leave the caches alone."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        hint = builder.module.add_metadata([ir.IntType(32)(1)])
        for store in move_line(builder, *args, align=VECTOR_NBYTES):
            store.set_metadata("nontemporal", hint)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def store_fence(_typing: Any) -> Generated:
    """Make streamed stores visible before all later ones; the compiler keeps to it too."""

    def generate(_context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        nothing = ir.FunctionType(ir.VoidType(), [])
        name = "llvm.x86.sse.sfence"
        builder.call(cgutils.get_or_insert_function(builder.module, nothing, name), [])

    return types.void(), generate


@njit
def stream_bytes(target: int, source: int, nbytes: int) -> None:
    """Copy ``nbytes`` from one address to another past the caches; complete on return.

    Ranges that overlap are left to libc's memmove.
    """
    if abs(target - source) < nbytes:
        copy_bytes(target, source, nbytes)
        return
    head = min(nbytes, -target % LINE_NBYTES)
    copy_bytes(target, source, head)
    at = head
    while at + _GROUP <= nbytes:
        for line in range(at, at + PAGE_NBYTES, LINE_NBYTES):
            for page in range(PAGES):
                there = line + page * PAGE_NBYTES
                stream_line(target + there, source + there)
        at += _GROUP
    while at + LINE_NBYTES <= nbytes:
        stream_line(target + at, source + at)
        at += LINE_NBYTES
    copy_bytes(target + at, source + at, nbytes - at)
    store_fence()


@njit
def copy_share(target: int, source: int, nbytes: int, total: int) -> None:
    """Copy ``nbytes``, a share of ``total``: past the caches where those are too many."""
    if total > STREAM_ABOVE_NBYTES:
        stream_bytes(target, source, nbytes)
    else:
        copy_bytes(target, source, nbytes)

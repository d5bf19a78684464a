"""What compiled code needs and numba's Python has no words for; each is one intrinsic.

Addresses are plain int64 numbers here: the callers hold the arrays they come from.
"""

from __future__ import annotations

import fcntl
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

F_OFD_SETLK = 37
_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
VECTOR_NBYTES = 32
LINE_NBYTES = 64
_VECTOR = ir.VectorType(ir.IntType(8), VECTOR_NBYTES)
# struct flock of 64-bit Linux: type, whence, start, length, pid
_FLOCK = ir.LiteralStructType([_I16, _I16, _I32, _I64, _I64, _I32, _I32])

Generated = tuple[Signature, Any]


@intrinsic
def barrier(_typing: Any) -> Generated:
    """Let the compiler move no load or store across this point; no instruction of its own.

    x86 itself keeps stores in order among themselves, and loads among themselves.
    """

    def generate(_context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        nothing = ir.FunctionType(ir.VoidType(), [])
        builder.asm(nothing, "", "~{memory}", [], side_effect=True)

    return types.void(), generate


@intrinsic
def pause(_typing: Any) -> Generated:
    """Tell an x86 core that this is a waiting loop."""

    def generate(_context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        nothing = ir.FunctionType(ir.VoidType(), [])
        builder.call(
            cgutils.get_or_insert_function(builder.module, nothing, "llvm.x86.sse2.pause"), []
        )

    return types.void(), generate


@intrinsic
def address_of(_typing: Any, array: Any) -> Generated:
    """Return the address of an array's first element."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.ptrtoint(found.data, _I64)

    return types.int64(array), generate


@intrinsic
def copy_bytes(_typing: Any, _target: Any, _source: Any, _nbytes: Any) -> Generated:
    """Copy ``nbytes`` from one address to another with libc's memmove."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        to, by = builder.inttoptr(args[0], byte), builder.inttoptr(args[1], byte)
        cgutils.raw_memmove(builder, to, by, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def copy_line(_typing: Any, _target: Any, _source: Any) -> Generated:
    """Copy 64 bytes from one address to another, in place of a call."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        move_line(builder, *args, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def move_line(builder: Any, target: Any, source: Any, *, align: int) -> list[Any]:
    """Build the copy of 64 bytes; returns its stores, to which ``align`` is promised."""
    vector = _VECTOR.as_pointer()
    steps = [_I64(at) for at in range(0, LINE_NBYTES, VECTOR_NBYTES)]
    loaded = [
        builder.load(builder.inttoptr(builder.add(source, step), vector), align=1)
        for step in steps
    ]
    return [
        builder.store(value, builder.inttoptr(builder.add(target, step), vector), align=align)
        for step, value in zip(steps, loaded, strict=True)
    ]


@intrinsic
def prefetch(_typing: Any, _address: Any) -> Generated:
    """Ask for the line at an address, soon to be read; a wrong address does no harm."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        asking = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        ask = cgutils.get_or_insert_function(builder.module, asking, "llvm.prefetch.p0i8")
        to_read, keep, data = _I32(0), _I32(3), _I32(1)
        builder.call(ask, [builder.inttoptr(args[0], byte), to_read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


def _pointer(element: Any) -> Generated:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(element)(types.int64), generate


@intrinsic
def float32_at(_typing: Any, _address: Any) -> Generated:
    """Return the address as a pointer to float32, for ``carray``."""
    return _pointer(types.float32)


@intrinsic
def float64_at(_typing: Any, _address: Any) -> Generated:
    """Return the address as a pointer to float64, for ``carray``."""
    return _pointer(types.float64)


@intrinsic
def int64_at(_typing: Any, _address: Any) -> Generated:
    """Return the address as a pointer to int64, for ``carray``."""
    return _pointer(types.int64)


def _set_lock(kind: int) -> Generated:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        request = cgutils.alloca_once(builder, _FLOCK)
        fields = (_I16(kind), _I16(0), _I32(0), args[1], _I64(1), _I32(0), _I32(0))
        for at, value in enumerate(fields):
            builder.store(value, cgutils.gep_inbounds(builder, request, 0, at))
        call = ir.FunctionType(_I32, [_I32, _I32], var_arg=True)
        libc = cgutils.get_or_insert_function(builder.module, call, "fcntl")
        return builder.call(libc, [args[0], _I32(F_OFD_SETLK), request])

    return types.int32(types.int32, types.int64), generate


@intrinsic
def try_lock(_typing: Any, _fd: Any, _byte: Any) -> Generated:
    """Lock one byte of an open file (an OFD lock, never waiting); 0, or -1 if it is held."""
    return _set_lock(fcntl.F_WRLCK)


@intrinsic
def unlock(_typing: Any, _fd: Any, _byte: Any) -> Generated:
    """Release one byte of an open file; 0."""
    return _set_lock(fcntl.F_UNLCK)

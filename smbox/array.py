"""Arrays as arguments: conversion and checks of a caller's values before anything is sent.

An argument is one of
- a numpy array, or an object with the buffer protocol (bytes are uint8);
- an object of a type with a registered adapter (smbox_torch registers tensors);
- any other object with ``__array__``;
- Python numbers and nested lists of them, which have no dtype.

The first three must have the region's dtype. Numbers are converted to it, as in numpy: integers
must be exact, and of at most 64 bits; floats are rounded to the region's float dtype, and must
not overflow it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox.errors import LayoutMismatchError

Adapter = Callable[[Any], NDArray[Any]]

_ADAPTERS: dict[type | str, Adapter] = {}
BYTE: Final = np.dtype(np.uint8)
NARROW_NAMES: Final = frozenset({"float16", "bfloat16"})

_NO_ARRAY = (
    "no array: give a numpy array, a buffer, numbers, or a type with a registered adapter"
    " (for torch tensors: import smbox_torch; for others: smbox.register_adapter)"
)
_NO_FIT = "these numbers do not fit the dtype: give an array of it"


def register_adapter(kind: type | str, adapter: Adapter) -> None:
    """Register a function that converts objects of a type to numpy arrays.

    Afterwards all verbs accept such objects, and those of subclasses, as arrays.

    Args:
        kind: the class; or "module.Name" of a class, which need not be imported. An
            adapter is used before the buffer protocol.
        adapter: takes an object and returns a numpy array on the same memory, not a copy,
            because some verbs write to it. Raises TypeError if that is impossible.
    """
    _ADAPTERS[kind] = adapter


def source_array(
    value: Any,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    *,
    may_be_narrower: bool = False,
) -> NDArray[Any]:
    """Return ``value`` as a C-contiguous array to read from; a copy only if necessary.

    Args:
        value: any kind of array; may be read-only.
        dtype: dtype that the array must have.
        shape: shape that the array must have.
        may_be_narrower: allow float16 and bfloat16 for the dtype float32.

    Raises:
        TypeError: the value is not an array.
        LayoutMismatchError: the dtype or shape differs, or the dtype cannot hold the numbers.
    """
    array = value if type(value) is np.ndarray else typed_array(value)
    if array is None:
        array = _untyped(value, dtype)
    if array.dtype is not dtype or array.shape != shape:
        _check_layout(array, dtype, shape, may_be_narrower=may_be_narrower)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def output_array(
    value: Any,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    *,
    called: str = "out",
    may_be_narrower: bool = False,
) -> NDArray[Any]:
    """Return the memory of ``value`` as an array to write to.

    Args:
        value: an array whose memory can be shared.
        dtype: dtype that the array must have.
        shape: shape that the array must have.
        called: name of the argument, for errors.
        may_be_narrower: allow float16 and bfloat16 for the dtype float32.

    Raises:
        TypeError: the value is not such an array.
        LayoutMismatchError: the dtype or shape differs, or the array is read-only or not
            C-contiguous.
    """
    array = value if type(value) is np.ndarray else _shared_array(value)
    if array is None:
        raise TypeError(f"{called} is {type(value).__name__}: {_NO_ARRAY}")
    if array.dtype is not dtype or array.shape != shape:
        _check_layout(array, dtype, shape, may_be_narrower=may_be_narrower)
    flags = array.flags
    if not flags.writeable:
        raise LayoutMismatchError(f"{called} is read-only: give a writable array")
    if not flags.c_contiguous:
        raise LayoutMismatchError(
            f"{called} must be C-contiguous: give a contiguous array", strides=array.strides
        )
    return array


def as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """View a C-contiguous array as ``u8[nbytes]``."""
    flat = array if array.ndim == 1 else array.reshape(-1)
    return flat.view(BYTE)


def bytes_of(value: Any) -> NDArray[np.uint8]:
    """Return the bytes of an array of any dtype, ``u8[nbytes]``, to read from.

    Raises:
        TypeError: the value is not an array, or has no dtype.
    """
    array = typed_array(value)
    if array is None:
        raise TypeError(f"{type(value).__name__}: {_NO_ARRAY}; raw memory needs a dtype")
    return as_bytes(np.ascontiguousarray(array))


def _check_layout(
    array: NDArray[Any],
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    *,
    may_be_narrower: bool,
) -> None:
    is_narrower = dtype == np.float32 and array.dtype.name in NARROW_NAMES
    if array.dtype != dtype and not (may_be_narrower and is_narrower):
        raise LayoutMismatchError(
            "the array has another dtype than the region",
            given=str(array.dtype),
            region=str(dtype),
        )
    if array.shape != shape:
        raise LayoutMismatchError(
            "the array has another shape than the region", given=array.shape, region=shape
        )


def typed_array(value: Any) -> NDArray[Any] | None:
    """Return ``value`` as an array of its own dtype, or None if it has none.

    Raises:
        TypeError: the value's ``__array__`` raised an error.
    """
    array = _shared_array(value)
    if array is not None or not hasattr(value, "__array__"):
        return array
    try:
        return np.asarray(value)
    except Exception as error:
        raise TypeError(f"{type(value).__name__}: {_NO_ARRAY} ({error})") from error


def _shared_array(value: Any) -> NDArray[Any] | None:
    """Return an array on the memory of ``value``, or None if it cannot be shared."""
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray)
    for kind in type(value).__mro__:
        for key in (kind, f"{kind.__module__}.{kind.__qualname__}"):
            if key in _ADAPTERS:
                return _ADAPTERS[key](value)
    try:
        return np.asarray(memoryview(value))
    except TypeError:
        return None


def _untyped(value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert numbers to the region's dtype; raise LayoutMismatchError if one changes."""
    try:
        found = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise TypeError(f"{type(value).__name__}: {_NO_ARRAY} ({error})") from error
    if found.size == 0:
        return found.astype(dtype)
    if found.dtype == object and all(isinstance(each, int) for each in found.flat):
        raise LayoutMismatchError(_NO_FIT, region=str(dtype))  # beyond 64 bits
    if found.dtype.kind not in "biuf":
        raise TypeError(f"{type(value).__name__}: {_NO_ARRAY}")
    with np.errstate(all="ignore"):
        taken = found.astype(dtype)
    if found.dtype.kind == "f" and dtype.kind not in "biu":  # may be rounded
        fits = bool((np.isfinite(found) == np.isfinite(taken)).all())
    else:  # compared as Python's numbers: numpy would round large integers
        is_same_kind = (found.dtype.kind == "b") == (dtype.kind == "b")
        fits = is_same_kind and taken.tolist() == np.array(value, object).tolist()
    if not fits:
        raise LayoutMismatchError(_NO_FIT, region=str(dtype))
    return taken

"""What counts as an array: every check of a caller's values, before anything is sent.

A value is one of
- a numpy array, or anything with the buffer protocol (bytes are uint8);
- of a type that somebody registered an adapter for (smbox_torch does for tensors);
- anything else with ``__array__``;
- values without a type of their own: Python numbers and nested lists of them.

The first three must have the region's dtype. The last take it, as Python numbers do in numpy:
an integer must be exact, a float is rounded to the region's float type but never overflows it.
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


def register_adapter(kind: type | str, adapter: Adapter) -> None:
    """Teach smbox that values of ``kind`` (and its subclasses) are arrays.

    Args:
        kind: the class, or "module.Name" of a class that need not be imported yet; what is
            registered for a class itself comes first.
        adapter: returns a numpy array on the same memory, without a copy: verbs that fill or
            move an array write through it. It raises TypeError for a value it cannot share.
    """
    _ADAPTERS[kind] = adapter


def source_array(
    value: Any,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    *,
    may_be_narrower: bool = False,
) -> NDArray[Any]:
    """Return ``value`` as a C-contiguous array of this dtype and shape, to read from.

    The value's own memory wherever that is possible; it may be read-only. One that
    ``may_be_narrower`` is of float16 or bfloat16 where the dtype is float32.

    Raises:
        TypeError: it is no array.
        LayoutMismatchError: another dtype or shape, or numbers that the dtype cannot hold.
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
    """Return the memory of ``value`` as an array of this dtype and shape, to write to.

    One that ``may_be_narrower`` is of float16 or bfloat16 where the dtype is float32.

    Raises:
        TypeError: it is no array whose memory can be shared.
        LayoutMismatchError: another dtype or shape, read-only, or not C-contiguous.
    """
    array = value if type(value) is np.ndarray else _shared_array(value)
    if array is None:
        raise TypeError(f"{called} is {type(value).__name__}: {_NO_ARRAY}")
    if array.dtype is not dtype or array.shape != shape:
        _check_layout(array, dtype, shape, may_be_narrower=may_be_narrower)
    flags = array.flags
    if not flags.writeable:
        raise LayoutMismatchError(f"{called} is read-only")
    if not flags.c_contiguous:
        raise LayoutMismatchError(f"{called} must be C-contiguous", strides=array.strides)
    return array


def as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """View a C-contiguous array as ``u8[nbytes]``."""
    line = array if array.ndim == 1 else array.reshape(-1)
    return line.view(BYTE)


def bytes_of(value: Any) -> NDArray[np.uint8]:
    """Return the bytes of an array of any dtype, C-contiguous, to read from.

    Raises:
        TypeError: no array, or numbers without a type.
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
    """Return ``value`` as an array of its own dtype, or None where it has none.

    Raises:
        TypeError: it has ``__array__``, which refuses.
    """
    array = _shared_array(value)
    if array is not None or not hasattr(value, "__array__"):
        return array
    try:
        return np.asarray(value)
    except Exception as error:
        raise TypeError(f"{type(value).__name__}: {_NO_ARRAY} ({error})") from error


def _shared_array(value: Any) -> NDArray[Any] | None:
    """Return an array on the memory of ``value``, or None where it has none to share."""
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray)
    for kind in type(value).__mro__:
        if kind in _ADAPTERS:
            return _ADAPTERS[kind](value)
    try:
        return np.asarray(memoryview(value))
    except TypeError:
        return _named_array(value)


def _named_array(value: Any) -> NDArray[Any] | None:
    """Return an array by an adapter that is registered for the name of a class."""
    for kind in type(value).__mro__:
        if adapter := _ADAPTERS.get(f"{kind.__module__}.{kind.__qualname__}"):
            return adapter(value)
    return None


def _untyped(value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Give numbers the region's dtype, if that changes none of them."""
    try:
        found = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise TypeError(f"{type(value).__name__}: {_NO_ARRAY} ({error})") from error
    if found.size == 0:
        return found.astype(dtype)
    if found.dtype.kind not in "biuf":
        raise TypeError(f"{type(value).__name__}: {_NO_ARRAY}")
    with np.errstate(all="ignore"):
        taken = found.astype(dtype)
    if not _keeps(found, taken):
        raise LayoutMismatchError(
            "these numbers do not fit the region's dtype", region=str(dtype)
        )
    return taken


def _keeps(found: NDArray[Any], taken: NDArray[Any]) -> bool:
    """Tell whether no number changed, but for the rounding of floats to a float type."""
    if found.dtype.kind == "f" and taken.dtype.kind not in "biu":
        return bool((np.isfinite(found) == np.isfinite(taken)).all())
    if (found.dtype.kind == "b") != (taken.dtype.kind == "b"):
        return False
    with np.errstate(all="ignore"):
        back = taken.astype(found.dtype)
    same_sign = (taken < 0) == (found < 0)
    return bool(((back == found) & same_sign).all())

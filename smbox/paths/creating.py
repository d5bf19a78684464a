"""Creation of regions; one with initial contents becomes visible once it holds them all."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from smbox import dtypes
from smbox.array import as_bytes, source_array, typed_array
from smbox.deadline import deadline_of, left_s, optional_timeout_s
from smbox.dtypes import DType
from smbox.errors import (
    ConfigError,
    RegionExistsError,
    RegionFreedError,
    RegionNotFoundError,
)
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import Consistency
from smbox.memory.region_header import check_same_layout
from smbox.paths.control import new_token
from smbox.paths.pair import PathPair
from smbox.paths.requests import CreateRequest, Operation, RegionInfo
from smbox.wire.header import NO_SCALE

CONSISTENCIES: Final = {name: value for value, name in Consistency.NAMES.items()}


def describe(
    name: str, shape: int | tuple[int, ...] | None, dtype: Any, init: Any, consistency: str
) -> tuple[CreateRequest, NDArray[Any] | None]:
    """Turn the arguments of a caller into a request and the initial contents.

    Returns:
        The request, and the contents; None if all elements begin with the same number.

    Raises:
        ConfigError, LayoutMismatchError, TypeError: the arguments are invalid.
    """
    if consistency not in CONSISTENCIES:
        raise ConfigError(
            f"consistency is one of {', '.join(CONSISTENCIES)}", consistency=consistency
        )
    if isinstance(init, np.generic):
        init = init.item()
    array = None if init is None or isinstance(init, bool | int | float) else init
    element = _dtype(dtype, array)
    extent = _shape(shape, array)
    request = CreateRequest(name, element, extent, consistency=CONSISTENCIES[consistency])
    if array is not None:
        return request, source_array(array, element.numpy, extent)
    if init is not None:
        request = replace(request, init=source_array(init, element.numpy, ()).item())
    return request, None


def create(
    paths: PathPair,
    request: CreateRequest,
    values: NDArray[Any] | None,
    deadline_s: float | None,
    token: bytes | None = None,
) -> RegionInfo:
    """Create a region; with ``values`` it becomes visible once it holds them.

    Without a deadline, the timeout of the box restarts as long as the node makes the region,
    and whenever some of the values are written.

    Args:
        paths: paths to the node.
        request: description of the region.
        values: the first contents; None: ``request.init`` or zeros.
        deadline_s: deadline of the creation.
        token: by which ``ControlPath.discard`` finds the region; None: a new one.

    Raises:
        RegionExistsError, LayoutMismatchError: the name is taken.
        OutOfMemoryError: the node has no memory for it; nothing is left.
        RegionFreedError: with ``values``, the node restarted repeatedly until the deadline;
            nothing is left.
    """
    token = token or new_token()
    if values is None:
        return _made(paths, request, deadline_s, token)
    limit_s = deadline_of(paths.timeout_s) if deadline_s is None else deadline_s
    while request.exist_ok:
        try:
            return _found(paths, request, deadline_s)
        except RegionNotFoundError as missing:
            # The call refers to its error: a traceback would keep callers' objects in a cycle.
            missing.with_traceback(None)
        try:
            return _create_filled(paths, request, values, deadline_s, token)
        except RegionExistsError:  # another client was faster; it may free the region again
            if left_s(limit_s) <= 0.0:
                with suppress(RegionNotFoundError):
                    return _found(paths, request, deadline_s)
                raise
    return _create_filled(paths, request, values, deadline_s, token)


def _made(
    paths: PathPair, request: CreateRequest, deadline_s: float | None, token: bytes
) -> RegionInfo:
    timeout_s, restarts = paths.request_s(deadline_s), deadline_s is None
    return paths.control().create(request, timeout_s, token, restarts=restarts)


def _found(paths: PathPair, request: CreateRequest, deadline_s: float | None) -> RegionInfo:
    found = paths.control().find(request.name, request.kind, paths.request_s(deadline_s))
    check_same_layout(found, request)
    return found


def _create_filled(
    paths: PathPair,
    request: CreateRequest,
    values: NDArray[Any],
    deadline_s: float | None,
    token: bytes,
) -> RegionInfo:
    """Create a region, fill it and publish it; repeat that if a restart of the node frees it.

    A restarted node keeps only published regions. No client has seen ours before, so it may be
    created again.
    """
    control, source = paths.control(), as_bytes(values)
    unpublished = replace(request, publish=False, exist_ok=False)
    while True:
        incarnation = control.node.incarnation
        try:
            ours = _made(paths, unpublished, deadline_s, token)
            contents = ours, "create", KernelCode.REPLACE, NO_SCALE, 0, source.size, source
            paths.finish(Operation(*contents), optional_timeout_s(deadline_s))
            control.publish(ours, paths.request_s(deadline_s))
        except RegionFreedError:
            if deadline_s is not None and left_s(deadline_s) <= 0.0:
                raise
            # A reply means that the node has sent WELCOME.
            control.stats(paths.request_s(deadline_s))
            if control.node.incarnation == incarnation:
                raise
        except BaseException:
            control.discard(token)
            raise
        else:
            return ours


def _dtype(dtype: Any, init: Any) -> DType:
    if isinstance(dtype, str | DType):
        return dtypes.by_name(str(dtype))
    if dtype is not None:
        try:
            return dtypes.of(np.dtype(dtype))
        except TypeError as error:
            message = 'not an element type: pass its name, such as "float32"'
            raise ConfigError(message, dtype=str(dtype)) from error
    array = None if init is None else typed_array(init)
    return dtypes.by_name("float32") if array is None else dtypes.of(array.dtype)


def _shape(shape: int | tuple[int, ...] | None, init: Any) -> tuple[int, ...]:
    if shape is None:
        if init is None:
            raise ConfigError("a region needs a shape, or an array as init")
        array = typed_array(init)
        return np.shape(init) if array is None else array.shape
    lengths = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    try:
        extent = tuple(int(length) for length in lengths)
    except (ValueError, OverflowError):  # no number, nan, inf
        extent = (-1,)
    if extent != lengths or min(extent, default=0) < 0:
        raise ConfigError("a shape consists of integers of at least 0", shape=lengths)
    return extent

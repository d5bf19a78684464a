"""Loads the native library once per process, and checks that it matches its sources."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from smbox.errors import NativeError
from smbox.native import compiling

HOW_TO_BUILD: Final = (
    "build it in the source tree with `make native` or `pip install -e .`, "
    "or install smbox again"
)


_FUNCTIONS: Final = {
    "smbox_commit": None,
    "smbox_read": None,
    "smbox_version": 2,
    "smbox_recover": 5,
    "smbox_take": 3,
    "smbox_leave": 2,
    "smbox_fence": 0,
    "smbox_level": 1,
    "smbox_dot": 5,
}
"""The functions of smbox/native/native.h, with their numbers of arguments: addresses or counts.

Two functions declare no arguments, which saves a third of the time of a small call. Their
callers pass pointers (``orders.Block.ref``) and integers of 32 bits.
"""

_HIGHEST_LEVEL: Final = 1


class Library(NamedTuple):
    """The loaded library with its two handles, and how it was built.

    Attributes:
        short: keeps the GIL during a call, for calls of microseconds.
        long: releases the GIL during a call.
        file: its file; the name ends with the hash of sources and flags.
        compiler: first line of ``cc --version``.
    """

    short: ctypes.PyDLL
    long: ctypes.CDLL
    file: Path
    compiler: str


def why_not_native(
    environ: Mapping[str, str] = os.environ, folder: Path = compiling.FOLDER
) -> str | None:
    """Return why this process has no native library; None if it has one. Loads nothing.

    Raises:
        NativeError: the library was built from other sources than those beside it, or these
            cannot be read.
    """
    unwanted = compiling.why_unwanted(environ)
    if unwanted is not None:
        return unwanted
    try:
        wanted = compiling.file_name(folder)
    except OSError as error:
        raise NativeError(f"the native library's sources cannot be read: {error}") from error
    if (folder / wanted).is_file():
        return None
    stale = compiling.built_files(folder)
    if stale:
        raise NativeError(
            "the native library was not built from the sources and flags beside it: "
            f"{HOW_TO_BUILD}",
            found=stale[0].name,
            expected=wanted,
        )
    return f"the native library is not built: {HOW_TO_BUILD}"


@functools.cache
def load() -> Library:
    """Return the native library, loading it at the first call.

    Raises:
        NativeError: it is missing, stale, switched off or cannot be loaded.
    """
    why_not = why_not_native()
    if why_not is not None:
        raise NativeError(why_not)
    file = compiling.FOLDER / compiling.file_name()
    try:
        short, long = ctypes.PyDLL(str(file)), ctypes.CDLL(str(file))
    except OSError as error:
        raise NativeError(
            f"the native library cannot be loaded ({error}): {HOW_TO_BUILD}", file=str(file)
        ) from error
    for handle in (short, long):
        for name, arguments in _FUNCTIONS.items():
            function = getattr(handle, name)
            if arguments is not None:
                function.argtypes = (ctypes.c_size_t,) * arguments
            function.restype = ctypes.c_size_t
    short.smbox_level(_HIGHEST_LEVEL)
    compiler = ctypes.c_char_p.in_dll(long, "smbox_build_compiler").value or b""
    return Library(short, long, file, compiler.decode(errors="replace"))

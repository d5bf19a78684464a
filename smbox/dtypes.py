"""Element types of regions: names, wire codes and numpy dtypes. Pure.

Region headers and messages contain the codes, so a code is never reused. numpy has no bfloat16:
it is imported from ml_dtypes on first use.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from msgspec import Struct

from smbox.errors import ConfigError

Kind = Literal["bool", "int", "uint", "float"]


class DType(Struct, frozen=True, dict=True):
    """One element type.

    Attributes:
        name: name in numpy (or ml_dtypes).
        code: number in headers and messages.
        itemsize: bytes of an element.
        kind: kind of arithmetic.
    """

    name: str
    code: int
    itemsize: int
    kind: Kind

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype, in the byte order of this machine.

        Raises:
            ConfigError: the type is bfloat16, and ml_dtypes is not installed.
        """
        if self.name != "bfloat16":
            return np.dtype(self.name)
        try:
            import ml_dtypes  # noqa: PLC0415 - an optional dependency, for bfloat16
        except ImportError as error:
            raise ConfigError("bfloat16 needs ml_dtypes: pip install 'smbox[bf16]'") from error
        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found

    def __hash__(self) -> int:
        """Return the code; hashing all four values takes ten times as long."""
        return self.code

    def __str__(self) -> str:
        """Return the name."""
        return self.name


TABLE: Final[tuple[DType, ...]] = (
    DType("bool", 1, 1, "bool"),
    DType("int8", 2, 1, "int"),
    DType("int16", 3, 2, "int"),
    DType("int32", 4, 4, "int"),
    DType("int64", 5, 8, "int"),
    DType("uint8", 6, 1, "uint"),
    DType("uint16", 7, 2, "uint"),
    DType("uint32", 8, 4, "uint"),
    DType("uint64", 9, 8, "uint"),
    DType("float16", 10, 2, "float"),
    DType("bfloat16", 11, 2, "float"),
    DType("float32", 12, 4, "float"),
    DType("float64", 13, 8, "float"),
)

_BY_NAME: Final = {dtype.name: dtype for dtype in TABLE}
_BY_CODE: Final = {dtype.code: dtype for dtype in TABLE}


def by_name(name: str) -> DType:
    """Return the element type called ``name``.

    Raises:
        ConfigError: no element type has this name.
    """
    found = _BY_NAME.get(name)
    if found is None:
        raise ConfigError("no such element type", dtype=name, known=", ".join(_BY_NAME))
    return found


def by_code(code: int) -> DType:
    """Return the element type with number ``code``.

    Raises:
        ConfigError: no type has this number: a newer release wrote it, or it is damaged.
    """
    found = _BY_CODE.get(code)
    if found is None:
        raise ConfigError(
            "no element type has this code; was it written by a newer smbox?", code=code
        )
    return found


def of(dtype: np.dtype[Any]) -> DType:
    """Return the element type of a numpy dtype.

    Raises:
        ConfigError: a region cannot hold this dtype, or it is not in native byte order.
    """
    if not dtype.isnative:
        raise ConfigError("elements must be in native byte order", dtype=dtype.str)
    return by_name(dtype.name)

"""The element types of a region: their names, their wire codes and what numpy calls them. Pure.

A code stands in region headers and in messages, so it is never reused. bfloat16 is no type
of numpy's own: it is loaded from ml_dtypes when somebody first asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

import numpy as np

from smbox.errors import ConfigError

Kind = Literal["bool", "int", "uint", "float"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    Attributes:
        name: numpy's (or ml_dtypes') name of it.
        code: its number in headers and messages.
        itemsize: bytes of an element.
        kind: what arithmetic it has.
    """

    name: str
    code: int
    itemsize: int
    kind: Kind

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype, in the byte order of this machine.

        Raises:
            ConfigError: bfloat16 without ml_dtypes.
        """
        return _numpy(self.name)

    def __hash__(self) -> int:
        """Return the code: the four values together take ten times as long."""
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
        ConfigError: no region can hold elements of that name.
    """
    found = _BY_NAME.get(name)
    if found is None:
        raise ConfigError("no such element type", dtype=name, known=", ".join(_BY_NAME))
    return found


def by_code(code: int) -> DType:
    """Return the element type of number ``code``.

    Raises:
        ConfigError: no type has this number: a newer writer, or a damaged header.
    """
    found = _BY_CODE.get(code)
    if found is None:
        raise ConfigError("no element type has this code", code=code)
    return found


def of(dtype: np.dtype[Any]) -> DType:
    """Return the element type that a numpy dtype is.

    Raises:
        ConfigError: a type that no region can hold, or one in foreign byte order.
    """
    if not dtype.isnative:
        raise ConfigError("elements must be in native byte order", dtype=dtype.str)
    return by_name(dtype.name)


@cache
def _numpy(name: str) -> np.dtype[Any]:
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes  # noqa: PLC0415 - an extra: only bfloat16 needs it
    except ImportError as error:
        raise ConfigError("bfloat16 needs ml_dtypes: pip install smbox[bf16]") from error
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found

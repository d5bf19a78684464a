"""The dtypes of a center and of its exchanges, and error feedback for rounded operands.

There are three dtypes: the model's, the center's (float32 or wider, so that small moves add
up), and the wire's, in which a worker sends. The residual of rounding an operand for the wire
is added to the next operand (error feedback: Seide et al., 1-bit SGD, Interspeech 2014). So
over many exchanges the sum of the operands is that of the values, except for the last residual.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from smbox.errors import ConfigError
from smbox_torch.adapter import as_array
from smbox_torch.boxes import Array, RegionLike

__all__ = ["FLOATS", "Precision", "Sender"]

FLOATS: Final = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
"""Dtypes of parameters, centers and wires by name."""

HALVES: Final = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Precision:
    """The dtypes of the center and the wire.

    Args:
        center_dtype: dtype of the center, unless the model's is wider.
        wire: dtype in which a worker sends and fetches; None: the model's.
        is_exact: send and fetch in the center's dtype, regardless of the wire.

    Raises:
        TypeError: a dtype is not a string.
        ConfigError: a dtype is not in FLOATS.
    """

    center_dtype: str = "float32"
    wire: str | None = None
    is_exact: bool = False

    def __post_init__(self) -> None:
        for argument in ("center_dtype", "wire"):
            name = getattr(self, argument)
            if name is None and argument == "wire":
                continue
            if not isinstance(name, str):
                raise TypeError(
                    f'{argument} must be the name of a dtype, such as "bfloat16", not'
                    f" {type(name).__name__}"
                )
            if name not in FLOATS:
                raise ConfigError(f"{argument} must be one of {', '.join(FLOATS)}", got=name)

    def center_of(self, dtype: torch.dtype) -> torch.dtype:
        """Return the center's dtype for parameters of this one."""
        return torch.promote_types(dtype, FLOATS[self.center_dtype])

    def wire_of(self, dtype: torch.dtype) -> torch.dtype:
        """Return the wire's dtype for parameters of this one.

        Raises:
            ConfigError: it is neither the center's nor a half of a float32 center.
        """
        center = self.center_of(dtype)
        if self.is_exact:
            return center
        wanted = dtype if self.wire is None else FLOATS[self.wire]
        if wanted == center or (center == torch.float32 and wanted in HALVES):
            return wanted
        if self.wire is None:
            return center
        raise ConfigError(
            "a wire has the center's dtype, or float16 or bfloat16 for a center of float32",
            wire=self.wire,
            center=str(center),
        )


class Sender:
    """Convert operands to the wire's dtype for one region, and fetch in that dtype.

    Args:
        size: number of elements, P.
        center: dtype of the region.
        wire: dtype of the operands.
    """

    def __init__(self, size: int, center: torch.dtype, wire: torch.dtype) -> None:
        self.is_exact = center == wire
        self.nbytes = size * wire.itemsize
        if not self.is_exact:
            self._sum = torch.zeros(size, dtype=center, device="cpu")
            self._residual = torch.zeros(size, dtype=center, device="cpu")
            self._sent = torch.empty(size, dtype=wire, device="cpu")

    def operand(self, values: Array) -> Array:
        """Return values plus the residual of earlier operands, rounded to the wire's dtype.

        Args:
            values: ``[P]`` of the center's dtype.

        Returns:
            ``values`` itself if nothing is rounded; else memory that the next call overwrites.

        Raises:
            ConfigError: a value is too large for the wire's dtype; the residual is unchanged.
        """
        if self.is_exact:
            return values
        torch.add(self._residual, torch.from_numpy(values), out=self._sum)
        self._sent.copy_(self._sum)
        if self._sent.dtype == torch.float16 and self._is_too_large():
            raise ConfigError("a value is too large for float16: use wire='bfloat16'")
        torch.sub(self._sum, self._sent, out=self._residual)
        self._residual.nan_to_num_(0.0, 0.0, 0.0)  # of NaN and infinities nothing is owed
        return as_array(self._sent)

    @contextmanager
    def sending(self, values: Array) -> Iterator[Array]:
        """Yield the operand of values that the block sends; raises as :meth:`operand`.

        If the block fails, the caller sends the values again, and the residual is as before.
        """
        operand = self.operand(values)
        try:
            yield operand
        except BaseException:
            if not self.is_exact:
                torch.sub(self._sum, torch.from_numpy(values), out=self._residual)
                self._residual.nan_to_num_(0.0, 0.0, 0.0)
            raise

    def _is_too_large(self) -> bool:
        return bool((self._sent.isinf() & ~self._sum.isinf()).any())

    def fetch(self, region: RegionLike, out: Array) -> None:
        """Read a region, rounded to the wire's dtype."""
        if self.is_exact:
            region.get(out=out)
            return
        out[...] = region.get(out=as_array(self._sent))

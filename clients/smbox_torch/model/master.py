"""Master values: parameters in the center's dtype, where the model's is narrower.

Micikevicius et al.: Mixed precision training, ICLR 2018, keep float32 masters in the optimizer;
here the model's own steps stay in its dtype, and only exchanges are computed in the master's.
"""

from __future__ import annotations

import torch

__all__ = ["Master"]


class Master:
    """The values of a flat tensor, and what rounding to its dtype has left out of them.

    Args:
        flat: ``[P]``, what the model holds; changed by others at any time.
        dtype: of the master; where it is the tensor's own nothing is kept.

    Attributes:
        wide: ``[P]`` of the master's dtype on the same device, as of the last :meth:`widen`;
            ``flat`` itself where it has that dtype.
    """

    def __init__(self, flat: torch.Tensor, dtype: torch.dtype) -> None:
        self._flat = flat
        self.wide = flat.to(dtype)
        self._rest = None if self.wide is flat else torch.zeros_like(self.wide)

    def values(self) -> torch.Tensor:
        """Return ``[P]`` of the master's dtype: what the model holds plus the rest.

        A rest is left out where somebody has set a value so small that it is no rounding error.
        """
        if self._rest is None:
            return self._flat
        limits = torch.finfo(self._flat.dtype)
        values = self._flat.to(self.wide.dtype)
        limit = values.abs().clamp_(min=limits.tiny).mul_(limits.eps)
        return values.add_(torch.where(self._rest.abs() <= limit, self._rest, 0.0))

    def widen(self) -> None:
        """Bring :meth:`values` to ``wide``."""
        if self._rest is not None:
            self.wide.copy_(self.values())

    def narrow(self) -> None:
        """Round ``wide`` to the model, and keep what that leaves out."""
        if self._rest is not None:
            self._flat.copy_(self.wide)
            torch.sub(self.wide, self._flat, out=self._rest)

    def subtract(self, move: torch.Tensor) -> None:
        """Move model and master by ``-move``, ``[P]`` of the master's dtype on any device."""
        self.widen()
        self.wide.sub_(move.to(self.wide.device))
        self.narrow()

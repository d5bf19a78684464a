"""Master values: parameters in the center's dtype, for models of a narrower dtype.

Micikevicius et al.: Mixed precision training, ICLR 2018, keep float32 masters in the optimizer;
here the model's own steps stay in its dtype, and only exchanges are computed in the master's.
"""

from __future__ import annotations

import torch

from smbox.errors import ConfigError

__all__ = ["Master"]


class Master:
    """The values of a flat tensor plus their rounding errors.

    Args:
        flat: ``[P]``, the model's values; other code may change them at any time.
        dtype: dtype of the master; if it is that of ``flat``, there are no rounding errors.

    Attributes:
        wide: ``[P]`` of the master's dtype on the same device, as of the last :meth:`widen`;
            ``flat`` itself if it has that dtype.
        rounding_error: ``[P]`` of the master's dtype on the same device, as of the last
            :meth:`narrow`; None if ``flat`` has that dtype.
    """

    def __init__(self, flat: torch.Tensor, dtype: torch.dtype) -> None:
        self._flat = flat
        self.wide = flat.to(dtype)
        self.rounding_error = None if self.wide is flat else torch.zeros_like(self.wide)

    def values(self) -> torch.Tensor:
        """Return ``[P]`` of the master's dtype: the model's values plus the rounding errors.

        A rounding error is dropped if the sum does not round to the model's value, which was
        then set by other code: so ``narrow`` does not change a model with these values.
        """
        if self.rounding_error is None:
            return self._flat
        values = self._flat.to(self.wide.dtype)
        exact = values + self.rounding_error
        return torch.where(exact.to(self._flat.dtype) == self._flat, exact, values)

    def widen(self) -> None:
        """Copy :meth:`values` to ``wide``."""
        if self.rounding_error is not None:
            self.wide.copy_(self.values())

    def narrow(self) -> None:
        """Round ``wide`` to the model's dtype, and keep the rounding errors.

        Raises:
            ConfigError: a finite value is too large for the model's dtype; the model is
                unchanged.
        """
        if self.rounding_error is not None and self.wide.numel():
            ends = torch.stack(self.wide.aminmax())
            if (ends.to(self._flat.dtype).isinf() & ends.isfinite()).any():
                raise ConfigError(
                    "a value of the center, or of a move from it, is too large for this model:"
                    " train in bfloat16 or float32, or clip the weights",
                    dtype=str(self._flat.dtype),
                    largest=ends.abs().max().item(),
                )
            self._flat.copy_(self.wide)
            torch.sub(self.wide, self._flat, out=self.rounding_error)

    def subtract(self, move: torch.Tensor) -> None:
        """Subtract ``move``, ``[P]`` of the master's dtype on any device; then ``narrow``."""
        self.widen()
        self.wide.sub_(move.to(self.wide.device))
        self.narrow()

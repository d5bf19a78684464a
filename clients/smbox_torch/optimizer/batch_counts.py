"""A model's integer buffers, as ``num_batches_tracked``: the most that anybody counted.

They lie in the region ``NAME.counts``, int64, which changes by an atomic maximum: who joins
late counts on from there, and a batch norm that weighs by its count (``momentum=None``) does
not take its first batch for the average of all.
"""

from __future__ import annotations

import numpy as np
import torch

from smbox_torch.boxes import Array, BoxLike, RegionLike
from smbox_torch.model.flat import named_counts, unique

__all__ = ["BatchCounts"]


class BatchCounts:
    """One worker's counts and their counterparts in the memory.

    Args:
        box: the memory.
        name: of the run.
        model: gives the counts; None: there are none.
    """

    def __init__(self, box: BoxLike, name: str, model: torch.nn.Module | None) -> None:
        self._tensors = [] if model is None else unique(named_counts(model).values())
        self._counts: Array = np.zeros(sum(each.numel() for each in self._tensors), np.int64)
        self._shared: RegionLike | None = None
        if self._tensors:
            self._shared = box.create(
                f"{name}.counts", shape=self._counts.shape, dtype="int64", exist_ok=True
            )

    @property
    def nbytes(self) -> int:
        """Bytes of an exchange: the counts, and the answer."""
        return 2 * self._counts.nbytes

    def hand_over(self) -> None:
        """Set the worker's counts and those that are exchanged to the larger of both."""
        first = 0
        for tensor in self._tensors:
            counts = self._counts[first : first + tensor.numel()]
            own = tensor.detach().cpu().reshape(-1).numpy()
            np.maximum(counts, own, out=counts)
            if (counts > own).any():
                tensor.copy_(torch.from_numpy(counts).view(tensor.shape))
            first += tensor.numel()

    def exchange(self) -> None:
        """Raise what is shared to what was handed over, and the other way round."""
        if self._shared is not None:
            found = self._shared.fetch_and_op(self._counts, op="max")
            np.maximum(self._counts, found, out=self._counts)

    def share(self) -> None:
        """Do both, so that the worker's counts and the shared ones are the same."""
        if self._tensors:
            with torch.no_grad():
                self.hand_over()
                self.exchange()
                self.hand_over()

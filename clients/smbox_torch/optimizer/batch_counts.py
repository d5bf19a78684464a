"""BatchCounts: shares the batch counts of a model's batch norms as their maximum.

The region ``NAME.counts``, int64, is updated by an atomic maximum. A worker that joins late
continues from the shared count, so that a batch norm that weights by its count
(``momentum=None``) does not treat its first batch as the first of the run. Other integer
buffers, such as the position in a queue, may fall again, so they stay the worker's own.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from smbox_torch.boxes import Array, BoxLike, RegionLike
from smbox_torch.model.buffers import named_counts
from smbox_torch.model.flat import unique

__all__ = ["BatchCounts"]

COUNT: Final = "num_batches_tracked"
"""The name that torch's batch norms give to their counts."""


class BatchCounts:
    """The counts of one worker and their region.

    Args:
        box: the memory box.
        name: name of the run.
        model: the model that has the counts; None: there are none.
    """

    def __init__(self, box: BoxLike, name: str, model: torch.nn.Module | None) -> None:
        counts = {} if model is None else named_counts(model)
        self._tensors = unique(counts[name] for name in counts if name.endswith(COUNT))
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
        """Set the model's counts and the buffer for exchanges to the larger of both."""
        first = 0
        for tensor in self._tensors:
            counts = self._counts[first : first + tensor.numel()]
            own = tensor.detach().cpu().reshape(-1).numpy()
            np.maximum(counts, own, out=counts)
            if (counts > own).any():
                tensor.copy_(torch.from_numpy(counts).view(tensor.shape))
            first += tensor.numel()

    def exchange(self) -> None:
        """Set the shared counts and the buffer for exchanges to the larger of both."""
        if self._shared is not None:
            found = self._shared.fetch_and_op(self._counts, op="max")
            np.maximum(self._counts, found, out=self._counts)

    def share(self) -> None:
        """Set the model's counts and the shared counts to the larger of both."""
        if self._tensors:
            with torch.no_grad():
                self.hand_over()
                self.exchange()
                self.hand_over()

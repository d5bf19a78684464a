"""Whether all ranks hold the same parameters, which only a load or a write can change.

The ranks compare digests in the first round, and in the first one after somebody other than a
step wrote parameters: who did it asks for that in the round. The optimizer's state counts too:
with another momentum the next step would part the ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import torch

from smbox.errors import ConfigError
from smbox_torch.model.digest import digest
from smbox_torch.model.tensor_versions import TensorVersions

__all__ = ["EqualState", "check_equal"]


class EqualState:
    """What one rank knows of its parameters and state since the ranks last agreed.

    Args:
        optimizer: whose they are.

    Attributes:
        is_due: whether the ranks have to compare.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._versions = TensorVersions(self._parameters())
        self.is_due = True

    def _parameters(self) -> Iterator[torch.Tensor]:
        return (p for group in self._optimizer.param_groups for p in group["params"])

    def detect_writes(self) -> None:
        """Look for writes, before this rank writes itself or asks the others to compare."""
        self.is_due |= self._versions.have_changed()

    def record_writes(self) -> None:
        """Know of this rank's own writes, which are the same on all ranks."""
        self._versions.record()

    def agreed(self) -> None:
        """Know that all ranks hold the same."""
        self.is_due = False
        self.record_writes()

    def digest(self) -> int:
        """Return a checksum of parameters and state; one pass over them."""
        return digest(self._tensors())

    def _tensors(self) -> Iterator[torch.Tensor]:
        for parameter in self._parameters():
            yield parameter
            state = self._optimizer.state.get(parameter, {})
            for _, found in sorted(state.items()):
                if isinstance(found, torch.Tensor):
                    yield found


def check_equal(digests: Mapping[int, int]) -> None:
    """Compare what the ranks hold.

    Args:
        digests: by rank.

    Raises:
        ConfigError: on all ranks: some differ. It names those that are not as most ranks are,
            of two halves those without the lowest rank.
    """
    counted = Counter(digests.values())
    usual, _ = counted.most_common(1)[0]  # of equally many the first one's
    ranks = sorted(rank for rank, found in digests.items() if found != usual)
    if ranks:
        names = " and ".join(map(str, ranks))
        raise ConfigError(
            f"rank {names} holds other parameters, or another optimizer's state, than the other"
            " ranks: load and change the model alike on all ranks, or load it before the"
            " optimizer is wrapped; start anew, or from a checkpoint",
            ranks=ranks,
            digests=dict(sorted(digests.items())),
        )

"""Detection of ranks whose parameters or optimizer states differ.

The ranks compare digests in the first round, and in the first round after anything other than
a step wrote parameters: the rank that detects the write requests the comparison. The digests
include the optimizer's state, because different momenta would make the ranks diverge.

Every round compares a checksum of the groups' settings, such as the learning rate: a scheduler
that follows the loss of one rank makes the ranks diverge, too.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch

from smbox.errors import ConfigError
from smbox_torch.model.digest import digest
from smbox_torch.model.order import order_of
from smbox_torch.model.tensor_versions import TensorVersions

__all__ = ["EqualState", "check_equal", "is_any_due"]


class EqualState:
    """Detects on one rank whether the ranks must compare parameters and state.

    Args:
        optimizer: the inner optimizer.
        model: that names the parameters, or None.

    Attributes:
        is_due: whether the ranks have to compare.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
        self._optimizer = optimizer
        self._order = zlib.crc32(str(order_of(optimizer, model)).encode())
        self._versions = TensorVersions(self._parameters())
        self.is_due = True

    def _parameters(self) -> Iterator[torch.Tensor]:
        return (p for group in self._optimizer.param_groups for p in group["params"])

    def detect_writes(self) -> None:
        """Detect writes; called before this rank's own writes and before each round."""
        self.is_due |= self._versions.have_changed()

    def record_writes(self) -> None:
        """Record this rank's own writes, which are the same on all ranks."""
        self._versions.record()

    def agreed(self) -> None:
        """Record that all ranks have equal parameters and states."""
        self.is_due = False
        self.record_writes()

    def due(self) -> int:
        """Return what the ranks compare in a round: settings, and whether a check is due."""
        return (self._settings() & ~1) | self.is_due

    def digest(self) -> int:
        """Return a checksum of parameters, their order, state and settings; one pass."""
        return digest(self._tensors()) ^ self._settings() ^ self._order

    def _settings(self) -> int:
        """Return a checksum of the groups' numbers, of four digits each.

        Hosts with other mathematical libraries differ in the last digits of a schedule.
        """
        found = [
            f"{number:.4g}"
            for group in self._optimizer.param_groups
            for value in map(group.get, self._optimizer.defaults)
            for number in _numbers(value)
        ]
        return zlib.crc32(" ".join(found).encode())

    def _tensors(self) -> Iterator[torch.Tensor]:
        for parameter in self._parameters():
            yield parameter
            state = self._optimizer.state.get(parameter, {})
            for _, found in sorted(state.items()):
                if isinstance(found, torch.Tensor):
                    yield found


def _numbers(value: object) -> list[float]:
    """Return the numbers in a setting; those on a device would have to be read."""
    if isinstance(value, torch.Tensor):
        value = value.tolist() if value.is_cpu else None
    each = value if isinstance(value, tuple | list) else (value,)
    return [number for number in each if isinstance(number, int | float)]


def is_any_due(dues: Sequence[int], present: Sequence[int]) -> bool:
    """Return whether the ranks compare digests.

    Args:
        dues: :meth:`EqualState.due` of each rank.
        present: ranks that have batches left; only their settings must be equal.
    """
    return any(due & 1 for due in dues) or len({dues[rank] for rank in present}) > 1


def check_equal(digests: Mapping[int, int]) -> None:
    """Compare the digests of the ranks.

    Args:
        digests: digests by rank.

    Raises:
        ConfigError: on all ranks: some digests differ. It names the ranks outside the majority;
            of two equal halves, those without the lowest rank.
    """
    counted = Counter(digests.values())
    usual, _ = counted.most_common(1)[0]  # in a tie, the first
    ranks = sorted(rank for rank, found in digests.items() if found != usual)
    if ranks:
        names = " and ".join(map(str, ranks))
        raise ConfigError(
            f"rank {names} has other parameters, another order of them, another optimizer state"
            " or another learning rate than the other ranks: build, load and change the model"
            " equally on all ranks, or load it before the optimizer is wrapped; change the"
            " learning rate after equal numbers of steps, and let no rank end an inner loop"
            " earlier than the others; restart, or resume from a checkpoint",
            ranks=ranks,
            digests=dict(sorted(digests.items())),
        )

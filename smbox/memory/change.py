"""What a commit is asked to do, and by what it is known again."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from smbox.memory.channels import ChannelRow, RingFile
from smbox.memory.kept_delta import KeptDelta
from smbox.memory.kernels import KernelCode


class Change(NamedTuple):
    """A kernel with its operand.

    Attributes:
        kernel: what to do with the range.
        source: as many bytes as the range has, of its dtype or of any; for COMPARE_SWAP,
            ARRIVE and WITHDRAW their own few words, for the SCATTER kernels indices and
            rows. C-contiguous.
        scale: factor of SUM, moving_rate of ELASTIC; else 1.
        delta: of ELASTIC, where its caller goes on with what is added.
    """

    kernel: KernelCode
    source: NDArray[Any]
    scale: int | float = 1
    delta: KeptDelta | None = None


class Receipt(NamedTuple):
    """By what a remote channel's change is known again.

    Attributes:
        row: the channel's row.
        number: the number of this change.
        ring: where its old bytes are kept for a repeated request; None if it answers none.
    """

    row: ChannelRow
    number: int
    ring: RingFile | None = None

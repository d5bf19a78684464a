"""SummedMean: the mean of gradients from sums by a process group, a ring, or a memory box.

After backward the ranks exchange one row of numbers each. Then the gradients, one flat tensor
per dtype, are summed and divided by the sum of weights. Gradients of 16 bits are summed in
float32. An exchange of rows without gradients synchronizes the ranks within a step.

    row       f64: WEIGHT, STEPS, IN_STEP, JOINED, DUE, DIGEST, then a flag per parameter: 1 if
              it has a gradient
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import torch

from smbox.errors import ConfigError
from smbox_torch.averaging.buckets import LOW_PRECISION, described
from smbox_torch.averaging.equal_state import check_equal, is_any_due
from smbox_torch.averaging.mean import Follow, GradientViews
from smbox_torch.averaging.packed import Packed, packed_nbytes
from smbox_torch.averaging.steps import behind, leads, step_mismatch

__all__ = ["FLAGS", "AllReduceSum", "Sum", "SummedMean", "flat_sizes", "wide_of"]

WEIGHT: Final = 0
STEPS: Final = 1
IN_STEP: Final = 2  # 1: before a collective operation within a step; 0: before a round
JOINED: Final = 3  # 1 + number of steps if this rank has no batches left; else 0
DUE: Final = 4  # odd: this rank requests a comparison of DIGEST, in a row after the sums
DIGEST: Final = 5
FLAGS: Final = 6  # columns before the flags


class Sum(Protocol):
    """Sums over all ranks, on one rank.

    Attributes:
        rank: rank of this worker in the group.
        size: number of ranks.
    """

    rank: int
    size: int

    def table(
        self, row: torch.Tensor, flats: Sequence[torch.Tensor], state: torch.Tensor
    ) -> torch.Tensor:
        """Send this rank's row and return the rows of all ranks, by rank.

        Args:
            row: ``f64[n]`` on the CPU; with weight 0, ``flats`` are ignored.
            flats: gradients, which may be sent already; empty: no sum follows.
            state: ``u8[m]`` buffers, which may be sent already.

        Returns:
            ``f64[size, n]`` on the CPU.
        """

    def total(self, flats: Sequence[torch.Tensor], weight: float) -> None:
        """Replace ``flats``, after ``table``, by the sum of all ranks' ``weight * flat``.

        The bits are the same on all ranks.
        """

    def share(self, state: torch.Tensor, source: int) -> None:
        """Replace ``state`` by that of rank ``source``."""

    def nbytes(self, flats: Sequence[torch.Tensor]) -> int:
        """Return the bytes that a sum transfers for this rank, both directions."""

    def close(self, *, steps: int | None) -> None:
        """Leave after ``steps`` steps; None: after an error."""


def flat_sizes(parameters: Sequence[torch.Tensor]) -> dict[torch.dtype, int]:
    """Return the number of elements of each dtype."""
    sizes: Counter[torch.dtype] = Counter()
    for each in parameters:
        sizes[each.dtype] += each.numel()
    return sizes


def wide_of(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which gradients of a dtype are summed."""
    return torch.float32 if dtype in LOW_PRECISION else dtype


class AllReduceSum:
    """Base of sums whose rows are summed, too, as tables in which each rank has filled its own.

    Args:
        rank: rank of this worker in the group.
        size: number of ranks.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def _add(self, tensor: torch.Tensor) -> None:
        """Replace a tensor, on any device, by its sum over all ranks."""
        raise NotImplementedError

    def share(self, state: torch.Tensor, source: int) -> None:
        """Replace ``state`` by that of rank ``source``."""
        raise NotImplementedError

    def table(
        self,
        row: torch.Tensor,
        flats: Sequence[torch.Tensor],  # noqa: ARG002 - `total` sums them
        state: torch.Tensor,  # noqa: ARG002 - `share` sends it
    ) -> torch.Tensor:
        """Return the rows of all ranks."""
        table = row.new_zeros((self.size, len(row)))
        table[self.rank] = row
        self._add(table)
        return table

    def total(self, flats: Sequence[torch.Tensor], weight: float) -> None:
        """Sum the gradients, with one all-reduce per dtype."""
        for flat in flats:
            if weight == 0.0:
                flat.zero_()  # without a batch it may hold any values, even NaN
            elif weight != 1.0:
                flat.mul_(weight)
            self._add(flat)

    def begin_alike(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy the tensors of the first rank to every rank.

        Raises:
            ConfigError: on all ranks: some have other dtypes or shapes; nothing was changed.
        """
        memory = torch.empty(0, dtype=torch.uint8, device=tensors[0].device)
        digest = zlib.crc32(described(tensors, (), 0).encode())
        row = torch.tensor([digest], dtype=torch.float64, device="cpu")
        found = self.table(row, (), memory)
        if (found != found[0]).any():
            raise ConfigError(
                "the ranks' models differ: give all ranks the same model and the same"
                " arguments",
                digests=[int(each) for each in found.flatten()],
            )
        packed = Packed(tensors, memory.new_zeros(packed_nbytes(tensors)))
        packed.store()
        self.share(packed.memory, 0)
        packed.load()


class SummedMean:
    """The mean of gradients, on one rank.

    Args:
        parameters: those that require gradients; the same on every rank.
        buffers: buffers that all ranks copy from the first rank with a batch; the same on
            every rank.
        by: computes the sums; closed with this object.

    Raises:
        ConfigError: parameters and buffers are on several devices.
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor], by: Sum
    ) -> None:
        device = parameters[0].device
        if any(buffer.device != device for buffer in buffers):
            raise ConfigError("buffers must be on the parameters' device", device=str(device))
        sizes = flat_sizes(parameters)
        self._flats = [torch.zeros(n, dtype=dtype, device=device) for dtype, n in sizes.items()]
        self._views = GradientViews(parameters, _views(parameters, self._flats))
        memory = torch.zeros(packed_nbytes(buffers), dtype=torch.uint8, device=device)
        self._state = Packed(buffers, memory)
        self._by = by
        self._row = torch.zeros(FLAGS + len(parameters), dtype=torch.float64, device="cpu")
        self._table: torch.Tensor | None = None
        self._is_leader: bool | None = None
        self.is_any_due = self.can_repeat = False
        self.ranks, self.nbytes = 0, by.nbytes(self._flats)

    def begin(self, weight: float, *, due: int) -> None:
        """Begin a round."""
        self._row[WEIGHT] = weight
        self._row[DUE] = due
        self._row[FLAGS:] = 1.0

    def take(self, index: int) -> None:
        """Add a gradient to the round; it is sent when all gradients are there."""
        if not self._views.take(index):
            self._row[FLAGS + index] = 0.0

    def finish(self) -> None:
        """Sum and divide."""
        wide = [flat.to(wide_of(flat.dtype)) for flat in self._flats]
        table = self._met(in_step=False, flats=wide)
        self._table = None
        if table[:, IN_STEP].any():
            raise _in_another_step(table)
        dues = [int(each) for each in table[:, DUE].tolist()]
        self.is_any_due = is_any_due(dues, _present(table))
        self._by.total(wide, self._row[WEIGHT].item())
        total = table[:, WEIGHT].sum().item()
        for flat, summed in zip(self._flats, wide, strict=True):
            if total != 1.0:
                summed.div_(total)
            if summed is not flat:
                flat.copy_(summed)
        counted = table[table[:, WEIGHT] != 0]
        self.ranks = len(counted)
        self._views.hand_out(counted[:, FLAGS:].any(dim=0).tolist())
        if self._state.memory.numel():
            self._by.share(self._state.memory, int((table[:, WEIGHT] != 0).int().argmax()))
            self._state.load()

    def _met(self, *, in_step: bool, flats: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the rows of all ranks, exchanged once per round or synchronization."""
        if self._table is None:
            self._row[IN_STEP] = in_step
            self._state.store()
            table = self._by.table(self._row, flats, self._state.memory)
            steps = [int(each) for each in table[:, STEPS].tolist()]
            skipped = behind(steps, _present(table))
            if skipped:
                raise step_mismatch(skipped, steps)
            self._table = table  # not before: a repeated round must find the mismatch, too
        return self._table

    def compare(self, digest: int) -> None:
        """Exchange one more row, without a sum, and compare the digests."""
        self._row[DIGEST] = digest
        table = self._by.table(self._row, (), self._state.memory)
        check_equal({rank: int(table[rank, DIGEST]) for rank in _present(table)})

    def stepped(self, steps: int) -> None:
        """Record the steps for the next row."""
        self._row[STEPS] = steps

    def meet(self) -> None:
        """Check that all ranks that have not joined are in this step."""
        table = self._met(in_step=True, flats=())
        self._table = None
        present = table[:, JOINED] == 0
        if (table[present, IN_STEP] == 0).any():
            raise _in_another_step(table)

    def join(self) -> None:
        """Record in the next row that this rank has no batches left."""
        self._row[JOINED] = 1.0 + self._row[STEPS]

    def follow(self, is_awaited: Callable[[], bool]) -> Follow:  # noqa: ARG002 - rows tell it
        """Return what the other ranks do next, as their rows show."""
        self._row[WEIGHT] = 0.0
        table = self._met(in_step=False, flats=self._flats)
        present = table[:, JOINED] == 0
        is_behind = bool((table[:, STEPS] > self._row[STEPS]).any())
        if is_behind or table[present, IN_STEP].any():
            return Follow.STEP
        if present.any():
            return Follow.ROUND
        self._table = None
        self._row[JOINED] = 0.0
        self._is_leader = leads(self._by.rank, table[:, JOINED].tolist())
        return Follow.END

    def is_leader(self) -> bool | None:
        """Return the result that the last rows gave."""
        return self._is_leader

    def close(self, *, steps: int | None) -> None:
        """Leave."""
        self._by.close(steps=steps)


def _views(
    parameters: Sequence[torch.Tensor], flats: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """View each parameter's part of the flat tensor of its dtype."""
    rests = {flat.dtype: flat for flat in flats}
    views = []
    for each in parameters:
        rest = rests[each.dtype]
        views.append(rest[: each.numel()].view(each.shape))
        rests[each.dtype] = rest[each.numel() :]
    return views


def _present(table: torch.Tensor) -> list[int]:
    """Return the ranks that have batches left."""
    found: list[int] = (table[:, JOINED] == 0).nonzero().flatten().tolist()
    return found


def _in_another_step(table: torch.Tensor) -> Exception:
    """Return the error that names the ranks that are not in the step of the others."""
    outside = ((table[:, IN_STEP] == 0) & (table[:, JOINED] == 0)).nonzero()
    return step_mismatch(outside.flatten().tolist())

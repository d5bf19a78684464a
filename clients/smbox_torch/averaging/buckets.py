"""The buckets of a model's parameters, and their places in the ranks' shared rows.

A bucket holds parameters of one dtype. Buckets are in the reverse order of the parameters,
which is roughly the order in which the backward pass completes their gradients. So the first
bucket is complete while the backward pass still runs.

    rows      one per rank: its gradients, bucket after bucket; later overwritten by their mean
    flags     u8[ranks, parameters]: whether a rank has a gradient for a parameter
    weights   f64[ranks]: weight of a rank's gradients
    state     buffers of the model, from the rank whose buffers are used
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from smbox.errors import ConfigError
from smbox.memory.layout import WORD_NBYTES, align

ALIGN_NBYTES: Final = 64  # of a bucket and of a tensor in it: a cache line
BLOCK_NBYTES: Final = 256 << 10
"""Block of a row that is averaged at once; the blocks of all rows stay in a core's cache."""

LOW_PRECISION: Final = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of parameters and its place in a row.

    Args:
        members: index of each parameter -> first byte of its gradient in the row, in order.
        first: first byte of the bucket in the row.
        limit: byte after the bucket in the row.
        dtype: dtype of all members.
    """

    members: dict[int, int]
    first: int
    limit: int
    dtype: torch.dtype


def plan(parameters: Sequence[torch.Tensor], bucket_nbytes: int) -> list[Bucket]:
    """Cut parameters into buckets of at most ``bucket_nbytes``, or of one larger parameter.

    Raises:
        ConfigError: there are no parameters, or one has no real floating-point dtype.
    """
    if not parameters or bucket_nbytes < 1:
        raise ConfigError("there must be parameters, and a bucket holds at least a byte")
    buckets: list[Bucket] = []
    for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
        if not dtype.is_floating_point:
            raise ConfigError("only floating-point parameters have a mean", dtype=str(dtype))
        own = [index for index, found in enumerate(parameters) if found.dtype == dtype]
        for members in _runs(parameters, own[::-1], bucket_nbytes):
            buckets.append(_place(parameters, members, buckets[-1].limit if buckets else 0))
    # A bucket of another dtype need not wait for the last bucket of the first dtype.
    return sorted(buckets, key=lambda bucket: -max(bucket.members))


def _runs(
    parameters: Sequence[torch.Tensor], order: Sequence[int], nbytes_max: int
) -> list[list[int]]:
    runs: list[list[int]] = []
    filled = 0
    for index in order:
        nbytes = align(parameters[index].nbytes, ALIGN_NBYTES)
        if not runs or filled + nbytes > nbytes_max:
            runs.append([])
            filled = 0
        runs[-1].append(index)
        filled += nbytes
    return runs


def _place(parameters: Sequence[torch.Tensor], members: Sequence[int], first: int) -> Bucket:
    firsts, at_byte = {}, first
    for index in members:
        firsts[index] = at_byte
        at_byte += align(parameters[index].nbytes, ALIGN_NBYTES)
    return Bucket(firsts, first, at_byte, parameters[members[0]].dtype)


class SharedRows:
    """The ranks' gradients, their mean, flags, weights and state in shared memory.

    Args:
        data: ``u8[shared_nbytes(...)]``.
        buckets: buckets of a row.
        ranks: number of rows.
        parameters: number of parameters.
    """

    def __init__(
        self, data: NDArray[np.uint8], buckets: Sequence[Bucket], ranks: int, parameters: int
    ) -> None:
        row_nbytes = _row_nbytes(buckets)
        memory = self._memory = torch.from_numpy(data)
        self._address = memory.data_ptr()
        self._rows = [memory[i * row_nbytes : (i + 1) * row_nbytes] for i in range(ranks)]
        self._buckets = buckets
        self._parts: dict[tuple[int, int], list[list[torch.Tensor]]] = {}
        rest = data[ranks * row_nbytes :]
        # Views of Python's: for so few numbers numpy takes ten times as long.
        self.weights = rest[: ranks * WORD_NBYTES].data.cast("d")
        flags = rest[ranks * WORD_NBYTES :][: ranks * parameters].reshape(ranks, -1)
        self.used = [row.data for row in flags]
        self.state = memory[shared_nbytes(buckets, ranks, parameters, 0) :]

    def check(self) -> None:
        """Raise ConfigError if torch has moved the rows out of the shared memory."""
        if self._memory.data_ptr() != self._address:
            raise ConfigError(
                "the gradients are not in the memory of the ranks any more: send clones of them"
                " through queues of torch.multiprocessing"
            )

    def view(self, row: int, first: int, like: torch.Tensor) -> torch.Tensor:
        """View the bytes of a row from ``first`` with the dtype and shape of ``like``."""
        return typed(self._rows[row], first, like)

    def bucket(self, row: int, index: int) -> torch.Tensor:
        """View a bucket of a row as ``[n]``."""
        bucket = self._buckets[index]
        return self._rows[row][bucket.first : bucket.limit].view(bucket.dtype)

    def reduce(self, index: int, part: int) -> None:
        """Replace part ``part`` of a bucket in all rows with the mean of the rows.

        A row of weight 0 is not read. One rank computes each part, so all rows get the same
        bits.
        """
        weights = self.weights.tolist()
        for block in self._blocks(index, part):
            weighed = zip(block, weights, strict=True)
            mean = average([(row, weight) for row, weight in weighed if weight])
            for row in block:
                if row is not mean:
                    row.copy_(mean)

    def _blocks(self, index: int, part: int) -> list[list[torch.Tensor]]:
        """Return the blocks of a part, as views of all rows; the views are cached."""
        if (index, part) not in self._parts:
            rows = [self.bucket(row, index) for row in range(len(self._rows))]
            size, step = rows[0].numel(), BLOCK_NBYTES // rows[0].itemsize
            first, limit = (size * each // len(rows) for each in (part, part + 1))
            self._parts[index, part] = [
                [row[at : min(at + step, limit)] for row in rows]
                for at in range(first, limit, step)
            ]
        return self._parts[index, part]


def average(rows: Sequence[tuple[torch.Tensor, float]]) -> torch.Tensor:
    """Return ``sum(weight * row) / sum(weight)``; 16-bit rows are averaged in 32 bits.

    The running mean moves towards each row by the row's share of the weights so far. This reads
    each row once, has no sum that could overflow, and leaves equal rows unchanged. The result
    is the first row, overwritten; for 16-bit rows it is a new tensor.
    """
    first, weights = rows[0]
    mean = first.float() if first.dtype in LOW_PRECISION else first
    for row, weight in rows[1:]:
        weights += weight
        mean.lerp_(row.to(mean.dtype), weight / weights)
    return mean


def typed(memory: torch.Tensor, first: int, like: torch.Tensor) -> torch.Tensor:
    """View ``u8`` memory from byte ``first`` with the dtype and shape of ``like``."""
    return memory[first : first + like.nbytes].view(like.dtype).view(like.shape)


def _row_nbytes(buckets: Sequence[Bucket]) -> int:
    return max(bucket.limit for bucket in buckets)


def shared_nbytes(
    buckets: Sequence[Bucket], ranks: int, parameters: int, state_nbytes: int
) -> int:
    """Return the number of bytes that ``SharedRows`` needs."""
    flags = align(ranks * (WORD_NBYTES + parameters), ALIGN_NBYTES)
    return ranks * _row_nbytes(buckets) + flags + state_nbytes


def described(parameters: Sequence[Any], buffers: Sequence[Any], bucket_nbytes: int) -> str:
    """Return a description of the rows, by which ranks detect different models."""
    shapes = [(str(each.dtype), tuple(each.shape)) for each in (*parameters, *buffers)]
    return f"{bucket_nbytes} {len(parameters)} {shapes}"

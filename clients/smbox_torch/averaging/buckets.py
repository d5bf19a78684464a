"""How parameters are cut into buckets, and where a bucket lies in the ranks' shared rows.

A bucket holds parameters of one dtype. Buckets follow the reverse order of the parameters,
which is roughly the order in which backward ends them, so that the first bucket is complete
while backward still runs.

    rows      one per rank: its gradients, bucket after bucket; then their mean, in their place
    flags     u8[ranks, parameters]: which parameters a rank has a gradient for
    weights   f64[ranks]: how much a rank's gradients count
    joined    u64[ranks]: how many times a rank has run out of batches; its steps at the last
    state     buffers of the model, from the rank that has the say
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
"""Of a row that is averaged at once: the rows' blocks stay in a core's cache until written."""

LOW_PRECISION: Final = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Some parameters and their place in a row.

    Args:
        members: indices of the parameters, in the order they lie.
        firsts: byte in the row where each member's gradient begins.
        first: byte in the row where the bucket begins.
        limit: byte in the row where it ends.
        dtype: of all members.
    """

    members: tuple[int, ...]
    firsts: tuple[int, ...]
    first: int
    limit: int
    dtype: torch.dtype


def plan(parameters: Sequence[torch.Tensor], bucket_nbytes: int) -> list[Bucket]:
    """Cut parameters into buckets of at most ``bucket_nbytes``, or of one parameter.

    Raises:
        ConfigError: no parameters, or one that is not of a real floating dtype.
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
    # A bucket of another dtype does not have to wait for the last one of the first dtype.
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
    firsts, at_byte = [], first
    for index in members:
        firsts.append(at_byte)
        at_byte += align(parameters[index].nbytes, ALIGN_NBYTES)
    return Bucket(tuple(members), tuple(firsts), first, at_byte, parameters[members[0]].dtype)


class SharedRows:
    """The ranks' gradients, their mean and what goes with them, in memory they share.

    Args:
        data: ``u8[shared_nbytes(...)]``.
        buckets: how a row is cut.
        ranks: how many rows there are.
        parameters: how many parameters there are.
    """

    def __init__(
        self, data: NDArray[np.uint8], buckets: Sequence[Bucket], ranks: int, parameters: int
    ) -> None:
        row_nbytes = _row_nbytes(buckets)
        memory = torch.from_numpy(data)
        self._rows = [memory[i * row_nbytes : (i + 1) * row_nbytes] for i in range(ranks)]
        self._buckets = buckets
        self._parts: dict[tuple[int, int], list[list[torch.Tensor]]] = {}
        rest = data[ranks * row_nbytes :]
        self.weights = rest[: ranks * WORD_NBYTES].view(np.float64)
        self.joined = rest[ranks * WORD_NBYTES : 2 * ranks * WORD_NBYTES].view(np.uint64)
        self.due = rest[2 * ranks * WORD_NBYTES : 3 * ranks * WORD_NBYTES].view(np.uint64)
        self.digests = rest[3 * ranks * WORD_NBYTES : 4 * ranks * WORD_NBYTES].view(np.uint64)
        self.used = rest[4 * ranks * WORD_NBYTES :][: ranks * parameters].reshape(ranks, -1)
        self.state = memory[shared_nbytes(buckets, ranks, parameters, 0) :]

    def view(self, row: int, first: int, like: torch.Tensor) -> torch.Tensor:
        """View the bytes from ``first`` of a row in dtype and shape of ``like``."""
        return typed(self._rows[row], first, like)

    def bucket(self, row: int, index: int) -> torch.Tensor:
        """View a bucket of a row as ``[n]``."""
        bucket = self._buckets[index]
        return self._rows[row][bucket.first : bucket.limit].view(bucket.dtype)

    def reduce(self, index: int, part: int) -> None:
        """Put the mean of part ``part`` of a bucket in place of that part in all rows.

        A rank of weight 0 is not read. One rank computes one part, so all have the same bits.
        """
        weights = self.weights.tolist()
        for block in self._blocks(index, part):
            weighed = zip(block, weights, strict=True)
            mean = average([(row, weight) for row, weight in weighed if weight])
            for row in block:
                if row is not mean:
                    row.copy_(mean)

    def _blocks(self, index: int, part: int) -> list[list[torch.Tensor]]:
        """Return the blocks of a part, as views of all rows; they are made once."""
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
    """Return ``sum(weight * row) / sum(weight)``; rows of 16 bits are averaged in 32.

    The mean moves from row to row by its share of the weights so far: one pass over each, no
    sum that could overflow, and equal rows stay as they are. It is made in the first row, so
    that nothing is copied; one of 16 bits is new.
    """
    first, weights = rows[0]
    mean = first.float() if first.dtype in LOW_PRECISION else first
    for row, weight in rows[1:]:
        weights += weight
        mean.lerp_(row.to(mean.dtype), weight / weights)
    return mean


def typed(memory: torch.Tensor, first: int, like: torch.Tensor) -> torch.Tensor:
    """View ``u8`` memory from byte ``first`` in dtype and shape of ``like``."""
    return memory[first : first + like.nbytes].view(like.dtype).view(like.shape)


def _row_nbytes(buckets: Sequence[Bucket]) -> int:
    return max(bucket.limit for bucket in buckets)


def shared_nbytes(
    buckets: Sequence[Bucket], ranks: int, parameters: int, state_nbytes: int
) -> int:
    """Return the bytes of memory that ``SharedRows`` needs."""
    flags = align(ranks * (4 * WORD_NBYTES + parameters), ALIGN_NBYTES)
    return ranks * _row_nbytes(buckets) + flags + state_nbytes


def described(parameters: Sequence[Any], buffers: Sequence[Any], bucket_nbytes: int) -> str:
    """Say what the rows mean, so that ranks of different models notice."""
    shapes = [(str(each.dtype), tuple(each.shape)) for each in (*parameters, *buffers)]
    return f"{bucket_nbytes} {len(parameters)} {shapes}"

"""Rings: slots in shared memory that micro-batches of one direction of a boundary go through.

A ring NAME of k slots is a region and two counters:

    NAME        u8[k * slot]: each slot is a header of HEADER_WORDS words, then a tensor's bytes
    NAME.sent   counter: messages that are whole; it is the signal of each put
    NAME.read   counter: messages that were copied out; the writer's credit

Message n goes into slot ``n % k``, after the counter of those read is at least ``n - k + 1``:
it never overwrites one that was not read. The reader makes the ring, and frees it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from smbox import Box, Counter, Region
from smbox.errors import RegionFreedError, RegionNotFoundError
from smbox_torch.adapter import dtype_name
from smbox_torch.pipeline_stages import Stages

__all__ = ["HEADER_WORDS", "Header", "Reader", "Spec", "Writer", "free_ring"]

HEADER_WORDS: Final = 8
HEADER_NBYTES: Final = 8 * HEADER_WORDS


class Spec(NamedTuple):
    """What a tensor is.

    Attributes:
        shape: of a micro-batch; its axis 0 is the largest number of rows.
        dtype: torch's name of it.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def slot_nbytes(self) -> int:
        """Bytes of a slot: header and elements, a whole number of headers."""
        nbytes = math.prod(self.shape) * self.torch_dtype.itemsize
        return HEADER_NBYTES * (1 + math.ceil(nbytes / HEADER_NBYTES))

    def fits(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is one of these, with as many rows or fewer."""
        return self.takes(Spec(tuple(tensor.shape), dtype_name(tensor.dtype)))

    def takes(self, other: Spec) -> bool:
        """Tell whether tensors of another kind are of this one, with as many rows or fewer."""
        return (
            (other.dtype, len(other.shape)) == (self.dtype, len(self.shape))
            and other.shape[1:] == self.shape[1:]
            and other.shape[0] <= self.shape[0]
        )

    def __str__(self) -> str:
        """Return dtype and shape."""
        return f"{self.dtype}{list(self.shape)}"


class Header(NamedTuple):
    """The words before a tensor.

    Attributes:
        batch: number of the batch, from 0.
        is_training: whether gradients will be wanted.
        micro_batch: which one of the batch.
        rows: of this tensor.
        batch_rows: of the whole batch.
        loss: of this micro-batch, its share of the batch's; 0 on the way forward.
    """

    batch: int
    is_training: bool
    micro_batch: int
    rows: int
    batch_rows: int
    loss: float = 0.0

    def words(self) -> NDArray[np.int64]:
        """Return ``i64[HEADER_WORDS]``; the last word holds the bits of the loss."""
        words = np.zeros(HEADER_WORDS, np.int64)
        words[:5] = self[:5]
        words[-1:].view(np.float64)[0] = self.loss
        return words

    @classmethod
    def of(cls, words: NDArray[np.int64]) -> Header:
        """Return what the words say."""
        batch, is_training, micro_batch, rows, batch_rows = map(int, words[:5])
        loss = float(words[-1:].view(np.float64)[0])
        return cls(batch, bool(is_training), micro_batch, rows, batch_rows, loss)


class _Ring:
    """One end of a ring.

    Attributes:
        name: of the ring.
        spec: of the tensors.
        peer: the stage at the other end.
        count: messages that went through this end.
        nbytes: of their tensors.
    """

    def __init__(self, box: Box, region: Region, spec: Spec, stages: Stages, peer: int) -> None:
        self.name = region.name
        self.spec = spec
        self.peer = peer
        self.count = 0
        self.nbytes = 0
        self._region = region
        self._sent = box.counter(f"{region.name}.sent")
        self._read = box.counter(f"{region.name}.read")
        self._stages = stages
        self._slots = region.nbytes // spec.slot_nbytes

    def _part(self, first: int, nbytes: int) -> Region:
        """Return bytes of the slot of the present message."""
        at = self.count % self._slots * self.spec.slot_nbytes + first
        return self._region[at : at + nbytes]

    @contextlib.contextmanager
    def _naming_who_left(self) -> Iterator[None]:
        try:
            yield
        except RegionFreedError as error:
            raise self._stages.left(self.peer) from error


class Writer(_Ring):
    """The end that sends.

    Args:
        box: the memory.
        region: as the reader made it.
        spec: of the tensors.
        stages: for waiting.
        peer: the stage that reads.
    """

    def send(self, header: Header, tensor: torch.Tensor) -> None:
        """Send a tensor once a slot is free; it may be changed on return.

        Raises:
            WorkerLostError: a stage died, or the reader has left.
            RequestTimeoutError: the reader lives and reads nothing.
        """
        if self.count >= self._slots:
            self._stages.reached(self._read, self.count - self._slots + 1, self.peer)
        data = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        with self._naming_who_left():
            self._part(0, HEADER_NBYTES).put(header.words().view(np.uint8))
            self._part(HEADER_NBYTES, data.numel()).put(data, signal=self._sent)
        self.count += 1
        self.nbytes += data.numel()


class Reader(_Ring):
    """The end that receives; it makes the ring.

    Args:
        box: the memory.
        name: of the ring.
        spec: of the tensors.
        slots: how many messages may be under way.
        stages: for waiting.
        peer: the stage that sends.
    """

    def __init__(
        self, box: Box, name: str, spec: Spec, slots: int, stages: Stages, peer: int
    ) -> None:
        region = box.create(name, slots * spec.slot_nbytes, "uint8")
        super().__init__(box, region, spec, stages, peer)
        self._next: Header | None = None

    def peek(self) -> Header:
        """Wait for the next message and return its header; the message stays.

        Raises:
            WorkerLostError: a stage died, or the writer has left.
            RequestTimeoutError: the writer lives and sends nothing.
        """
        if self._next is None:
            self._stages.reached(self._sent, self.count + 1, self.peer)
            with self._naming_who_left():
                words = self._part(0, HEADER_NBYTES).get()
            self._next = Header.of(words.view(np.int64))
        return self._next

    def receive(self, device: torch.device) -> tuple[Header, torch.Tensor]:
        """Wait for the next message, copy it out and give its slot back; raises as ``peek``."""
        header = self.peek()
        tensor = torch.empty((header.rows, *self.spec.shape[1:]), dtype=self.spec.torch_dtype)
        data = tensor.reshape(-1).view(torch.uint8)
        with self._naming_who_left():
            self._part(HEADER_NBYTES, data.numel()).get(data)
            self._read.add(1)
        self._next = None
        self.count += 1
        self.nbytes += data.numel()
        return header, tensor.to(device)


def free_ring(box: Box, name: str) -> None:
    """Free a ring, whichever parts of it are there."""
    counters: list[str | Counter] = [box.counter(f"{name}.{word}") for word in ("sent", "read")]
    for each in [name, *counters]:
        with contextlib.suppress(RegionNotFoundError, RegionFreedError):
            box.free(each)

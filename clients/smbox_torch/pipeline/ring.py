"""Rings: slots in shared memory that micro-batches of one direction of a boundary go through.

A ring NAME of k slots is a region and two counters:

    NAME        u8[k * slot]: each slot is a header of HEADER_WORDS words, then a tensor's bytes
    NAME.sent   counter: messages that are whole, the signal of each put; and the mark of a
                writer that has ended (end.py)
    NAME.read   counter: messages that were copied out; the writer's credit

Message n goes into slot ``n % k``, after the counter of those read is at least ``n - k + 1``:
it never overwrites one that was not read. The reader makes the ring, and frees it when it
ends, after it has marked the ring of the other direction: so a writer learns who ended, too.
"""

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from smbox import Box, Counter, Region
from smbox.errors import RegionFreedError, RegionNotFoundError, WorkerLostError
from smbox_torch.adapter import dtype_name
from smbox_torch.pipeline.end import End, messages_of
from smbox_torch.pipeline.stages import Stages

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

    def fits(self, found: object) -> bool:
        """Tell whether something is one of these tensors, with as many rows or fewer."""
        return (
            isinstance(found, torch.Tensor)
            and found.layout is torch.strided
            and self.takes(Spec(tuple(found.shape), dtype_name(found.dtype)))
        )

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
        is_training: whether the batch is one to train with.
        micro_batch: which one of the batch.
        rows: of this tensor; 0: there is none.
        batch_rows: of the whole batch.
        wants_gradient: on the way forward, whether a stage before wants a gradient of it.
        loss: of this micro-batch, its share of the batch's; 0 on the way forward.
    """

    batch: int
    is_training: bool
    micro_batch: int
    rows: int
    batch_rows: int
    wants_gradient: bool
    loss: float = 0.0

    def words(self) -> NDArray[np.int64]:
        """Return ``i64[HEADER_WORDS]``; the last word holds the bits of the loss."""
        words = np.zeros(HEADER_WORDS, np.int64)
        words[:6] = self[:6]
        words[-1:].view(np.float64)[0] = self.loss
        return words

    @classmethod
    def of(cls, words: NDArray[np.int64]) -> Header:
        """Return what the words say."""
        batch, is_training, micro_batch, rows, batch_rows, wants = map(int, words[:6])
        loss = float(words[-1:].view(np.float64)[0])
        return cls(batch, bool(is_training), micro_batch, rows, batch_rows, bool(wants), loss)


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
    def _naming_who_ended(self) -> Iterator[None]:
        try:
            yield
        except RegionFreedError as error:
            raise self._gone() from error

    @abstractmethod
    def _gone(self) -> WorkerLostError:
        """Return the error for a ring that was freed."""


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
            WorkerLostError: a stage died, or the writer has ended.
            RequestTimeoutError: the writer lives and sends nothing.
        """
        if self._next is None:
            with self._naming_who_ended():
                value = self._stages.reached(self._sent, self.count + 1, self.peer)
                end = End.of(value)
                if end is not None and messages_of(value) <= self.count:
                    raise self._stages.error(end)
                words = self._part(0, HEADER_NBYTES).get()
            self._next = Header.of(words.view(np.int64))
        return self._next

    def receive(self, device: torch.device) -> tuple[Header, torch.Tensor]:
        """Wait for the next message, copy it out and give its slot back; raises as ``peek``."""
        header = self.peek()
        tensor = torch.empty((header.rows, *self.spec.shape[1:]), dtype=self.spec.torch_dtype)
        data = tensor.reshape(-1).view(torch.uint8)
        with self._naming_who_ended():
            if data.numel():
                self._part(HEADER_NBYTES, data.numel()).get(data)
            self._read.add(1)
        self._next = None
        self.count += 1
        self.nbytes += data.numel()
        return header, tensor.to(device)

    def end(self) -> End | None:
        """Return how a stage ended, if the writer has told it."""
        with contextlib.suppress(RegionFreedError):
            return End.of(self._sent.value)
        return None

    def _gone(self) -> WorkerLostError:
        """The writer frees what is this stage's only if it takes this one for dead."""
        return self._stages.lost(self.peer, End(self._stages.stage, "died"))


class Writer(_Ring):
    """The end that sends.

    Args:
        box: the memory.
        region: as the reader made it.
        stages: for waiting.
        other: reader of the ring of the other direction.
    """

    def __init__(self, box: Box, region: Region, stages: Stages, other: Reader) -> None:
        super().__init__(box, region, other.spec, stages, other.peer)
        self._other = other

    def send(self, header: Header, tensor: torch.Tensor | None) -> None:
        """Send a tensor, or the header alone, once a slot is free.

        The tensor may be changed on return.

        Raises:
            WorkerLostError: a stage died, or the reader has ended.
            RequestTimeoutError: the reader lives and reads nothing.
        """
        with self._naming_who_ended():
            if self.count >= self._slots:
                self._stages.reached(self._read, self.count - self._slots + 1, self.peer)
            words = header.words().view(np.uint8)
            if tensor is None or not tensor.numel():
                self._part(0, HEADER_NBYTES).put(words, signal=self._sent)
            else:
                self._part(0, HEADER_NBYTES).put(words)
                self._put(tensor)
        self.count += 1

    def _put(self, tensor: torch.Tensor) -> None:
        data = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        self._part(HEADER_NBYTES, data.numel()).put(data, signal=self._sent)
        self.nbytes += data.numel()

    def tell(self, end: End) -> None:
        """Tell the reader, once, that no message follows, and why."""
        with contextlib.suppress(RegionFreedError):
            self._sent.add(end.mark)

    def _gone(self) -> WorkerLostError:
        end = self._other.end()
        if end is not None:
            return self._stages.error(end)
        return self._stages.lost(self.peer, End(self.peer, "left"))


def free_ring(box: Box, name: str) -> None:
    """Free a ring, whichever parts of it are there; the other stage may do so, too."""
    parts: list[Callable[[], str | Counter]] = [
        lambda: name,
        lambda: box.counter(f"{name}.sent"),
        lambda: box.counter(f"{name}.read"),
    ]
    for part in parts:
        with contextlib.suppress(RegionNotFoundError, RegionFreedError):
            box.free(part())

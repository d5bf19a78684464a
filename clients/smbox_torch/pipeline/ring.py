"""Ring buffers in shared memory: each carries micro-batches in one direction of a boundary.

A ring NAME of k slots is a region and two counters:

    NAME        u8[k * slot]: each slot is a header of HEADER_WORDS words, then a tensor's bytes
    NAME.sent   counter: complete messages, raised by the signal of each put; also holds the
                mark of a writer that has exited (stage_exit.py)
    NAME.read   counter: messages that were copied out; the writer's credit (flow control)

Message n goes into slot ``n % k`` once the counter of read messages is at least ``n - k + 1``,
so it never overwrites an unread message. The reader makes the ring. When the reader exits, it
first marks the ring of the other direction and then frees its own, so that the writer finds the
mark too.
"""

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from smbox import Box, Counter, Region
from smbox.errors import RegionFreedError, RegionNotFoundError, WorkerLostError
from smbox_torch.adapter import bytes_of, dtype_name
from smbox_torch.pipeline.stage_exit import StageExit, message_count
from smbox_torch.pipeline.stages import Stages

__all__ = ["HEADER_WORDS", "Header", "Reader", "TensorSpec", "Writer", "free_ring"]

HEADER_WORDS: Final = 8
HEADER_NBYTES: Final = 8 * HEADER_WORDS


class TensorSpec(NamedTuple):
    """Shape and dtype of a tensor.

    Attributes:
        shape: shape of a micro-batch; axis 0 is the largest number of rows.
        dtype: torch's name of the dtype.
    """

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Self:
        """Return shape and dtype of a tensor."""
        return cls(tuple(tensor.shape), dtype_name(tensor.dtype))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's object."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def slot_nbytes(self) -> int:
        """Bytes of a slot: header and elements, rounded up to a multiple of the header."""
        nbytes = math.prod(self.shape) * self.torch_dtype.itemsize
        return HEADER_NBYTES * (1 + math.ceil(nbytes / HEADER_NBYTES))

    def matches(self, found: object) -> bool:
        """Return whether ``found`` is a dense tensor that ``accepts`` would allow."""
        return (
            isinstance(found, torch.Tensor)
            and found.layout is torch.strided
            and self.accepts(TensorSpec.of(found))
        )

    def accepts(self, other: TensorSpec) -> bool:
        """Return whether ``other`` equals this spec, except that it may have fewer rows."""
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
        is_training: whether the batch is a training batch.
        micro_batch: number of the micro-batch within the batch.
        rows: number of rows of this tensor; 0 if the message has no tensor.
        batch_rows: number of rows of the batch.
        needs_gradient: in a forward message: whether an upstream stage needs its gradient.
        loss: in a backward message: weighted loss of the micro-batch; else 0.
    """

    batch: int
    is_training: bool
    micro_batch: int
    rows: int
    batch_rows: int
    needs_gradient: bool
    loss: float = 0.0

    def words(self) -> NDArray[np.int64]:
        """Return ``i64[HEADER_WORDS]``; the last word holds the bits of the loss."""
        words = np.zeros(HEADER_WORDS, np.int64)
        words[:6] = self[:6]
        words[-1:].view(np.float64)[0] = self.loss
        return words

    @classmethod
    def of(cls, words: NDArray[np.int64]) -> Header:
        """Return the header that the words encode."""
        batch, is_training, micro_batch, rows, batch_rows, needs = map(int, words[:6])
        loss = float(words[-1:].view(np.float64)[0])
        return cls(batch, bool(is_training), micro_batch, rows, batch_rows, bool(needs), loss)


class _Ring:
    """One end of a ring.

    Attributes:
        name: name of the ring.
        spec: shape and dtype of the tensors.
        peer: number of the stage at the other end.
        count: messages sent or received at this end.
        nbytes: bytes of their tensors.
    """

    def __init__(
        self, box: Box, region: Region, spec: TensorSpec, stages: Stages, peer: int
    ) -> None:
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
        """Return a range of bytes of the current message's slot."""
        at = self.count % self._slots * self.spec.slot_nbytes + first
        return self._region[at : at + nbytes]

    @contextlib.contextmanager
    def _map_freed_ring(self) -> Iterator[None]:
        try:
            yield
        except RegionFreedError as error:
            raise self._freed_error() from error

    @abstractmethod
    def _freed_error(self) -> WorkerLostError:
        """Return the error for a ring that another stage has freed."""


class Reader(_Ring):
    """The receiving end; it creates the ring.

    Args:
        box: connection to the memory.
        name: name of the ring.
        spec: shape and dtype of the tensors.
        slots: number of messages in flight.
        stages: waits for the peer.
        peer: number of the sending stage.
    """

    def __init__(
        self, box: Box, name: str, spec: TensorSpec, slots: int, stages: Stages, peer: int
    ) -> None:
        region = box.create(name, slots * spec.slot_nbytes, "uint8")
        super().__init__(box, region, spec, stages, peer)
        self._next: Header | None = None

    def peek(self) -> Header:
        """Wait for the next message and return its header; the message stays in the ring.

        Raises:
            WorkerLostError: a stage died, or the writer has exited.
            RequestTimeoutError: the writer is alive and sent nothing in time.
        """
        if self._next is None:
            with self._map_freed_ring():
                value = self._stages.wait_for_counter(self._sent, self.count + 1, self.peer)
                exit_ = StageExit.decode(value)
                if exit_ is not None and message_count(value) <= self.count:
                    raise self._stages.exit_error(exit_)
                words = self._part(0, HEADER_NBYTES).get()
            self._next = Header.of(words.view(np.int64))
        return self._next

    def receive(self, device: torch.device) -> tuple[Header, torch.Tensor]:
        """Wait for the next message, copy it and release its slot; raises as ``peek``."""
        header = self.peek()
        shape = (header.rows, *self.spec.shape[1:])
        tensor = torch.empty(shape, dtype=self.spec.torch_dtype, device="cpu")
        data = tensor.reshape(-1).view(torch.uint8)
        with self._map_freed_ring():
            if data.numel():
                self._part(HEADER_NBYTES, data.numel()).get(data)
            self._read.add(1)
        self._next = None
        self.count += 1
        self.nbytes += data.numel()
        return header, tensor.to(device)

    def reported_exit(self) -> StageExit | None:
        """Return the exit that the writer has reported, or None."""
        with contextlib.suppress(RegionFreedError):
            return StageExit.decode(self._sent.value)
        return None

    def _freed_error(self) -> WorkerLostError:
        """Return the error; the writer frees this ring only if it counts this stage as dead."""
        return self._stages.lost_error(self.peer, StageExit(self._stages.stage, "died"))


class Writer(_Ring):
    """The sending end.

    Args:
        box: connection to the memory.
        region: region of the ring, created by the reader.
        stages: waits for the peer.
        other: reader of the ring of the other direction.
    """

    def __init__(self, box: Box, region: Region, stages: Stages, other: Reader) -> None:
        super().__init__(box, region, other.spec, stages, other.peer)
        self._other = other

    def send(self, header: Header, tensor: torch.Tensor | None) -> None:
        """Wait for a free slot and send a header, and a tensor unless it is None.

        The tensor may be changed on return.

        Raises:
            WorkerLostError: a stage died, or the reader has exited.
            RequestTimeoutError: the reader is alive and read nothing in time.
        """
        with self._map_freed_ring():
            if self.count >= self._slots:
                least = self.count - self._slots + 1
                self._stages.wait_for_counter(self._read, least, self.peer)
            words = header.words().view(np.uint8)
            if tensor is None or not tensor.numel():
                self._part(0, HEADER_NBYTES).put(words, signal=self._sent)
            else:
                self._part(0, HEADER_NBYTES).put(words)
                self._put(tensor)
        self.count += 1

    def _put(self, tensor: torch.Tensor) -> None:
        data = bytes_of(tensor)
        self._part(HEADER_NBYTES, data.numel()).put(data, signal=self._sent)
        self.nbytes += data.numel()

    def send_exit(self, exit_: StageExit) -> None:
        """Report an exit to the reader, once; no message may follow."""
        with contextlib.suppress(RegionFreedError):
            self._sent.add(exit_.mark)

    def _freed_error(self) -> WorkerLostError:
        exit_ = self._other.reported_exit()
        if exit_ is not None:
            return self._stages.exit_error(exit_)
        return self._stages.lost_error(self.peer, StageExit(self.peer, "left"))


def free_ring(box: Box, name: str) -> None:
    """Free the parts of a ring that exist; the other stage may do so at the same time."""
    parts: list[Callable[[], str | Counter]] = [
        lambda: name,
        lambda: box.counter(f"{name}.sent"),
        lambda: box.counter(f"{name}.read"),
    ]
    for part in parts:
        with contextlib.suppress(RegionNotFoundError, RegionFreedError):
            box.free(part())

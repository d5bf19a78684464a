"""The buffers of one term of a publisher, which only that publisher writes to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import torch

from smbox import Box, Handle, Region
from smbox_torch.adapter import bytes_of
from smbox_torch.publishing import publication
from smbox_torch.publishing.publication import HEAD_NBYTES, VERSION_NBYTES, Entry, Layout

__all__ = ["TermBuffers"]

TOGETHER_NBYTES: Final = 1 << 20
"""Adjacent tensors are written together up to this size; a larger tensor is written alone."""

INFLIGHT_NBYTES: Final = 32 << 20
"""Largest number of bytes of copied or converted tensors in flight."""


class TermBuffers:
    """The buffers of a new term, each created when first used; see publication.py.

    Attributes:
        number: number of the term; later terms have higher numbers.
        layout: layout of all versions of the term.

    Args:
        box: connection to the memory.
        name: name of the publication.
        layout: layout of all versions of the term.
    """

    def __init__(self, box: Box, name: str, layout: Layout) -> None:
        self._box = box
        self._name = name
        self.layout = layout
        self.number = box.counter(publication.terms_name(name)).add(1) + 1
        self._buffers: dict[int, Region] = {}

    def write(self, version: int, state: dict[str, torch.Tensor]) -> None:
        """Write a version into its buffer; readers see it once the counter names it."""
        buffer = self._buffer(version % self.layout.keep)
        buffer[:VERSION_NBYTES].put(np.array([version], np.int64).view(np.uint8))
        waiting: deque[Handle[None]] = deque()
        copied = 0
        for first, data, is_copy in _pieces(self.layout, state):
            at = HEAD_NBYTES + first
            waiting.append(buffer[at : at + data.numel()].put_nb(data))
            copied += data.numel() if is_copy else 0
            if copied > INFLIGHT_NBYTES:
                _wait(waiting)
                copied = 0
        _wait(waiting)

    def _buffer(self, index: int) -> Region:
        """Return a buffer, created if needed; the first call also writes the layout."""
        if not self._buffers:
            described = np.frombuffer(msgspec.json.encode(self.layout), np.uint8)
            self._box.create(publication.layout_name(self._name, self.number), init=described)
        if index not in self._buffers:
            self._buffers[index] = self._box.create(
                publication.buffer_name(self._name, self.number, index),
                HEAD_NBYTES + self.layout.nbytes,
                "uint8",
            )
        return self._buffers[index]


def _wait(waiting: deque[Handle[None]]) -> None:
    while waiting:
        waiting.popleft().wait()


def _pieces(
    layout: Layout, state: dict[str, torch.Tensor]
) -> Iterator[tuple[int, torch.Tensor, bool]]:
    """Yield all pieces of a version: first byte, ``u8[n]`` and whether it is a copy.

    A large, contiguous tensor in host memory that needs no conversion is not copied.
    """
    small: list[Entry] = []
    for entry in layout.stored():
        is_small = entry.nbytes < TOGETHER_NBYTES
        if small and not (is_small and entry.limit - small[0].first <= TOGETHER_NBYTES):
            yield small[0].first, _gathered(small, state), True
            small = []
        if is_small:
            small.append(entry)
        elif _is_as_published(state[entry.name], entry):
            yield entry.first, bytes_of(state[entry.name]), False
        else:
            yield entry.first, _gathered([entry], state), True
    if small:
        yield small[0].first, _gathered(small, state), True


def _is_as_published(tensor: torch.Tensor, entry: Entry) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.dtype is entry.torch_dtype
        and tensor.is_contiguous()
        and not tensor.is_neg()
    )


@torch.no_grad()
def _gathered(entries: list[Entry], state: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the bytes of adjacent tensors, converted and copied to host memory."""
    first = entries[0].first
    memory = torch.zeros(entries[-1].limit - first, dtype=torch.uint8, device="cpu")
    for entry in entries:
        entry.view(memory, first).copy_(state[entry.name])
    return memory

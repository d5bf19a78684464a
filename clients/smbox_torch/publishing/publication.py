"""Memory layout of a publication: names of regions, the newest version, places of tensors.

A publication is a counter and, for each *term* of its publisher, a region with the layout and
buffers that are used in rotation. A publisher begins a term when it starts, when the layout
changes and after an interrupted publication. Only the publisher of a term writes to its
buffers, so late writes of a stopped or interrupted publisher change nothing that readers see.

    NAME.publisher      a run whose rank 0 is the publisher; see smbox.join
    NAME.newest         counter: the newest version and its term, changed by compare-and-swap
    NAME.terms          counter: terms handed out
    NAME.T.layout       JSON: names, dtypes, shapes and places of the tensors, number of buffers
    NAME.T.buffer-B     HEAD_NBYTES, whose first 8 bytes are a version, then the tensors' bytes

Version v lies in buffer ``v % keep``. The first word of a buffer names the version that is
being, or was, written to it. A version is complete if the counter has reached it. A copy holds
only one version if the first word still names that version after the copy.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, NamedTuple, Self

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from smbox import Box, ConfigError, LimitError, RegionFreedError, dtypes
from smbox_torch.adapter import dtype_name

__all__ = [
    "HEAD_NBYTES",
    "Entry",
    "Layout",
    "Newest",
    "Source",
    "free_terms",
    "has_no_memory",
    "has_no_shape",
    "identity",
    "state_of",
]

HEAD_NBYTES: Final = 4096
"""Bytes of a buffer before its tensors: one page, so that the tensors are page-aligned."""

VERSION_NBYTES: Final = 8
ALIGN_NBYTES: Final = 64
VERSION_BITS: Final = 40
TERM_BITS: Final = 23

Source = torch.nn.Module | Mapping[str, torch.Tensor]
"""A module or a state dict."""


class Newest(NamedTuple):
    """The newest complete version and its term; 0 and 0 if nothing is published yet."""

    term: int
    version: int

    @classmethod
    def of(cls, word: int) -> Self:
        """Decode a value of the counter."""
        return cls(word >> VERSION_BITS, word & ((1 << VERSION_BITS) - 1))

    @property
    def word(self) -> int:
        """The counter's value, which increases with every version and every term.

        Raises:
            LimitError: 2^40 versions or 2^23 terms were used up.
        """
        if self.term >> TERM_BITS or self.version >> VERSION_BITS:
            raise LimitError(
                "this publication has used all version or term numbers: use another name",
                term=self.term,
                version=self.version,
            )
        return self.term << VERSION_BITS | self.version


class Entry(msgspec.Struct, frozen=True):
    """A published tensor.

    Attributes:
        name: name in the state dict; entries of tied parameters have the same bytes.
        dtype: published dtype.
        shape: shape of the tensor.
        first: offset of its first byte after the head of a buffer.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    first: int

    @property
    def nbytes(self) -> int:
        """Number of bytes of its elements."""
        return self.torch_dtype.itemsize * math.prod(self.shape)

    @property
    def limit(self) -> int:
        """Offset of the byte after its last byte."""
        return self.first + self.nbytes

    @property
    def torch_dtype(self) -> torch.dtype:
        """The element type."""
        return _torch_dtype(self.dtype)

    def view(self, memory: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Return the tensor in ``memory``, ``u8[n]``, the bytes of a version from ``first``."""
        data = memory[self.first - first : self.limit - first]
        return data.view(self.torch_dtype).view(self.shape)


class Layout(msgspec.Struct, frozen=True):
    """The tensors of a publication and their places.

    Attributes:
        entries: the tensors, in the order of the state dict.
        nbytes: bytes of a version, without the head.
        keep: number of buffers.
    """

    entries: tuple[Entry, ...]
    nbytes: int
    keep: Annotated[int, msgspec.Meta(ge=1)]

    @classmethod
    def of(
        cls, state: Mapping[str, torch.Tensor], dtype: torch.dtype | None, keep: int
    ) -> Self:
        """Return the layout of tensors; a tensor with several names is stored once.

        Args:
            state: tensors by name.
            dtype: published dtype of all floating-point tensors; None: the dtype of each
                tensor.
            keep: number of buffers.

        Raises:
            ConfigError: an entry is not a tensor that a region can hold, or there are no
                tensors.
        """
        entries, places, at = [], dict[tuple[Any, ...], int](), 0
        for name, tensor in state.items():
            _check(name, tensor)
            chosen = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
            first = places.setdefault(identity(tensor), at)
            entry = Entry(name, dtype_name(chosen), tuple(tensor.shape), first)
            entries.append(entry)
            at = max(at, -(-entry.limit // ALIGN_NBYTES) * ALIGN_NBYTES)
        if not entries:
            raise ConfigError("there is no tensor to publish")
        return cls(tuple(entries), at, keep)

    def stored(self) -> list[Entry]:
        """Return the entries that have bytes, by first byte; of tied entries only the first."""
        found: dict[int, Entry] = {}
        for entry in self.entries:
            if entry.nbytes:
                found.setdefault(entry.first, entry)
        return list(found.values())

    def named(self) -> dict[str, Entry]:
        """Return the entries by name."""
        return {entry.name: entry for entry in self.entries}


def publisher_name(name: str) -> str:
    """Return the name of the run that the publisher is a member of."""
    return f"{name}.publisher"


def newest_name(name: str) -> str:
    """Return the name of the counter of the newest version."""
    return f"{name}.newest"


def terms_name(name: str) -> str:
    """Return the name of the counter of terms."""
    return f"{name}.terms"


def layout_name(name: str, term: int) -> str:
    """Return the name of the region that holds a term's layout."""
    return f"{name}.{term}.layout"


def buffer_name(name: str, term: int, buffer: int) -> str:
    """Return the name of a term's buffer."""
    return f"{name}.{term}.buffer-{buffer}"


def layout_of(described: NDArray[np.uint8]) -> Layout:
    """Return the layout that a term's region contains; ConfigError if it was overwritten."""
    try:
        return msgspec.json.decode(described.tobytes(), type=Layout)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = "the layout of the publication was overwritten: start its publisher again"
        raise ConfigError(message) from error


def free_terms(box: Box, name: str, before: int, but: tuple[str, ...] = ()) -> None:
    """Free the regions of all terms before ``before``, except those named in ``but``."""
    regions = re.compile(re.escape(name) + r"\.(\d+)\.(layout|buffer-\d+)")
    for info in box.regions():
        found = regions.fullmatch(info.name)
        if found and int(found[1]) < before and info.name not in but:
            with contextlib.suppress(RegionFreedError):  # by another process
                box.free(info)


def state_of(source: Source) -> dict[str, torch.Tensor]:
    """Return the tensors of a module or state dict, by name; they share its memory."""
    if not isinstance(source, torch.nn.Module | Mapping):
        raise TypeError(
            f"weights must be a module or a state dict, not {type(source).__name__}"
        )
    return dict(source.state_dict() if isinstance(source, torch.nn.Module) else source)


def runs(entries: Iterable[Entry]) -> list[tuple[int, int]]:
    """Merge the bytes of entries into ranges ``first, limit``, ascending."""
    found: list[tuple[int, int]] = []
    for first, limit in sorted((entry.first, entry.limit) for entry in entries):
        if found and first < found[-1][1] + ALIGN_NBYTES:
            found[-1] = found[-1][0], limit
        else:
            found.append((first, limit))
    return found


def _check(name: Any, tensor: Any) -> None:
    if not _is_text(name) or not isinstance(tensor, torch.Tensor):
        raise ConfigError(
            "only tensors with names can be published: remove this entry, or convert it to a"
            " named tensor",
            entry=repr(name),
            type=type(tensor).__name__,
        )
    if has_no_shape(tensor):
        raise ConfigError(
            "nested tensors and tensors of uninitialised lazy modules have no shape: run one"
            " batch through the model, then publish",
            entry=name,
        )
    if (
        tensor.layout is not torch.strided
        or tensor.device.type == "meta"
        or dtype_name(tensor.dtype) not in {dtype.name for dtype in dtypes.TABLE}
    ):
        raise ConfigError(
            "only dense tensors of bools, integers and real floats can be published",
            entry=name,
            dtype=str(tensor.dtype),
            layout=str(tensor.layout),
            device=str(tensor.device),
        )
    if has_no_memory(tensor):
        raise ConfigError(
            "a tensor has no memory of its own: publish its full_tensor() or dequantize()",
            entry=name,
            type=type(tensor).__name__,
        )


def _is_text(name: Any) -> bool:
    """Return whether a name can be written as UTF-8, which lone surrogates cannot."""
    return isinstance(name, str) and name == name.encode(errors="replace").decode()


def has_no_shape(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is nested, or belongs to an uninitialised lazy module."""
    return tensor.is_nested or torch.nn.parameter.is_lazy(tensor)


def has_no_memory(tensor: torch.Tensor) -> bool:
    """Return whether the elements are elsewhere: in other tensors, as DTensor's, or freed."""
    return tensor.numel() > 0 and tensor.data_ptr() == 0


def identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a key that tied parameters share."""
    place = tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
    return *place, tensor.is_neg()  # z.conj().imag has the same memory as z.imag


def _torch_dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtypes.by_name(name).name)
    return found

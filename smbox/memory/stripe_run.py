"""The fast way: commits of one free stripe or of many in one compiled call.

It does what ``commit`` does for each stripe in turn, as long as nothing is in the way, and
leaves everything else (a held lock, a commit that a dead writer left open, a freed region,
a kernel that is not compiled) to ``commit``, which goes on where the run stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError
from smbox.memory import accel
from smbox.memory.change import Change, Receipt
from smbox.memory.channels import ChannelRow, RingFile
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.mapped import MappedRegion
from smbox.memory.modes import Back, Terms, flat, terms_of

_NOTHING: Final = np.empty(0, np.uint8)
_NO_BACK: Final = (_NOTHING, int(Back.NONE))
_NO_WORDS: Final = np.empty(0, np.uint64)

Note: TypeAlias = tuple[NDArray[np.uint64], int, int, NDArray[np.uint64]]
"""By what a remote channel's commit is known again; see ``compiled_runs.Note``."""

_NO_NOTE: Final = (_NO_WORDS, 0, 0, _NO_WORDS)


def commit_run(  # noqa: PLR0913 - what comes back, and by what it is known, are apart
    writer: Writer,
    region: MappedRegion,
    first: int,
    limit: int,
    change: Change,
    *,
    moved: NDArray[Any] | None = None,
    delta: NDArray[Any] | None = None,
    answer: NDArray[Any] | None = None,
    receipt: Receipt | None = None,
) -> int:
    """Commit a change stripe by stripe from byte ``first``, up to the first obstacle.

    Holds no GIL; ``commits(writer)`` counts the stripes, should an exception hide the answer.

    Args:
        writer: the calling thread's.
        region: of consistency "stripe", or "none" (no lock, no journal).
        first: first byte of the region's data to change, at an element.
        limit: byte behind the last.
        change: kernel and operand; the source has ``limit - first`` bytes.
        moved: of ELASTIC, the worker's x: ``-= scale * (moved - old)`` stripe by stripe.
        delta: of ELASTIC, instead: receives ``scale * (source - old)``.
        answer: receives the old bytes.
        receipt: of the first stripe, the next number is the next one's; not for "none".

    Returns:
        The byte up to which everything is committed and handed back.

    Raises:
        ConfigError: scale or arrays do not fit; nothing changed.
    """
    engine, dtype = accel.prepare(limit - first), region.spec.dtype
    is_whole = first >= 0 and (first | limit) % dtype.itemsize == 0
    if engine is None or engine.commit_stripes is None or not is_whole:
        return first
    terms = terms_of(change.kernel, dtype, change.scale)
    if terms is None:
        return first
    back = _NO_BACK
    if moved is not None or delta is not None or answer is not None:
        back = _back(change.kernel, limit - first, moved, delta, answer)
    source = flat(change.source)
    note = _NO_NOTE if receipt is None else note_of(*receipt)
    return commit_on(
        engine.commit_stripes, writer, region, first, limit, terms, source, note, back
    )


def commit_on(  # noqa: PLR0913, PLR0917 - what compiled code is told
    run: Callable[..., int],
    writer: Writer,
    region: MappedRegion,
    first: int,
    limit: int,
    terms: Terms,
    source: NDArray[np.uint8],
    note: Note = _NO_NOTE,
    back: tuple[NDArray[np.uint8], int] = _NO_BACK,
) -> int:
    """Do what ``commit_run`` does, of values that are known to fit each other.

    Args:
        run: the engine's ``commit_stripes``.
        writer: the calling thread's.
        region: as there.
        first: at an element.
        limit: at the end of one.
        terms: of the kernel, for the region's dtype.
        source: ``u8[limit - first]``.
        note: see ``note_of``.
        back: array and ``Back``.

    Returns:
        As ``commit_run``.
    """
    return run(
        region.header,
        region.table,
        region.data,
        writer.words,
        writer.old,
        writer.locks.fd,
        first,
        limit,
        *terms,
        source,
        *back,
        *note,
    )


def note_of(row: ChannelRow, number: int, ring: RingFile | None = None) -> Note:
    """Return what stands in a ``Receipt``, as ``compiled_runs.Note`` wants it."""
    return row.words, row.index + 1, number, _NO_WORDS if ring is None else ring.words


def _back(
    kernel: KernelCode,
    nbytes: int,
    moved: NDArray[Any] | None,
    delta: NDArray[Any] | None,
    answer: NDArray[Any] | None,
) -> tuple[NDArray[np.uint8], int]:
    """Return the bytes that the caller wants back, and which they are."""
    wanted = [
        (array, how)
        for array, how in ((moved, Back.MOVED), (delta, Back.DELTA), (answer, Back.OLD))
        if array is not None
    ]
    array, how = wanted[0]
    if len(wanted) > 1 or (how != Back.OLD and kernel != KernelCode.ELASTIC):
        raise ConfigError("moved or delta (of an elastic exchange only) or answer, one of them")
    if array.nbytes != nbytes or not array.flags.writeable:
        raise ConfigError("nowhere to write to", nbytes=array.nbytes, wanted=nbytes)
    return flat(array), int(how)

"""Changes of a whole range of a region as one: consistency "region".

The operand lies in another region of the same node beforehand (the caller's staging region,
or, for region-to-region operations, any). With all stripes held, the writer records its
intent, names itself in the region's WIDE word, and commits stripe by stripe. From that word
on the change will happen: whoever finds its writer dead rolls it forward. How far it came is
the slot's own count of commits, which each commit moves by its one decisive store. No stripe
is let go before WIDE is 0 and the intent closed: who holds one sees all of the change, or none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smbox.errors import SegmentError
from smbox.memory import accel
from smbox.memory.change import Change, Receipt
from smbox.memory.channels import ChannelTable
from smbox.memory.commit import close_own, commit_held, commits
from smbox.memory.hold import Hold
from smbox.memory.insist import insist
from smbox.memory.journal import Writer, attach_slot
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import Intent, RegionHeader, Slot, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion, pieces
from smbox.memory.recovery import attached


class WideChange(NamedTuple):
    """A change of ``first <= byte < limit`` of a region's data, all or nothing.

    Attributes:
        kernel: what to do.
        scale: factor of SUM, moving_rate of ELASTIC; else 1.
        source: the region that holds the operand, of the same dtype.
        source_first: byte of its data where the operand begins.
        old_first: byte of its data where the old bytes go, or None.
    """

    first: int
    limit: int
    kernel: KernelCode
    scale: int | float
    source: MappedRegion
    source_first: int = 0
    old_first: int | None = None


def commit_wide(
    writer: Writer,
    region: MappedRegion,
    hold: Hold,
    change: WideChange,
    receipt: Receipt | None = None,
) -> None:
    """Change a range of a region, entirely or not at all, and release the hold.

    An exception before the change has begun leaves the region as it was; one after it does
    not come through before the change is complete.

    Args:
        writer: the caller's journal slot; its locks are the hold's.
        region: a region of consistency "region".
        hold: of all its stripes; taken or not.
        change: what to do.
        receipt: by what a remote channel's change is known again.

    Raises:
        StripeBusy: another writer holds a stripe; those before it stay held, call again.
        RegionFreedError: the region was freed; nothing changed.
    """
    accel.prepare(change.limit - change.first)  # here, for below this stripes are locked
    hold.take()
    try:
        settle_wide(region, writer.locks)
        _intend(writer, region, change, receipt)
        region.header[RegionHeader.WIDE] = writer.slot_id
        _roll_forward(writer, region, change.source)
    except BaseException:
        insist(lambda: _close(writer, region, change.source))
        raise
    finally:
        hold.release()


def is_under_way(writer: Writer) -> bool:
    """Tell whether the writer has a change that has not come to its end."""
    return bool(writer.words[Intent.OPEN] != 0)


def finish_wide(writer: Writer, region: MappedRegion, hold: Hold) -> None:
    """End what an earlier call of ``commit_wide`` left under way; release the hold.

    Raises:
        StripeBusy: another writer holds a stripe; those before it stay held, call again.
        RegionFreedError: the region was freed, with all that was not changed yet.
    """
    if is_under_way(writer):
        hold.take()
        try:
            settle_wide(region, writer.locks)
        finally:
            hold.release()


def settle_wide(region: MappedRegion, locks: LockFile) -> None:
    """Roll forward what a dead writer began; the caller holds all stripes.

    Raises:
        SegmentError: what that needs is gone or damaged; the region stays as it is.
    """
    slot_id = int(region.header[RegionHeader.WIDE])
    if slot_id == 0:
        return
    slot = Writer(region.node, attach_slot(region.node, slot_id), locks)
    if int(slot.words[Intent.OPEN]) != region.address:
        raise SegmentError(
            f"the journal of a change of all of {region.spec.name!r} is damaged; free it",
            slot=slot.segment.name,
        )
    with _operand(slot, region) as source:
        _close(slot, region, source)


def read_wide(region: MappedRegion, first: int, limit: int, out: NDArray[np.uint8]) -> bool:
    """Copy a range as it was between two region-wide changes; False if one came between.

    Args:
        region: the region.
        first: byte of its data.
        limit: byte behind the last.
        out: ``u8[limit - first]``; holds anything after False.
    """
    before = region.table[:, Stripe.SEQ].copy()
    if region.header[RegionHeader.WIDE] != 0 or np.any(before & np.uint64(1)):
        return False
    np.copyto(out, region.data[first:limit])
    after = region.table[:, Stripe.SEQ]
    return bool(region.header[RegionHeader.WIDE] == 0 and np.array_equal(before, after))


def read_held(
    region: MappedRegion,
    hold: Hold,
    first: int,
    limit: int,
    out: NDArray[np.uint8],
    locks: LockFile,
) -> None:
    """Copy a range while all its stripes are held: a snapshot; releases the hold.

    Raises:
        StripeBusy: a writer holds a stripe; those before it stay held, call again.
        RegionFreedError: the region was freed.
    """
    hold.take()
    try:
        settle_wide(region, locks)
        np.copyto(out, region.data[first:limit])
    finally:
        hold.release()


def _intend(
    writer: Writer, region: MappedRegion, change: WideChange, receipt: Receipt | None
) -> None:
    words = writer.words
    words[Intent.FIRST] = change.first
    words[Intent.LIMIT] = change.limit
    words[Intent.KERNEL] = change.kernel
    words[Intent.SCALE] = _scale_bits(region, change.scale)
    words[Intent.SOURCE] = change.source.address
    words[Intent.SOURCE_FIRST] = change.source_first
    words[Intent.OLD_FIRST] = 0 if change.old_first is None else change.old_first + 1
    words[Intent.COMMITS] = commits(writer)
    words[Intent.ROW] = 0 if receipt is None else receipt.row.index + 1
    words[Intent.NUMBER] = 0 if receipt is None else receipt.number
    words[Intent.OPEN] = region.address


@contextmanager
def _operand(slot: Writer, region: MappedRegion) -> Iterator[MappedRegion]:
    address = int(slot.words[Intent.SOURCE])
    with attached(region.node, address) as source:
        if source is None:
            raise SegmentError(
                f"a change of all of {region.spec.name!r} was begun, and what it is to be"
                " changed by is gone; free it",
                source=address,
                slot=slot.segment.name,
            )
        yield source


def _close(writer: Writer, region: MappedRegion, source: MappedRegion) -> None:
    """Bring a change that has begun to its end, and see to it that another never begins."""
    words = writer.words
    if int(words[Slot.REGION]) == region.address:
        close_own(writer, region)
    if int(region.header[RegionHeader.WIDE]) == writer.slot_id:
        _roll_forward(writer, region, source)
    words[Intent.OPEN] = 0


def _roll_forward(writer: Writer, region: MappedRegion, source: MappedRegion) -> None:
    """Commit the stripes that are still missing, then the change's own last words."""
    words = writer.words
    first, limit = int(words[Intent.FIRST]), int(words[Intent.LIMIT])
    done = commits(writer) - int(words[Intent.COMMITS])
    for piece in list(pieces(first, limit))[done:]:
        ahead = piece.first - first
        length = piece.limit - piece.first
        _keep_old(words, region, source, ahead, piece.first, length)
        begin = int(words[Intent.SOURCE_FIRST]) + ahead
        operand = source.typed(begin, begin + length)
        kernel = KernelCode(int(words[Intent.KERNEL]))
        commit_held(writer, region, piece, Change(kernel, operand, _scale(region, words)))
    _note_number(region.node, words)
    region.header[RegionHeader.WIDE] = 0
    words[Intent.OPEN] = 0


def _keep_old(
    words: NDArray[np.uint64],
    region: MappedRegion,
    source: MappedRegion,
    ahead: int,
    first: int,
    length: int,
) -> None:
    if words[Intent.OLD_FIRST] != 0:
        begin = int(words[Intent.OLD_FIRST]) - 1 + ahead
        source.data[begin : begin + length] = region.data[first : first + length]


def _note_number(node: str, words: NDArray[np.uint64]) -> None:
    if words[Intent.ROW] != 0:
        ChannelTable.note(node, int(words[Intent.ROW]) - 1, int(words[Intent.NUMBER]))


def _scale_bits(region: MappedRegion, scale: float) -> int:
    if region.spec.dtype.kind == "float":
        return int.from_bytes(struct.pack("<d", scale), "little")
    return int.from_bytes(struct.pack("<q" if scale < 0 else "<Q", int(scale)), "little")


def _scale(region: MappedRegion, words: NDArray[np.uint64]) -> Any:
    raw = int(words[Intent.SCALE]).to_bytes(8, "little")
    kind = region.spec.dtype.kind
    return struct.unpack("<d" if kind == "float" else "<Q" if kind == "uint" else "<q", raw)[0]

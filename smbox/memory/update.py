"""Commits over several extents: a server-side optimizer's step, parameters and state as one.

The procedure is commit.py's, with the same stripe of each sibling region beside the first:
all are locked, all their old bytes are saved before a kernel touches any, and one store
makes all of it happen. Whoever reads a sibling sees a step entirely or not at all, as
anywhere: by stripe.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smbox.errors import LayoutMismatchError
from smbox.memory import recovery
from smbox.memory.busy import StripeBusy
from smbox.memory.change import Receipt
from smbox.memory.commit import close_own
from smbox.memory.journal import Writer
from smbox.memory.layout import Consistency, Sibling, Slot, SlotState, Stripe
from smbox.memory.mapped import MappedRegion, Piece
from smbox.memory.optimizers import OPTIMIZERS, OptimizerCode, check_parameters


class Update(NamedTuple):
    """A step of a server-side optimizer.

    Attributes:
        optimizer: which one.
        gradient: elements of the region's dtype, as many as the piece has.
        parameters: the optimizer's, in the order of its row in ``OPTIMIZERS``.
    """

    optimizer: OptimizerCode
    gradient: NDArray[Any]
    parameters: Sequence[float]


def check_siblings(
    region: MappedRegion, siblings: Sequence[MappedRegion], code: OptimizerCode
) -> None:
    """Raise LayoutMismatchError unless the siblings can hold the optimizer's state."""
    wanted = OPTIMIZERS[code].states
    layouts = {(r.spec.dtype.name, r.spec.shape, r.spec.consistency) for r in siblings}
    own = (region.spec.dtype.name, region.spec.shape, Consistency.STRIPE)
    distinct = {region.address, *(sibling.address for sibling in siblings)}
    if (
        len(siblings) != len(wanted)
        or layouts != {own}
        or region.spec.consistency != Consistency.STRIPE
        or region.spec.dtype.kind != "float"
        or len(distinct) != len(siblings) + 1
    ):
        raise LayoutMismatchError(
            f"{code.name} needs one region of the parameters' dtype and shape, of consistency"
            f" 'stripe', for each of: {', '.join(wanted)}",
            region=region.spec.name,
            siblings=[sibling.spec.name for sibling in siblings],
        )


def commit_update(
    writer: Writer,
    region: MappedRegion,
    siblings: Sequence[MappedRegion],
    piece: Piece,
    update: Update,
    receipt: Receipt | None = None,
) -> None:
    """Take one step on the bytes of ``piece``, entirely or not at all.

    The number of the step, for ADAM, is the count of the last sibling's stripe: the changes
    that this stripe of the state has seen.

    Raises:
        StripeBusy: another writer holds a stripe; nothing changed.
        RegionFreedError: one of the regions was freed; nothing changed.
        LayoutMismatchError: the siblings do not fit; nothing changed.
        ConfigError: the parameters do not fit; nothing changed.
    """
    check_siblings(region, siblings, update.optimizer)
    check_parameters(update.optimizer, update.parameters)
    extents = [region, *siblings]
    writer.settle()  # what was left open when an exception cut off the settling of another
    writer.unsettled = partial(_settle, writer, extents, piece)
    try:
        _lock(writer, extents, piece)
        _arm(writer, extents, piece, update, receipt)
        _step(writer, extents, piece, update)
        _close(writer, extents, piece, receipt)
        writer.unsettled = None
    except BaseException:
        writer.settle()
        raise


def _lock(writer: Writer, extents: Sequence[MappedRegion], piece: Piece) -> None:
    for region in extents:
        if not writer.locks.try_lock(region.lock_byte(piece.stripe)):
            raise StripeBusy(region, piece.stripe)
        if region.table[piece.stripe, Stripe.SEQ] & 1:
            recovery.recover_stripe(region, piece.stripe, writer.locks)
        region.check_usable()


def _arm(
    writer: Writer,
    extents: Sequence[MappedRegion],
    piece: Piece,
    update: Update,
    receipt: Receipt | None,
) -> None:
    slot = writer.words
    slot[Slot.REGION] = extents[0].address
    slot[Slot.STRIPE], slot[Slot.FIRST], slot[Slot.LIMIT] = piece
    slot[Slot.PROGRESS] = 0
    slot[Slot.COUNT] = extents[0].table[piece.stripe, Stripe.COUNT]
    slot[Slot.KERNEL] = update.optimizer
    slot[Slot.ROW] = 0 if receipt is None else receipt.row.index + 1
    slot[Slot.NUMBER] = 0 if receipt is None else receipt.number
    slot[Slot.RING_ENTRY] = 0
    for at, sibling in _sibling_words(extents):
        slot[at + Sibling.REGION] = sibling.address
        slot[at + Sibling.PROGRESS] = 0
        slot[at + Sibling.COMMITS] = sibling.table[piece.stripe, Stripe.COUNT]
    slot[Sibling.COUNT] = len(extents) - 1
    slot[Slot.STATE] += SlotState.ARMED - SlotState.FREE
    for region in extents:
        row = region.table[piece.stripe]
        row[Stripe.WRITER] = writer.slot_id
        row[Stripe.SEQ] += 1


def _step(
    writer: Writer, extents: Sequence[MappedRegion], piece: Piece, update: Update
) -> None:
    length = piece.limit - piece.first
    for region, room in zip(extents, writer.rooms, strict=False):
        np.copyto(room[:length], region.data[piece.first : piece.limit])
    writer.words[Slot.PROGRESS] = length
    for at, _ in _sibling_words(extents):
        writer.words[at + Sibling.PROGRESS] = length
    p, *states = (region.typed(piece.first, piece.limit) for region in extents)
    number = int(extents[-1].table[piece.stripe, Stripe.COUNT]) + 1
    with np.errstate(all="ignore"):
        OPTIMIZERS[update.optimizer].run(p, states, update.gradient, update.parameters, number)


def _close(
    writer: Writer,
    extents: Sequence[MappedRegion],
    piece: Piece,
    receipt: Receipt | None,
) -> None:
    slot = writer.words
    slot[Slot.STATE] += (1 << SlotState.BITS) + SlotState.COMMITTED - SlotState.ARMED
    if receipt is not None:
        receipt.row.applied = receipt.number
    for region in reversed(extents):
        row = region.table[piece.stripe]
        row[Stripe.COUNT] += 1
        row[Stripe.SEQ] += 1
    slot[Slot.STATE] -= SlotState.COMMITTED
    slot[Sibling.COUNT] = 0
    for region in extents:
        writer.locks.unlock(region.lock_byte(piece.stripe))


def _settle(writer: Writer, extents: Sequence[MappedRegion], piece: Piece) -> None:
    """Undo or finish what an exception left open, and unlock."""
    close_own(writer, extents[0])
    writer.words[Sibling.COUNT] = 0
    for region in extents:
        writer.locks.unlock(region.lock_byte(piece.stripe))
    writer.unsettled = None


def _sibling_words(extents: Sequence[MappedRegion]) -> list[tuple[int, MappedRegion]]:
    """Pair each sibling with the place of its words in the slot."""
    return [
        (Sibling.BEGIN + index * Sibling.WORDS, sibling)
        for index, sibling in enumerate(extents[1:])
    ]

"""BATCH: many small changes of any regions, one native call; each is a commit of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memnode.channel import Channel
from memnode.context import Context
from memnode.handlers_changes import Change, checked
from memnode.numbers import check_numbers, numbered
from smbox.errors import SmboxError
from smbox.memory.commit import clear_obstacle, run_orders
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.orders import ORDER_NBYTES, Back, Block, order_outcome, pack_order
from smbox.wire.codec import Request
from smbox.wire.operands import Item
from smbox.wire.ops import ANSWERS


def _commit_items(context: Context, channel: Channel, request: Request, done: int) -> None:
    """Commit the items from the first that is not done up to the first that is refused."""
    check_numbers(request, len(request.items))
    items = request.items[done:]
    changes, refusal = _checked(context, items)
    longest = max((item.nbytes for item in items if item.op in ANSWERS), default=0)
    row = channel.block_for(request.number, request.numbers, min(longest, STRIPE_NBYTES))
    block = Block(len(changes) * ORDER_NBYTES)
    sources = [np.frombuffer(item.source, np.uint8) for item in items[: len(changes)]]
    for place, (change, item) in enumerate(zip(changes, items, strict=False)):
        region, kernel, first, limit, scale = change
        pack_order(
            block,
            place,
            kernel,
            item.operand or region.dtype_code,
            (region.block.address,),
            first,
            limit,
            sources[place],
            scale,
            at=first,
            back=Back.OLD if item.op in ANSWERS else Back.NOTHING,
            channel=row.address,
            number=request.number + done + place,
        )
    _run(context, block, changes, len(request.payload))
    if refusal is not None:
        raise refusal


def _checked(context: Context, items: Sequence[Item]) -> tuple[list[Change], SmboxError | None]:
    """Check items up to the first that may not run; return the others, and its error."""
    changes: list[Change] = []
    for item in items:
        try:
            changes.append(checked(context, item, len(item.source), STRIPE_NBYTES))
        except SmboxError as error:
            return changes, error
    return changes, None


def _run(context: Context, block: Block, changes: Sequence[Change], nbytes: int) -> None:
    at, count = 0, len(changes)
    while at < count:
        at = run_orders(context.writer, block, at, count, nbytes)
        if at < count:
            _, result, met, stripe = order_outcome(block, at)
            clear_obstacle(context.writer, (changes[at].region,), result, met, stripe)


batch = numbered(_commit_items)

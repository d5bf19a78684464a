"""The changes of each client, so that sums reveal lost, doubled and torn changes. Pure.

The region has 3.5 stripes of int64. At both ends of each stripe lies a block of cells: one
that all clients share, then one for each life of each client. A change adds the same amount
to the shared cell and to the client's own, in all blocks of its window. So within a block

    shared == sum of own            at every moment: both move in one commit
    own == sum of acknowledged      and of any of the changes that nobody acknowledged

The n-th change of a life adds ``UNIT + n``: the sum tells how many there were, and which.
In the middle of each stripe every life has a row that only its puts replace.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from smbox.memory.layout import STRIPE_NBYTES

I64 = NDArray[np.int64]

CLIENTS: Final = 4
LIVES: Final = 255
"""How often a client can be started anew: each life has cells of its own."""

STRIPE: Final = STRIPE_NBYTES // 8
COUNT: Final = 7 * STRIPE // 2
STRIPES: Final = 4
BLOCK: Final = 1024
ROW: Final = 4
UNIT: Final = 1 << 40

EDGES: Final = 5
WHOLE: Final = EDGES
"""The window that is all of the region; those below lie around an edge of a stripe."""

PUTS: Final = WHOLE + 1
"""Places from here on are rows: ``PUTS + stripe``."""

assert 1 + CLIENTS * LIVES <= BLOCK
assert CLIENTS * LIVES * ROW <= STRIPE // 2 - 2 * BLOCK


def identity(client: int, life: int) -> int:
    """Number the lives of all clients: 0 to ``CLIENTS * LIVES - 1``."""
    return client * LIVES + life


def blocks(window: int) -> list[int]:
    """List the blocks of a window: ``2 * stripe`` at its head, one more at its tail."""
    if window == WHOLE:
        return list(range(2 * STRIPES))
    return [block for block in (2 * window - 1, 2 * window) if 0 <= block < 2 * STRIPES]


def touches(place: int, stripe: int) -> bool:
    """Return whether a change of this place commits in ``stripe``."""
    if place >= PUTS:
        return place == PUTS + stripe
    return any(block // 2 == stripe for block in blocks(place))


def block_cells(block: int) -> slice:
    """Return where a block lies in the region's elements."""
    stripe, at_tail = divmod(block, 2)
    limit = min((stripe + 1) * STRIPE, COUNT)
    first = limit - BLOCK if at_tail else stripe * STRIPE
    return slice(first, first + BLOCK)


def window_cells(window: int) -> slice:
    """Return what a change of this window covers: around an edge, or everything."""
    if window == WHOLE:
        return slice(0, COUNT)
    found = [block_cells(block) for block in blocks(window)]
    return slice(found[0].start, found[-1].stop)


def row_cells(stripe: int, who: int) -> slice:
    """Return the row in ``stripe`` that only the life ``who`` puts."""
    first = stripe * STRIPE + 2 * BLOCK + who * ROW
    return slice(first, first + ROW)


def pattern(who: int) -> I64:
    """Return ``i64[COUNT]``: 1 in the shared cells and in those of ``who``."""
    found = np.zeros(COUNT, np.int64)
    for block in range(2 * STRIPES):
        cells = found[block_cells(block)]
        cells[0] = cells[1 + who] = 1
    return found


def amount(number: int) -> int:
    """Return what the ``number``-th change of a life adds."""
    return UNIT + number


def block_fault(cells: I64) -> str | None:
    """Compare the shared cell of a block with the sum of the others; None if they agree."""
    own = int(cells[1:].sum())  # wraps as the shared cell does
    if own == int(cells[0]):
        return None
    return f"the shared cell holds {cells[0]}, the sum of all others is {own}"

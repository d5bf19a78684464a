"""A stripe that somebody else holds: a state of affairs, not an error of the caller's."""

from __future__ import annotations

from smbox.memory import journal
from smbox.memory.layout import Stripe
from smbox.memory.mapped import MappedRegion


class StripeBusy(Exception):
    """The lock of a stripe is held by another writer; nothing was changed.

    The commit never waits: a local caller tries again until its timeout, the node
    goes on with other channels.

    Args:
        region: the region.
        stripe: index of the stripe that is held.
    """

    def __init__(self, region: MappedRegion, stripe: int) -> None:
        super().__init__(f"stripe {stripe} of {region.spec.name!r} is held by another writer")
        self.region = region
        self.stripe = stripe

    def holder_pid(self) -> int:
        """Return the pid of the process that holds the stripe now, or 0 where nobody can tell.

        It is known inside a commit of the stripe; a reader that holds it has left no name. Who
        wrote last may be anybody.
        """
        row = self.region.table[self.stripe]
        slot_id = int(row[Stripe.WRITER]) if int(row[Stripe.SEQUENCE]) & Stripe.OPEN else 0
        if slot_id == 0 or not journal.is_alive(self.region.node, slot_id):
            return 0
        return journal.holder_pid(self.region.node, slot_id)

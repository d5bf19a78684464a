"""A stripe that somebody else holds: a state of affairs, not an error of the caller's."""

from __future__ import annotations

from smbox.memory import journal
from smbox.memory.layout import Stripe
from smbox.memory.mapped import MappedRegion


class StripeBusy(Exception):
    """The lock of a stripe is held by another writer; nothing was changed.

    The commit never waits: a local caller tries again until its timeout, the node's lane
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
        """Return the pid of the process that wrote the stripe last, or 0 if unknown.

        That is the holder while a commit is open; looked up only when an error needs it.
        """
        return journal.holder_pid(
            self.region.node, int(self.region.table[self.stripe, Stripe.WRITER])
        )

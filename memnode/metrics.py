"""What a node counts about itself; the answer to STATS. Plain integers, no clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from smbox.wire.ops import Op
from smbox.wire.status import Status


@dataclass(slots=True)
class Metrics:
    """Counts since the node started.

    Attributes:
        requests: requests by their op.
        refusals: error replies by their status.
        received_nbytes: bytes of bodies received.
        sent_nbytes: bytes of bodies sent.
        replies_dropped: replies that their client was too slow to take.
        duplicates: changes that had been applied before and were answered again.
        parked: how often a channel began to wait, for a stripe that a local client held or
            because too many copies for it were on their way.
        slots_recovered: journal slots of dead local clients rolled back or finished.
        sessions_expired: clients forgotten after long silence.
    """

    requests: Counter[Op] = field(default_factory=Counter)
    refusals: Counter[Status] = field(default_factory=Counter)
    received_nbytes: int = 0
    sent_nbytes: int = 0
    replies_dropped: int = 0
    duplicates: int = 0
    parked: int = 0
    slots_recovered: int = 0
    sessions_expired: int = 0

    def request(self, op: Op, nbytes: int) -> None:
        """Count a request of ``op`` with ``nbytes`` of body."""
        self.requests[op] += 1
        self.received_nbytes += nbytes

    def reply(self, status: Status, nbytes: int) -> None:
        """Count a reply of ``nbytes`` of body; refusals by their status."""
        self.sent_nbytes += nbytes
        if status not in {Status.OK, Status.PARKED}:
            self.refusals[status] += 1

    def facts(self) -> dict[str, int]:
        """Return all counts under flat names, ``requests.PUT`` and the like."""
        counted = {
            "received_nbytes": self.received_nbytes,
            "sent_nbytes": self.sent_nbytes,
            "replies_dropped": self.replies_dropped,
            "duplicates": self.duplicates,
            "parked": self.parked,
            "slots_recovered": self.slots_recovered,
            "sessions_expired": self.sessions_expired,
        }
        counted |= {f"requests.{op.name}": count for op, count in sorted(self.requests.items())}
        counted |= {f"refusals.{s.name}": count for s, count in sorted(self.refusals.items())}
        return counted

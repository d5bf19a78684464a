"""One request on its way, from the moment it is wanted until its reply. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from smbox.errors import RemoteProtocolError
from smbox.wire.batch import answers_nbytes
from smbox.wire.codec import Reply, Request, encode_request
from smbox.wire.header import Buffer
from smbox.wire.ops import ANSWERS, COPIED, Op
from smbox.wire.status import Status


@dataclass(slots=True, eq=False)
class Call:
    """A request, what became of it, and where it stands.

    Whoever began it looks at ``reply``, which is stored before anything else happens: a
    caller that is interrupted in the middle of receiving loses nothing.

    Attributes:
        request: as it was or will be sent; the session owns its ``number``.
        numbers: how many numbers it takes; 0 for what changes nothing.
        reply: the answer, once it is there.
        connection: the connection it was last sent on; 0: has to be sent (again).
        offers: how often it was given out for sending; 0: certainly not sent.
    """

    request: Request
    numbers: int = 0
    reply: Reply | None = None
    connection: int = 0
    offers: int = 0

    @property
    def is_change(self) -> bool:
        """Whether the request takes numbers."""
        return self.numbers > 0

    @property
    def last(self) -> int:
        """Number of the last commit, if all of them happen."""
        return self.request.number + self.numbers - 1

    @property
    def done(self) -> int:
        """How many of its commits are known to have happened, from the first on."""
        if self.reply is None:
            return 0
        if self.reply.status is Status.OK or self.reply.error is None:
            return self.numbers
        return max(0, min(self.numbers, self.reply.error.applied - self.request.number + 1))

    @property
    def needs_answer(self) -> bool:
        """Whether to know that it was applied is not enough."""
        return not self.is_change or self.request.op in ANSWERS

    @property
    def fills_ring(self) -> bool:
        """Whether the node keeps old bytes of it, for a copy of the request to ask for."""
        request = self.request
        if request.op is Op.BATCH:
            return any(item.op in ANSWERS for item in request.items)
        return self.is_change and request.op in ANSWERS

    @property
    def source_nbytes(self) -> int:
        """Bytes of data that the request brings."""
        request = self.request
        if request.op is Op.BATCH:
            return sum(len(item.source) for item in request.items)
        return len(request.payload)

    @property
    def held_nbytes(self) -> int:
        """Bytes that the node holds while a peer does not read: a copy, and what it came for.

        The answer of a change that is no batch is none: it is sent out of the channel's ring.
        """
        request = self.request
        if request.op is Op.BATCH:
            answers = answers_nbytes(request.items)
            return answers and answers + self.source_nbytes
        return request.nbytes if request.op in COPIED and not self.is_change else 0

    @property
    def lent_nbytes(self) -> int:
        """Bytes that come without a copy at the node."""
        return self.request.nbytes if self.request.op is Op.LEND else 0

    def is_answered_by(self, reply: Reply) -> bool:
        """Tell a reply to the last copy of the request from those to copies of other numbers.

        Raises:
            RemoteProtocolError: it answers another op.
        """
        if reply.number != self.request.number:
            return False
        if reply.op is not self.request.op:
            raise RemoteProtocolError(
                "reply to another op", asked=self.request.op.name, got=reply.op.name
            )
        return True

    def frames(self) -> list[Buffer]:
        """Encode the request; its payload is not copied."""
        return encode_request(self.request)

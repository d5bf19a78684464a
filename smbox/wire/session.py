"""The client's half of a session: numbers, window, replies, what to send again. Pure.

No clock, no socket: the link asks what to send, says what it sent, hands in what came, and
decides when silence has lasted too long; then it opens a fresh connection and says hello.

    link                                    session
    frames = session.hello(); send          counts a new connection
    session.receive(frames)                 WELCOME: drops what is done, lines up the rest
    call = session.next_to_send()           gives numbers, in order, within the window
    send(call.frames()); session.sent()     or session.unsent() if the transport is full
    session.receive(frames)                 stores the reply in its call
    session.needs_hello                     True: close the socket, open another, hello()

A small request that is alone needs no call until something goes wrong with it, nor do reads:

    session.offer_lone(request, numbers)    gives it its number, if nothing else is there
    session.offer_reads()                   gives what those of one read have in common
    send(...); session.settle_lone(request) or session.line_up_lone(call): it stands in line

An interrupt may strike between any two lines. So nothing is counted that can be derived: the
number of a request follows from the requests before it, every time it is asked for, and the
first thing stored about a reply is the reply itself.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence

from smbox.errors import LocalProtocolError, SessionExpiredError
from smbox.wire.call import Call
from smbox.wire.codec import Reply, Request, decode_reply, encode_request
from smbox.wire.header import Buffer
from smbox.wire.messages import Hello, Welcome
from smbox.wire.ops import CHANGES, Op
from smbox.wire.status import Status
from smbox.wire.window import Window


class ClientSession:
    """Numbers the requests of one channel and finds their replies.

    Used by one thread at a time.

    Args:
        hello: names the client and its channel; the same for every connection.
    """

    def __init__(self, hello: Hello) -> None:
        self.expired: SessionExpiredError | None = None
        self._hello = hello
        self._welcome: Welcome | None = None
        self._ids = itertools.count(1)
        self._hello_id = 0
        self._connection = 0
        self._greeted = False
        self._offered: Call | None = None
        self._waiting: deque[Call] = deque()
        self._window = Window()

    @property
    def welcome(self) -> Welcome | None:
        """What the node last said about itself; None before the first answer."""
        return self._welcome

    @property
    def needs_hello(self) -> bool:
        """Whether only a fresh connection helps: none yet, refused, or in an unknown state."""
        if not self._greeted or self._offered is not None:
            return True
        return self._window.lone is not None

    @property
    def is_unanswered(self) -> bool:
        """Whether a reply is due: the link lets its patience run only then."""
        return self._window.is_unanswered

    @property
    def is_all_sent(self) -> bool:
        """Whether ``next_to_send`` has nothing to give; asked by who was not interrupted."""
        return not self._waiting and self._window.is_sent(self._connection)

    @property
    def acknowledged(self) -> int:
        """The number up to which every change is answered."""
        return self._window.acknowledged

    def hello(self) -> list[Buffer]:
        """Begin a connection: the frames that must be the first on a fresh socket."""
        self._greeted = False
        self._offered = None
        self._connection += 1
        self._hello_id = next(self._ids)
        return encode_request(Request(Op.HELLO, self._hello_id, body=self._hello))

    def begin(self, request: Request, numbers: int = 0) -> Call:
        """Queue a request; it is numbered when it is given out.

        Args:
            request: its ``request`` and ``number`` are filled in here.
            numbers: stripes touched by a change (``pieces.count``) or items of a batch.

        Raises:
            SessionExpiredError: the node has forgotten this session; begin another.
            LocalProtocolError: a change without numbers, or the other way round.
        """
        call = Call(request, numbers)
        self.enqueue(call)
        return call

    def enqueue(self, call: Call) -> None:
        """Queue a call that its owner keeps already: as ``begin``, and safe to repeat.

        Who was interrupted in here (or in ``begin``, which may leave a call that nobody
        knows) enqueues again; a call that is queued, under way or answered stays as it is.
        """
        if self.expired is not None:
            raise self.expired
        if (call.request.op in CHANGES) != (call.numbers > 0):
            raise LocalProtocolError(
                "changes take numbers", op=call.request.op.name, numbers=call.numbers
            )
        if call.reply or call in self._waiting or call.request.request in self._window.calls:
            return
        call.request.numbers = call.numbers
        if not call.request.request:
            call.request.request = next(self._ids)
        self._waiting.append(call)

    def withdraw(self, call: Call) -> bool:
        """Take back a request that was never given out; False: it may have been sent."""
        if call.request.request in self._window.calls or call not in self._waiting:
            return False
        self._waiting.remove(call)
        return True

    def recall(self, call: Call) -> None:
        """Forget a change that follows a refused one, sent or not: it will never happen.

        Only before anything else is sent: with the number that it has, the node takes it for
        a GAP, because the refused change took none.
        """
        if call in self._waiting:
            self._waiting.remove(call)
        self._window.remove(call)

    def next_to_send(self) -> Call | None:
        """Return the next request to hand to the transport, numbered; None: nothing to send.

        The link must then call ``sent`` or ``unsent``. When it could not (an interrupt), the
        request may or may not be on its way, and a second copy on the same connection would
        be judged a second time: ``needs_hello`` turns True and nothing more is given out.
        """
        if self.needs_hello or self.expired is not None:
            return None
        self._drop_opened()
        self._window.line_up()
        call = self._window.first_unsent(self._connection) or self._open_next()
        if call is not None:
            self._offered = call
            call.offers += 1
        return call

    def sent(self) -> None:
        """Confirm that the transport took the request last given out."""
        if self._offered is None:
            raise LocalProtocolError("nothing was given out")
        self._offered.connection = self._connection
        self._offered = None

    def unsent(self) -> None:
        """Say that the transport took no byte of the request last given out."""
        if self._offered is not None:
            self._offered.offers -= 1
        self._offered = self._window.lone = None

    def offer_lone(self, request: Request, numbers: int) -> bool:
        """Number a request that is given out alone, without a call; False: others are there.

        Followed by ``settle_lone`` or ``line_up_lone``. When it could not be (an interrupt),
        nothing more is given out until the node has said, in its greeting, what was applied.
        """
        if self._waiting or self.needs_hello or self.expired is not None:
            return False
        return self._window.offer_lone(request, next(self._ids), numbers)

    def settle_lone(self, request: Request) -> None:
        """Confirm that the lone request was done."""
        self._window.settle_lone(request)

    def line_up_lone(self, call: Call) -> None:
        """Go on with a request that was sent without a call as with any other."""
        call.offers = 1
        call.connection = self._connection
        self._window.line_up_lone(call)

    def offer_reads(self) -> tuple[Iterator[int], int] | None:
        """Give the ids and the fence of reads that need no call; None: others are there."""
        if self._waiting or self.needs_hello or self.expired is not None or self._window.calls:
            return None
        return self._ids, self._window.acknowledged

    def receive(self, frames: Sequence[Buffer]) -> Call | None:
        """Take one message of the node.

        Returns:
            The call that it answers; None if it answers nothing that is still open.

        Raises:
            RemoteProtocolError: not a message of the protocol; drop the connection.
            SessionExpiredError: the node does not know what it acknowledged.
            SmboxError: the node refused the HELLO; nothing was sent on this connection.
        """
        reply = decode_reply(frames)
        if reply.op is Op.HELLO:
            self._greet(reply)
            return None
        if reply.status is Status.NO_SESSION:
            self._greeted = False
            return None
        call = self._window.calls.get(reply.request)
        if call is None or call.reply is not None or not call.is_answered_by(reply):
            return None
        if reply.status is Status.GAP:
            self._gap(call)
            return None
        return self._answer(call, reply)

    def _answer(self, call: Call, reply: Reply) -> Call:
        if reply.status is Status.SESSION_EXPIRED:
            self._expire("the node has ended this session")
        call.reply = reply
        if reply.room:
            self._window.room_nbytes = reply.room << 20
        self._window.settle()
        if reply.status is not Status.OK:
            self._window.line_up()
        return call

    def _gap(self, call: Call) -> None:
        """Ignore a GAP behind a refusal; without one the node lost what it acknowledged."""
        self._window.settle()
        before = call.request.number - 1 if call.is_change else call.request.number
        self._window.line_up()
        if call.connection and before <= self._window.acknowledged:
            self._expire("the node lost changes that it had acknowledged")

    def _greet(self, reply: Reply) -> None:
        if reply.request != self._hello_id:
            return
        if not isinstance(reply.body, Welcome):
            raise reply.raised()
        found, known = reply.body, self._welcome
        self._window.settle()
        self._window.line_up()
        if known is None:
            self._window.acknowledged = found.applied
        else:
            self._compare(known, found)
        self._welcome = found
        self._window.end_lone(found.applied)
        self._window.finish_applied(found.applied)
        self._greeted = True

    def _compare(self, known: Welcome, found: Welcome) -> None:
        """Check that it is the memory and the channel that we left."""
        if (known.node_uuid, known.epoch) != (found.node_uuid, found.epoch):
            self._expire("another memory answers at this address")
        offered = self._window.open_changes
        if not offered and not found.resumed:
            self._window.acknowledged = found.applied
        applied_known = self._window.acknowledged <= found.applied <= self._window.last
        if not applied_known or (offered and not found.resumed):
            self._expire("the node has forgotten this client")

    def _expire(self, message: str) -> None:
        self._greeted = False
        self.expired = SessionExpiredError(message, outcome="unknown")
        raise self.expired

    def _open_next(self) -> Call | None:
        """Move the next waiting request into the window, if there is room."""
        welcome = self._welcome
        if not self._waiting or welcome is None:
            return None
        call = self._waiting[0]
        if not self._window.has_room(call, welcome):
            return None
        self._window.add(call)
        self._drop_opened()
        self._window.line_up()
        return call

    def _drop_opened(self) -> None:
        """Finish a move into the window that was interrupted half way."""
        if self._waiting and self._waiting[0].request.request in self._window.calls:
            self._waiting.popleft()

"""Bodies of control messages: a msgspec struct for each request and reply. Pure.

A body is encoded as a msgpack map. Unknown names are ignored and new names have defaults, so
either end can add a field within one protocol version.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from smbox.wire.ops import Op

Id16 = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
"""Sixteen random bytes: a client, a node, a creation."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Kind = Annotated[int, msgspec.Meta(ge=1, le=255)]
"""1 array, 2 counter, 3 barrier; each kind has its own namespace."""

Consistency = Annotated[int, msgspec.Meta(ge=1, le=255)]
"""1 stripe, 3 none."""

NONCE_NBYTES: Final = 16
PROOF_NBYTES: Final = 32

ARRAY: Final = 1
STRIPE: Final = 1


class Body(msgspec.Struct, frozen=True):
    """Base of all bodies."""


class Hello(Body, frozen=True):
    """Opens or resumes the session of one channel of a client on this connection.

    Attributes:
        client_id: of the process's Box; the same on every channel and reconnect.
        channel: number of this channel (one thread, one socket) at the client.
        nonce: random, of this session; empty if the client requests no proof.
        node_uuid: of the memory that the client expects; empty before it knows one. A node with
            another memory refuses.
        proof: the answer to the node's challenge (smbox/wire/proving.py); empty before the
            client has the challenge.
        pid: process id of the client, for error messages.
        host: name of the client's host, for error messages and lists.
    """

    client_id: Id16
    channel: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    nonce: Annotated[bytes, msgspec.Meta(max_length=NONCE_NBYTES)] = b""
    proof: Annotated[bytes, msgspec.Meta(max_length=PROOF_NBYTES)] = b""
    node_uuid: Annotated[bytes, msgspec.Meta(max_length=16)] = b""
    pid: Count = 0
    host: Annotated[str, msgspec.Meta(max_length=256)] = ""


class Welcome(Body, frozen=True):
    """Answers HELLO: the node's identity, its limits, and the last applied number.

    Attributes:
        node_name: prefix of its segments.
        node_uuid: of its memory.
        node_id: upper 16 bits of its addresses.
        incarnation: how often a node has opened this memory.
        window: requests of one channel that may be in flight.
        ring_entries: a change that is answered with bytes may take number n once
            n - ring_entries is acknowledged.
        answers_nbytes: limit of one channel for the bytes of answers in flight to reads and to
            batches, plus the sources of such batches.
        sources_nbytes: bytes of data that one channel may have in flight to the node, until a
            reply grants another credit.
        lent_nbytes: bytes of one channel that LENDs in flight may ask for.
        applied: number of the last change applied on this channel; 0 for a new one.
        resumed: the node knew this channel.
        proof: proves that the node knows the cookie; empty if HELLO had no nonce.
    """

    node_name: str
    node_uuid: Id16
    node_id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
    incarnation: Count
    window: Annotated[int, msgspec.Meta(gt=0)]
    ring_entries: Annotated[int, msgspec.Meta(gt=0)]
    applied: Count
    resumed: bool = False
    answers_nbytes: Annotated[int, msgspec.Meta(gt=0)] = 4 << 20
    sources_nbytes: Annotated[int, msgspec.Meta(gt=0)] = 4 << 20
    lent_nbytes: Annotated[int, msgspec.Meta(gt=0)] = 16 << 20
    proof: Annotated[bytes, msgspec.Meta(max_length=PROOF_NBYTES)] = b""


class Empty(Body, frozen=True):
    """Body without fields: BYE, PING, the request STATS, the reply to FREE."""


class Create(Body, frozen=True, kw_only=True):
    """Creates a region.

    Attributes:
        init: value of every element, or None: zeros.
        publish: False leaves it BUILDING: only its creator knows its address.
        exist_ok: if a region of this name and layout exists, answer with it.
        token: random; a repeated request finds the region that it created by it.
    """

    name: Name
    kind: Kind = ARRAY
    dtype: str
    shape: Annotated[tuple[Count, ...], msgspec.Meta(max_length=8)]
    consistency: Consistency = STRIPE
    init: bool | int | float | None = None
    publish: bool = True
    exist_ok: bool = False
    token: Id16


class Publish(Body, frozen=True):
    """Makes a BUILDING region live under its name.

    If another region has the name, nothing changes, and the answer is REGION_EXISTS.
    """

    address: Count


class Attach(Body, frozen=True):
    """Looks up a live region by name, or the region that contains an address.

    A request has a name or an address. An unknown name is REGION_NOT_FOUND, an unknown address
    ADDRESS_RANGE, an address of freed memory REGION_FREED.
    """

    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    kind: Kind = ARRAY
    address: Count | None = None


class Free(Body, frozen=True):
    """Frees the region that begins at ``address``, or discards what a CREATE began.

    Attributes:
        address: of the region; None: ``token`` is used.
        token: of a CREATE whose reply the client does not know. Its unpublished region is
            freed, or not created; it is no error if there is none.
        published: with ``token``, free the region even if it was published.
    """

    address: Count | None = None
    token: Id16 | None = None
    published: bool = False


class ListRegions(Body, frozen=True):
    """Lists live regions at addresses above ``after``."""

    after: Annotated[int, msgspec.Meta(ge=-1)] = -1
    limit: Annotated[int, msgspec.Meta(gt=0, le=1000)] = 1000


class RegionBody(Body, frozen=True):
    """Describes one region; answers CREATE and ATTACH."""

    address: Count
    name: str
    kind: Kind
    dtype: str
    shape: tuple[Count, ...]
    consistency: Consistency


class Regions(Body, frozen=True):
    """Answers LIST, sorted by address; ``more``: repeat LIST after the last address."""

    regions: tuple[RegionBody, ...]
    more: bool = False


class StatsReply(Body, frozen=True):
    """Answers STATS: named figures; docs/protocol.md lists those of every node."""

    facts: dict[str, Any]


class ErrorBody(Body, frozen=True):
    """Body of every reply whose status is not OK.

    Attributes:
        message: text for people.
        facts: named values of the error that the client raises.
        applied: number of the last change applied on this channel.
        old: answers of the applied commits of a refused ELASTIC, FETCH or BATCH.
    """

    message: str = ""
    facts: dict[str, Any] = {}
    applied: Count = 0
    old: bytes = b""


BODIES: Final[dict[Op, tuple[type[Body], type[Body]]]] = {
    Op.HELLO: (Hello, Welcome),
    Op.BYE: (Empty, Empty),
    Op.PING: (Empty, Empty),
    Op.CREATE: (Create, RegionBody),
    Op.PUBLISH: (Publish, Empty),
    Op.ATTACH: (Attach, RegionBody),
    Op.FREE: (Free, Empty),
    Op.LIST: (ListRegions, Regions),
    Op.STATS: (Empty, StatsReply),
}
"""Body of each control request, and of its reply with status OK."""

REQUESTS: Final = {op: request for op, (request, _) in BODIES.items()}
REPLIES: Final = {op: reply for op, (_, reply) in BODIES.items()}

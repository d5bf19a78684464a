"""HMAC challenge-response: proof that client and node share a host and a user. Pure.

Both can read the node's cookie, a secret in /dev/shm, which is never sent. Each proves it by an
HMAC over the node's challenge, the memory's uuid, the client's nonce, its id and its channel.
So a proof is invalid at another node, for another channel, and in the other direction.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated, Final

import msgspec
from msgspec.structs import asdict

from smbox.errors import AccessDeniedError
from smbox.wire.messages import NONCE_NBYTES, Hello, Welcome

CLIENT: Final = b"client"
NODE: Final = b"node"
"""Roles: who gives a proof."""

Hex16 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
"""Sixteen bytes in hexadecimal, as facts of an error carry them."""

_NONCE: Final = b"nonce"


class Challenge(msgspec.Struct, frozen=True):
    """The challenge of a node, sent in the facts of a refusal.

    Attributes:
        node_name: prefix of its segments; the client finds the cookie by it.
        node_uuid: of its memory.
        nonce: the node's; constant for the life of the memory, because channels reconnect.
    """

    node_name: str
    node_uuid: Hex16
    nonce: Hex16

    @classmethod
    def from_facts(cls, facts: dict[str, object]) -> Challenge | None:
        """Decode the challenge in the facts of an error; None if there is none."""
        try:
            return msgspec.convert(facts, cls)
        except msgspec.ValidationError:
            return None

    def facts(self) -> dict[str, object]:
        """Encode the challenge as facts of an error."""
        return asdict(self)


def challenge_of(cookie: bytes, node_name: str, node_uuid: bytes) -> Challenge:
    """Return the challenge of a node that has this cookie."""
    nonce = hmac.digest(cookie, _NONCE + node_uuid, hashlib.sha256)[:NONCE_NBYTES]
    return Challenge(node_name, node_uuid.hex(), nonce.hex())


def check_welcome(welcome: Welcome, expected: bytes) -> None:
    """Raise AccessDeniedError unless a WELCOME has the expected proof (empty: no proof)."""
    if not hmac.compare_digest(welcome.proof, expected):
        raise AccessDeniedError(
            "this server is not the node that it claims to be; no data was sent to it",
            node_name=welcome.node_name,
        )


def proof_of(role: bytes, cookie: bytes, challenge: Challenge, hello: Hello) -> bytes:
    """Return the HMAC of fields of fixed length and, last, the node's name.

    Args:
        role: CLIENT for the proof in ``hello``, whose field ``proof`` is ignored; NODE for the
            proof in the WELCOME that answers it.
        cookie: the node's.
        challenge: the node's.
        hello: the greeting.
    """
    fields = (
        role.ljust(8),
        bytes.fromhex(challenge.node_uuid),
        bytes.fromhex(challenge.nonce),
        hello.nonce,
        hello.client_id,
        hello.channel.to_bytes(4, "little"),
        challenge.node_name.encode(),
    )
    return hmac.digest(cookie, b"".join(fields), hashlib.sha256)

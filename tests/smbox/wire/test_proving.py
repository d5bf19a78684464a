from __future__ import annotations

import pytest
from msgspec.structs import replace

from smbox.errors import AccessDeniedError
from smbox.testing.welcome import welcome
from smbox.wire.messages import Hello
from smbox.wire.proving import (
    CLIENT,
    NODE,
    Challenge,
    challenge_of,
    check_welcome,
    proof_of,
)

COOKIE = bytes(range(32))
CHALLENGE = challenge_of(COOKIE, "n", b"u" * 16)
HELLO = Hello(client_id=bytes(16), channel=1, nonce=b"c" * 16)


def test_a_challenge_travels_as_facts():
    assert Challenge.from_facts(CHALLENGE.facts()) == CHALLENGE
    for broken in ({}, {"nonce": "no hex"}, {"nonce": "00"}, {"node_uuid": 5}):
        assert Challenge.from_facts(CHALLENGE.facts() | broken) == (
            None if broken else CHALLENGE
        )


def test_a_proof_depends_on_all_that_it_is_about():
    other = Hello(client_id=bytes(16), channel=2, nonce=b"c" * 16)
    proofs = {
        proof_of(CLIENT, COOKIE, CHALLENGE, HELLO),
        proof_of(NODE, COOKIE, CHALLENGE, HELLO),
        proof_of(CLIENT, bytes(32), CHALLENGE, HELLO),
        proof_of(CLIENT, COOKIE, CHALLENGE, other),
        *(
            proof_of(CLIENT, COOKIE, replace(CHALLENGE, **changed), HELLO)
            for changed in ({"node_name": "m"}, {"node_uuid": "00" * 16}, {"nonce": "00" * 16})
        ),
    }
    assert len(proofs) == 7


def test_a_welcome_brings_the_proof_that_is_wanted():
    proof = proof_of(NODE, COOKIE, CHALLENGE, HELLO)
    check_welcome(welcome(), b"")
    check_welcome(welcome(proof=proof), proof)
    for found in (b"", proof[:-1] + b"x"):
        with pytest.raises(AccessDeniedError):
            check_welcome(welcome(proof=found), proof)

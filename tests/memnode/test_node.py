from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies
from msgspec.structs import replace

from memnode import sessions
from memnode.node import Node
from memnode.sessions import SILENT_S
from smbox.errors import SystemLimitError
from smbox.memory.journal import Writer
from smbox.memory.layout import slot_name
from smbox.memory.segment import listing
from smbox.wire.codec import Header, Request, encode_request
from smbox.wire.messages import Empty, Hello
from smbox.wire.ops import Op, Status
from smbox.wire.proving import CLIENT, NODE, Challenge, proof_of


def test_the_welcome_says_who_the_node_is_and_its_limits(bench):
    welcome = bench.peer(hello=False).hello().body
    assert welcome.node_name == bench.name
    assert welcome.node_uuid == bench.memory.superblock.uuid
    assert (welcome.applied, welcome.resumed) == (0, False)
    assert (welcome.window, welcome.ring_entries) == (16, 32)


@pytest.mark.parametrize("proof", [b"", b"wrong", bytes(32)])
def test_a_private_address_wants_a_proof(bench, proof):
    peer = bench.peer(hello=False)
    reply = peer.hello(proof=proof)
    assert reply.status is Status.ACCESS_DENIED
    assert Challenge.from_facts(reply.error.facts) == peer.challenge
    assert bench.memory.cookie.hex() not in str(reply.error.facts)
    assert peer.ask(Op.PING, body=Empty()).status is Status.NO_SESSION


def test_a_challenge_counts_as_no_refusal_and_a_wrong_proof_does(bench):
    peer = bench.peer(hello=False)
    peer.hello(proof=b"")
    assert "refusals.ACCESS_DENIED" not in bench.node.context.facts()
    peer.hello(proof=bytes(32))
    assert bench.node.context.facts()["refusals.ACCESS_DENIED"] == 1


def test_a_proof_is_one_channels_at_one_memory(bench):
    peer = bench.peer(hello=False)
    hello = Hello(client_id=peer.client_id, channel=0, nonce=bytes(16))
    good = proof_of(CLIENT, peer.cookie, peer.challenge, hello)
    assert peer.hello(nonce=bytes(16), proof=good, channel=1).status is Status.ACCESS_DENIED
    for other in (
        replace(peer.challenge, node_name="other"),
        replace(peer.challenge, node_uuid="00" * 16),
        replace(peer.challenge, nonce="00" * 16),
    ):
        proof = proof_of(CLIENT, peer.cookie, other, hello)
        assert peer.hello(nonce=bytes(16), proof=proof).status is Status.ACCESS_DENIED
    back = proof_of(NODE, peer.cookie, peer.challenge, hello)
    assert peer.hello(nonce=bytes(16), proof=back).status is Status.ACCESS_DENIED
    welcome = peer.hello(nonce=bytes(16), proof=good).body
    assert welcome.proof == back


def test_an_open_address_wants_none(bench):
    bench.node = Node(bench.memory, now_s=0.0, open_binds=frozenset({1}))
    assert bench.peer(bind=1, hello=False).hello(proof=b"").status is Status.OK
    assert bench.peer(hello=False).hello(proof=b"").status is Status.ACCESS_DENIED


def test_there_are_only_so_many_clients(bench, monkeypatch):
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 1)
    bench.peer()
    assert bench.peer(hello=False).hello().status is Status.LIMIT


def test_who_is_gone_takes_nobodys_place(bench, monkeypatch):
    """A crashed client says no goodbye; its channel stays known, for it may come back."""
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 2)
    gone = set()
    bench.node = Node(
        bench.memory, now_s=0.0, is_connected=lambda connection: connection not in gone
    )
    first, second = bench.peer(), bench.peer()
    first.create("w")
    assert bench.peer(hello=False).hello().status is Status.LIMIT
    gone.update({(0, b"peer-1"), (0, b"peer-2")})
    bench.tick(after_s=1.0)
    third = bench.peer()
    assert third.ask(Op.PING, body=Empty()).status is Status.OK
    assert first.hello(generation=2).body.resumed
    assert second.ask(Op.PING, body=Empty()).status is Status.NO_SESSION


def test_a_ring_goes_with_its_peer_once_no_answer_can_be_asked_for_again(bench):
    gone = set()
    bench.node = Node(
        bench.memory, now_s=0.0, is_connected=lambda connection: connection not in gone
    )
    peer = bench.peer()
    address = peer.create("w").body.address
    before = bench.memory.used_nbytes()
    assert peer.add(address, np.ones(8, np.float32), op=Op.FETCH).status is Status.OK
    with_ring = bench.memory.used_nbytes()
    assert with_ring > before
    bench.tick(after_s=SILENT_S)
    assert peer.ask(Op.PING, number=1, body=Empty()).status is Status.OK  # it is connected
    gone.add((0, b"peer-1"))
    bench.tick(after_s=SILENT_S)
    assert bench.memory.used_nbytes() == with_ring  # it may come back for the answer
    gone.clear()
    assert peer.hello().body.resumed
    assert peer.ask(Op.PING, number=1, version=1, body=Empty()).status is Status.OK
    bench.tick(after_s=SILENT_S)
    assert bench.memory.used_nbytes() == with_ring
    gone.add((0, b"peer-1"))
    bench.tick(after_s=SILENT_S)
    assert bench.memory.used_nbytes() == before
    gone.clear()
    found = peer.hello().body
    assert (found.resumed, found.applied) == (True, 1)
    assert peer.add(address, np.ones(8, np.float32), op=Op.FETCH).status is Status.OK


def test_a_peer_that_waits_for_a_version_has_not_said_that_it_has_its_answers(bench):
    bench.node = Node(bench.memory, now_s=0.0, is_connected=lambda _: False)
    peer = bench.peer()
    address = peer.create("w").body.address
    assert peer.add(address, np.ones(8, np.float32), op=Op.FETCH).status is Status.OK
    with_ring = bench.memory.used_nbytes()
    waited = peer.ask(Op.WAIT, address=address, number=1, version=1, nbytes=100)
    assert waited.status is Status.OK
    bench.tick(after_s=SILENT_S)
    assert peer.ask(Op.PING, body=Empty()).status is Status.NO_SESSION  # it was looked for
    assert bench.memory.used_nbytes() == with_ring


def test_goodbye_ends_the_session_and_forgets_the_channel(bench):
    peer = bench.peer()
    mine = peer.create("w", publish=False).body
    assert peer.ask(Op.BYE, body=Empty()).status is Status.OK
    assert peer.ask(Op.PING, body=Empty()).status is Status.NO_SESSION
    assert bench.memory.channels.rows() == []
    assert mine.address not in bench.memory.regions
    assert not peer.hello().body.resumed


def test_a_silent_client_is_forgotten(bench):
    silent, other = bench.peer(), bench.peer()
    address = silent.create("w").body.address
    silent.fetch_add(address, np.ones(1, np.float32))
    bench.tick(after_s=299)
    other.ask(Op.PING, body=Empty())
    bench.tick(after_s=2)
    assert silent.ask(Op.PING, body=Empty()).status is Status.NO_SESSION
    assert other.ask(Op.PING, body=Empty()).status is Status.OK
    assert len(bench.memory.channels.rows()) == 1
    assert bench.node.context.metrics.sessions_expired == 1
    welcome = silent.hello().body
    assert (welcome.resumed, welcome.applied) == (False, 0)
    assert silent.fetch_add(address, np.ones(1, np.float32), number=1).status is Status.OK


def test_channels_of_an_earlier_run_expire_too(bench):
    bench.peer()
    bench.restart()
    assert len(bench.memory.channels.rows()) == 1
    bench.tick(after_s=301)
    assert bench.memory.channels.rows() == []


def test_the_slot_of_a_dead_local_client_is_removed(bench):
    dead, alive = Writer.create(bench.name), Writer.create(bench.name)
    dead.locks.close()  # its lock goes, as with its process; its slot stays
    bench.tick(after_s=1.5)
    assert listing(slot_name(bench.name, dead.slot_id)) == []
    assert listing(slot_name(bench.name, alive.slot_id)) != []
    assert bench.node.context.metrics.slots_recovered == 1
    alive.close()


def test_sessions_expire_though_dead_clients_cannot_be_looked_for(bench, monkeypatch):
    bench.peer()

    def refuse():
        raise SystemLimitError("too many open files")

    monkeypatch.setattr(bench.memory, "sweep_slots", refuse)
    bench.tick(after_s=301)
    assert bench.node.context.metrics.sessions_expired == 1


def test_an_idle_node_lets_the_server_sleep(bench):
    bench.peer()
    assert bench.node.poll_s == 1.0


def test_the_page_names_every_figure(bench):
    peer = bench.peer()
    peer.get(peer.create("w").body.address, 4)
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    figures = page.split("- **STATS** gives")[1].split("\n- **")[0]
    named = {name.partition(".")[0] for name in re.findall(r"`([\w.]+)`", figures)}
    told = {name.partition(".")[0] for name in bench.node.context.facts()}
    assert told | {"refusals"} == named


def test_the_figures(bench):
    peer = bench.peer()
    address = peer.create("w").body.address
    peer.put(address, np.ones(4, np.float32))
    peer.get(address, 32)
    peer.ask(Op.GET, address=1, nbytes=4)
    bench.tick(after_s=3.0)
    facts = bench.node.context.facts()
    assert facts["pid"] == os.getpid()
    assert facts["received_nbytes"] == 16
    assert facts["sent_nbytes"] == 32
    assert facts["refusals.ADDRESS_RANGE"] == 1
    assert facts["uptime_s"] == 3.0
    assert facts["incarnation"] == 1


@pytest.mark.parametrize("frames", [[], [b""], [b"x" * 64], [b"SMBX" + bytes(60)] * 3])
def test_garbage_is_survived(bench, frames):
    bench.deliver((0, b"stranger"), frames)
    assert bench.peer().ask(Op.PING, body=Empty()).status is Status.OK


OFFSETS = strategies.integers(-64, 64) | strategies.integers(0, (1 << 64) - 1)
SMALL = strategies.integers(0, 80) | strategies.integers(0, (1 << 64) - 1)


@strategies.composite
def any_request(draw, address):
    """A header that is well formed, with fields that need not make sense, and a body."""
    head = Header(
        draw(strategies.sampled_from(sorted(set(Op) - {Op.HELLO, Op.BYE}))),
        kernel=draw(strategies.integers(0, 12)),
        request=draw(strategies.integers(0, 9)),
        number=draw(strategies.integers(0, 4) | SMALL),
        address=(address + draw(OFFSETS)) % (1 << 64),
        nbytes=draw(SMALL),
        scale=draw(strategies.binary(min_size=8, max_size=8)),
        version=draw(SMALL),
        numbers=draw(strategies.integers(0, 3)),
        generation=1,
        operand=draw(strategies.sampled_from([0, 0, 10, 11, 12])),
    ).pack()
    return [head, *draw(strategies.lists(strategies.binary(max_size=80), max_size=1))]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=strategies.data())
def test_no_request_breaks_the_node(bench, data):
    peer = bench.peer()
    address = peer.create("w", (16,), init=3.0, exist_ok=True).body.address
    frames = data.draw(any_request(address))
    peer.send(frames)
    bench.tick()
    for left in bench.inbox.values():
        left.clear()
    other = bench.peer()
    assert other.get(address, 64).size == 16
    assert other.fetch_add(address, np.ones(1, np.float32)).status is Status.OK
    for each in (peer, other):
        each.send(encode_request(Request(Op.BYE, request=999, body=Empty(), generation=1)))

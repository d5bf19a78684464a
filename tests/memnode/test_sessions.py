from __future__ import annotations

from contextlib import closing

from memnode import sessions
from memnode.sessions import EXPIRY_S
from smbox.wire.messages import Empty
from smbox.wire.ops import Op, Status


def is_known(peer) -> bool:
    return peer.ask(Op.PING, body=Empty()).status is Status.OK


def come_back(bench, peer, **fields):
    """Say HELLO for the peer's channel on another connection."""
    again = bench.peer(hello=False)
    again.client_id, again.generation = peer.client_id, peer.generation
    return again, again.hello(**fields)


def test_a_channel_that_comes_back_replaces_its_former_connection(bench, peer):
    again, reply = come_back(bench, peer)
    assert reply.body.resumed
    assert is_known(again)
    assert not is_known(peer)
    assert bench.node.context.facts()["sessions"] == 1


def test_another_hello_on_a_connection_replaces_its_session(bench, peer):
    other = bench.peer()
    peer.client_id, peer.generation = other.client_id, other.generation
    assert peer.hello().body.resumed
    assert bench.node.context.facts()["sessions"] == 1
    assert bench.node.context.facts()["channels"] == 2
    assert is_known(peer)
    assert not is_known(other)


def test_another_hello_on_a_connection_ends_what_its_session_has_begun(bench, peer):
    region = peer.create("w").body.address
    assert peer.ask(Op.SNAPSHOT, address=region, nbytes=32).error is None
    assert len(bench.memory.regions) == 2
    peer.client_id = bytes(16)
    assert peer.hello().status is Status.OK
    assert [*bench.memory.regions] == [region]


def test_a_greeting_without_a_nonce_proves_nothing(bench):
    assert bench.peer(hello=False).hello(nonce=b"").status is Status.ACCESS_DENIED


def test_the_silence_of_a_channel_begins_again_with_the_node(bench, peer):
    bench.now_s = 10 * EXPIRY_S
    bench.restart()
    bench.tick(after_s=2.0)
    assert come_back(bench, peer)[1].body.resumed


def test_a_silent_peer_is_probed_once_in_its_time(bench):
    probed = []
    settings = {"is_connected": lambda connection: not probed.append(connection)}
    with closing(type(bench)(f"{bench.name}-probing", **settings)) as probing:
        probing.peer()
        probing.tick(after_s=4.0 * sessions.SILENT_S)
    assert 3 <= len(probed) <= 4


def test_channels_of_a_client_are_sessions_of_their_own(bench, peer):
    other, reply = come_back(bench, peer, channel=1)
    assert not reply.body.resumed
    assert peer.ask(Op.BYE, body=Empty()).status is Status.OK
    assert is_known(other)


def test_who_comes_back_takes_no_other_place(bench, monkeypatch):
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 1)
    peer = bench.peer()
    assert bench.peer(hello=False).hello().status is Status.LIMIT
    assert is_known(peer)
    assert come_back(bench, peer)[1].status is Status.OK


def test_silent_channels_expire_and_speaking_ones_do_not(bench, peer):
    other = bench.peer()
    bench.tick(after_s=200.0)
    assert is_known(peer)
    bench.tick(after_s=EXPIRY_S - 201.0)
    assert bench.node.context.facts()["sessions"] == 2
    bench.tick(after_s=1.0)
    assert not is_known(other)
    assert is_known(peer)


def test_time_in_which_the_node_was_stopped_is_nobodys_silence(bench, peer):
    """What clients had sent meanwhile was not read yet, and all their channels expired."""
    bench.tick(after_s=100.0)
    bench.now_s += 10 * EXPIRY_S
    bench.tick()
    bench.tick(after_s=EXPIRY_S - 102.0)
    assert bench.node.context.facts()["channels"] == 1
    bench.tick(after_s=1.0)
    assert bench.node.context.facts()["channels"] == 0


def test_a_pause_counts_for_nobody_who_was_heard_after_it(bench, peer):
    bench.now_s += 10 * EXPIRY_S
    assert is_known(peer)
    bench.tick()
    bench.tick(after_s=EXPIRY_S)
    assert bench.node.context.facts()["channels"] == 0


def test_the_silence_of_a_channel_goes_on_without_its_connection(bench, peer):
    bench.tick(after_s=100.0)
    assert is_known(peer)
    other = bench.peer()
    peer.client_id, other.client_id = other.client_id, peer.client_id
    assert peer.hello(generation=2).body.resumed  # its own channel has no connection now
    bench.tick(after_s=EXPIRY_S - 1.0)
    assert bench.node.context.facts()["channels"] == 2
    assert is_known(peer)
    bench.tick(after_s=1.0)
    assert bench.node.context.facts()["channels"] == 1


def test_channels_of_an_earlier_run_expire_unless_they_come_back(bench, peer):
    bench.peer()
    bench.restart()
    bench.tick(after_s=100.0)
    assert peer.hello().body.resumed
    bench.tick(after_s=EXPIRY_S - 100.0)
    assert bench.node.context.facts()["channels"] == 1
    assert is_known(peer)

"""Who is let in, asked as ZeroMQ asks."""

from __future__ import annotations

import pytest
import zmq
from zmq.utils import z85

from memnode.access import (
    REFUSED_LOG_S,
    STRANGERS_BURST,
    STRANGERS_RATE,
    ZAP_ENDPOINT,
    Access,
    ZapHandler,
)
from smbox.keys import Authorised, Role, add_client, make_node_key, read_client_key

OK, LATER, REFUSED = b"200", b"300", b"400"


@pytest.fixture
def ask(tmp_path):
    """Ask of a key, at one moment; return the status."""
    make_node_key(tmp_path)
    key = read_client_key(add_client(tmp_path, Authorised("known", Role.READ)))
    known = z85.decode(key.public)
    context = zmq.Context()
    handler = ZapHandler(context, Access(tmp_path), 0.0)
    asking = context.socket(zmq.REQ)
    asking.connect(ZAP_ENDPOINT)

    def ask(public=known, mechanism=b"CURVE", now_s=0.0):
        asking.send_multipart([b"1.0", b"7", b"smbox", b"10.0.0.9", b"", mechanism, public])
        handler.answer(now_s)
        version, request, status, *_ = asking.recv_multipart()
        assert (version, request) == (b"1.0", b"7")
        return status

    yield ask
    asking.close(linger=0)
    handler.close()
    context.term()


def test_only_authorised_keys_are_let_in(ask):
    assert ask() == OK
    assert ask(bytes(32)) == REFUSED
    assert ask(bytes(31)) == REFUSED
    assert ask(b"", b"NULL") == REFUSED
    assert ask(mechanism=b"PLAIN") == REFUSED


def test_a_removed_key_makes_no_new_connection(ask, tmp_path):
    assert ask() == OK
    (tmp_path / "clients" / "known.toml").unlink()
    assert ask() == REFUSED


def test_an_expired_key_makes_no_new_connection(ask, tmp_path):
    file = tmp_path / "clients" / "known.toml"
    text = file.read_text()
    file.write_text(f"{text}expires = 2000-01-01\n")
    assert ask() == REFUSED
    file.write_text(text)  # nobody looks again for a key that was refused
    assert ask() == OK


def test_a_flood_of_strangers_keeps_no_authorised_client_out(ask):
    found = [ask(bytes(32)) for _ in range(int(STRANGERS_BURST) + 10)]
    assert found.count(REFUSED) == int(STRANGERS_BURST)
    assert found[-1] == LATER
    assert ask() == OK
    for now_s, answered in ((1.0, STRANGERS_RATE), (1.5, STRANGERS_RATE / 2)):
        found = [ask(bytes(32), now_s=now_s) for _ in range(int(STRANGERS_RATE) + 10)]
        assert found.count(REFUSED) == answered


def test_after_a_long_time_no_more_strangers_are_answered_than_at_first(ask):
    found = [ask(bytes(32), now_s=1e4) for _ in range(int(STRANGERS_BURST) + 10)]
    assert found.count(REFUSED) == int(STRANGERS_BURST)


def test_refusals_are_logged_at_once_and_then_counted(ask, caplog):
    for now_s in (0.0, REFUSED_LOG_S / 2, REFUSED_LOG_S):
        ask(bytes(32), now_s=now_s)
    told = "handshakes, the last from 10.0.0.9"
    assert caplog.messages == [f"refused 1 {told}", f"refused 2 {told}"]

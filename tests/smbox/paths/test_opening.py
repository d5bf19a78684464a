from __future__ import annotations

import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest

from smbox.client.remote import CONTROL_CHANNEL
from smbox.config import ClientConfig
from smbox.errors import (
    AccessDeniedError,
    ConnectError,
    SmboxError,
    SystemLimitError,
)
from smbox.memory import layout
from smbox.memory.segment import unlink
from smbox.paths import opening
from smbox.paths.opening import open_over, open_remote
from smbox.testing.inproc import InprocHub
from smbox.testing.welcome import welcome
from smbox.transports import zeromq
from smbox.wire.codec import Reply, decode_request, encode_reply, refuse
from smbox.wire.messages import Empty
from smbox.wire.ops import Op
from smbox.wire.proving import NODE, challenge_of, proof_of

CONFIG = ClientConfig("inproc://node", timeout_s=30.0)


def test_both_paths_come_greeted(node):
    remote = open_over(node.connect, CONFIG)
    assert remote.control.node.name == node.name
    assert remote.data.transport == "inproc"
    remote.data.close()
    remote.control.close()


def test_nobody_answers():
    config = ClientConfig("tcp://127.0.0.1:9", timeout_s=0.05)
    with pytest.raises(ConnectError) as caught:
        open_remote(config)
    assert caught.value.facts["address"] == "tcp://127.0.0.1:9"


def test_a_host_that_nobody_knows_is_called_that(monkeypatch):
    monkeypatch.setattr(zeromq, "RESOLVE_S", 20.0)  # a slow name server is no failure here
    config = ClientConfig("tcp://no-such-host.invalid:9", timeout_s=0.05)
    with pytest.raises(ConnectError, match="name cannot be resolved"):
        open_remote(config)


def test_a_socket_that_this_user_cannot_open_is_called_that(tmp_path):
    config = ClientConfig(f"ipc://{tmp_path}/none", timeout_s=0.05)
    with pytest.raises(ConnectError, match="run as the user of the node"):
        open_remote(config)


def test_a_key_is_read_only_for_tcp():
    config = ClientConfig("ipc://@nobody-listens-here", key="missing.key", timeout_s=0.05)
    with pytest.raises(ConnectError, match="no memory node answers"):
        open_remote(config)


def test_who_cannot_read_the_cookie_is_refused(node):
    unlink(layout.name_of(node.name, "cookie"))
    with pytest.raises(AccessDeniedError, match="as its user, or start it with --keys"):
        open_over(node.connect, CONFIG)


def test_a_cookie_that_cannot_be_opened_at_present_is_no_refusal(node, no_more_files):
    with no_more_files(), pytest.raises(SystemLimitError, match="ulimit"):
        open_over(node.connect, CONFIG)


def test_a_deaf_node_is_no_node(node):
    node.is_down = True
    with pytest.raises(ConnectError):
        open_over(node.connect, replace(CONFIG, timeout_s=0.05))


def shown(error):
    """The tracebacks that a user sees of an error that nobody catches."""
    return "".join(traceback.format_exception(error)).count("Traceback (most recent call last)")


def failure(connect, config):
    """Open and return the error; in a thread, which has none of another test as its context."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(open_over, connect, config).exception()


def test_a_node_that_stays_silent_is_one_error(node, monkeypatch):
    monkeypatch.setattr(opening, "SILENCE_S", 0.02)  # so that it is asked twice
    node.is_down = True
    error = failure(node.connect, replace(CONFIG, timeout_s=0.05))
    assert isinstance(error, ConnectError)
    assert "no memory node answers" in str(error)
    assert shown(error) == 1


def test_a_refusal_without_a_challenge_is_told():
    def handle(connection, frames):
        if not frames:
            return []
        denied = AccessDeniedError("not you")
        return [(connection, encode_reply(refuse(decode_request(frames), denied)))]

    assert isinstance(failure(InprocHub(handle).connect, CONFIG), AccessDeniedError)


def test_a_node_that_answers_late_is_connected(node, monkeypatch):
    monkeypatch.setattr(opening, "SILENCE_S", 0.02)
    node.is_down = True

    def diagnose(_deadline_s):
        node.is_down = False  # nothing else makes the node answer

    config = replace(CONFIG, timeout_s=5.0)
    remote = open_over(node.connect, config, diagnose)
    assert remote.control.node.name == node.name
    remote.control.close()


def named(frames, answers):
    """The replies of an impostor: not the node, but claims to be it."""
    request = decode_request(frames)
    body = answers.pop(0)
    if isinstance(body, SmboxError):
        return encode_reply(refuse(request, body))
    return encode_reply(Reply(request.op, request=request.request, body=body))


@pytest.mark.parametrize("proof", [b"", bytes(32)])
def test_who_names_another_node_learns_no_secret_and_is_sent_nothing(node, proof):
    challenge = challenge_of(node.memory.cookie, node.name, node.memory.superblock.uuid)
    denied = AccessDeniedError("prove it", **challenge.facts())
    answers = [denied, welcome(node_name=node.name, proof=proof)]
    seen = []

    def handle(connection, frames):
        if not frames:
            return []
        seen.append([bytes(frame) for frame in frames])
        return [(connection, named(frames, answers))]

    error = failure(InprocHub(handle).connect, CONFIG)
    assert isinstance(error, AccessDeniedError)
    assert "not the node" in str(error)
    assert shown(error) == 1
    assert answers == []
    assert [decode_request(frames).op for frames in seen] == [Op.HELLO, Op.HELLO]
    assert not any(node.memory.cookie in frame for frames in seen for frame in frames)


class Doorkeeper:
    """A node that greets the control channel, and challenges the data channels together.

    Args:
        node: whose memory the challenge names.
        node_uuid: of the memory in the control channel's greeting.
        channels: number of data channels that are challenged together.
    """

    def __init__(self, node, node_uuid, channels):
        self.cookie, self.channels = node.memory.cookie, channels
        self.challenge = challenge_of(self.cookie, node.name, node.memory.superblock.uuid)
        self.fields = {"node_name": node.name, "node_uuid": node_uuid}
        self.refusals, self.proofs = [], []

    def handle(self, connection, frames):
        if not frames:
            return []
        request = decode_request(frames)
        reply = Reply(request.op, request=request.request, version=7)
        if request.op is Op.HELLO:
            hello, proof = request.body, b""
            if hello.channel != CONTROL_CHANNEL:
                self.proofs.append(hello.proof)
                if not hello.proof:
                    denied = AccessDeniedError("prove it", **self.challenge.facts())
                    self.refusals.append((connection, encode_reply(refuse(request, denied))))
                    return self.refusals if len(self.refusals) == self.channels else []
                proof = proof_of(NODE, self.cookie, self.challenge, hello)
            reply.body = welcome(proof=proof, **self.fields)
        elif request.op in {Op.BYE, Op.PING}:
            reply.body = Empty()
        return [(connection, encode_reply(reply))]


REGION = SimpleNamespace(address=1 << 20)


def test_a_data_channel_takes_no_challenge_of_another_memory(node):
    door = Doorkeeper(node, b"another memory..", 1)
    remote = open_over(InprocHub(door.handle).connect, CONFIG)
    with pytest.raises(AccessDeniedError):
        remote.data.version(REGION, 30.0)
    assert door.proofs == [b""]


def test_channels_that_are_challenged_together_all_prove(node):
    door = Doorkeeper(node, node.memory.superblock.uuid, 2)
    at_once = replace(CONFIG, resend_after_s=60.0, resend_after_max_s=60.0)
    remote = open_over(InprocHub(door.handle).connect, at_once)
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(remote.data.version, REGION, 30.0) for _ in range(2)]
    assert [each.result() for each in found] == [7, 7]
    assert len(list(filter(None, door.proofs))) == 2


def test_the_cookie_never_travels(node):
    remote = open_over(node.connect, CONFIG)
    remote.data.close()
    remote.control.close()
    sent = [bytes(frame) for frames in node.seen for frame in frames]
    assert not any(node.memory.cookie in frame for frame in sent)

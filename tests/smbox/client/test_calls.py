from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

from smbox.client import channel, remote
from smbox.client.remote import VersionWait
from smbox.errors import RegionFreedError, RequestTimeoutError
from smbox.wire.codec import Reply, decode_request, encode_reply, refuse
from smbox.wire.ops import Op

WAIT_S = 30.0


def test_a_version_that_is_there_is_no_wait(client):
    info = client.create(4)
    assert client.data.wait_version(info, 0).advance(time.monotonic() + WAIT_S)


def test_waiting_ends_with_the_change_that_brings_the_version(client):
    info = client.create(4)
    wanted = client.data.version(info, WAIT_S) + 1
    work = client.data.wait_version(info, wanted)
    assert not work.advance(0.0)
    assert work.outcome() == "none"
    assert work.ranges_done() == []
    assert work.facts() == {"wanted": wanted}
    client.finish(client.change(info, np.ones(4, np.float32)))
    assert work.advance(time.monotonic() + WAIT_S)
    assert work.advance(0.0)


def test_waiting_outlasts_the_single_requests_it_is_made_of(client, monkeypatch):
    monkeypatch.setattr(remote, "WAIT_MS", 5)
    info = client.create(4)
    work = client.data.wait_version(info, client.data.version(info, WAIT_S) + 1)
    assert not work.advance(time.monotonic() + 0.05)
    client.finish(client.change(info, np.ones(4, np.float32)))
    assert work.advance(time.monotonic() + WAIT_S)


@pytest.mark.parametrize("late", [0, 2])
def test_a_wait_asks_again_until_the_version_is_there(script, monkeypatch, late):
    work, versions = VersionWait(script.channel, SimpleNamespace(address=0), 5), []

    def answer(_timeout_s):
        if not script.wire.sent:
            return None
        asked = script.wire.sent.popleft()
        versions.append(asked.version)
        if len(versions) <= late:
            error = RequestTimeoutError("the version was not reached")
            return encode_reply(refuse(asked, error))
        return encode_reply(Reply(Op.WAIT, request=asked.request, version=5))

    monkeypatch.setattr(script.wire, "receive", answer)
    assert work.advance(time.monotonic() + WAIT_S)
    assert versions == [5] * (late + 1)


def test_a_wait_in_flight_is_not_sent_twice(script):
    work = VersionWait(script.channel, SimpleNamespace(address=0), 5)
    assert not work.advance(0.0)
    assert not work.advance(0.0)
    assert len(script.wire.sent) == 1


@pytest.mark.parametrize(("wait_s", "most_ms"), [(0.0, 20), (0.1, 100), (9.0, 500)])
def test_no_slice_outlasts_the_callers_patience(node, client, wait_s, most_ms):
    """Else the waits that nobody waits for would stand before the thread's next operation."""
    info = client.create(4)
    client.get(info)
    node.seen.clear()
    work = client.data.wait_version(info, client.data.version(info, WAIT_S) + 1)
    node.seen.clear()
    work._begin(time.monotonic() + wait_s).begin()
    (asked,) = [decode_request(frames) for frames in node.seen]
    assert asked.op is Op.WAIT
    assert 0 < asked.nbytes <= most_ms
    assert wait_s < 1 or asked.nbytes == most_ms


def test_waiting_for_a_region_that_is_freed_is_an_error(client):
    info = client.create(4)
    work = client.data.wait_version(info, 100)
    assert not work.advance(0.0)
    client.control.free(info.address, WAIT_S)
    with pytest.raises(RegionFreedError):
        work.advance(time.monotonic() + WAIT_S)


def test_a_cancelled_wait_is_no_failure_of_a_change(client):
    info = client.create(4)
    work = client.data.wait_version(info, 100)
    assert not work.advance(0.0)
    work.cancel()
    assert client.data.flush(time.monotonic() + WAIT_S)


def test_no_answer_in_time_says_so_and_the_next_call_works(node, client):
    info = client.create(4)
    client.get(info)
    node.is_down = True
    with pytest.raises(RequestTimeoutError) as caught:
        client.control.stats(0.01)
    assert caught.value.facts["op"] == "stats"
    node.is_down = False
    assert client.control.stats(WAIT_S)["regions"] == 1


def test_a_version_that_no_header_can_say_harms_nothing_else_under_way(client):
    info = client.create(4)
    change = client.change(info, np.ones(4, np.float32))
    assert client.data.wait_version(info, -1).advance(time.monotonic() + WAIT_S)
    waiting = client.data.wait_version(info, 1 << 70)
    assert not waiting.advance(time.monotonic() + 0.01)
    waiting.cancel()
    client.finish(change)
    assert (client.get(info) == 1).all()


def test_the_socket_is_looked_at_while_a_call_waits(script, monkeypatch):
    """It was left alone for 3 of 53 ms, in which the requests in flight were all answered."""
    pauses = []
    monkeypatch.setattr(channel, "SLICE_S", 0.002)
    monkeypatch.setattr(time, "sleep", pauses.append)
    script.channel.drive(script.transfer(0, Op.GET), time.monotonic() + 0.03)
    assert max(pauses, default=0.0) < 0.001

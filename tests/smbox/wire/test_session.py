"""One rule of the session each; tests/faults/test_numbering.py plays them all together."""

from __future__ import annotations

import pytest

from smbox.errors import (
    AccessDeniedError,
    LocalProtocolError,
    RegionFreedError,
    RemoteProtocolError,
    SessionExpiredError,
)
from smbox.testing.welcome import welcome
from smbox.wire.call import Call
from smbox.wire.codec import Reply, Request, decode_request, encode_reply
from smbox.wire.messages import Empty, Hello
from smbox.wire.ops import Op
from smbox.wire.refusal import refuse
from smbox.wire.session import ClientSession
from smbox.wire.status import Status

WINDOW = welcome().window
FREED = RegionFreedError("gone")


def connect(session: ClientSession, applied: int = 0, **changed) -> None:
    asked = decode_request(session.hello())
    body = welcome(**({"applied": applied, "resumed": True} | changed))
    session.receive(encode_reply(Reply(Op.HELLO, request=asked.request, body=body)))


def opened(applied: int = 0) -> ClientSession:
    session = ClientSession(Hello(client_id=bytes(16), channel=1))
    connect(session, applied, resumed=False)
    return session


def put(session: ClientSession, numbers: int = 1, op: Op = Op.PUT) -> Call:
    return session.begin(Request(op, nbytes=numbers, payload=bytes(numbers)), numbers)


def get(session: ClientSession) -> Call:
    return session.begin(Request(Op.GET, nbytes=1))


def send_all(session: ClientSession) -> list[Request]:
    found = []
    while (call := session.next_to_send()) is not None:
        found.append(decode_request(call.frames()))
        session.sent()
    return found


def numbers(requests: list[Request]) -> list[int]:
    return [request.number for request in requests]


def ok(session: ClientSession, request: Request) -> Call | None:
    reply = Reply(request.op, Status.OK, request.request, request.number)
    reply.nbytes, reply.payload = request.nbytes, bytes(request.nbytes)
    return session.receive(encode_reply(reply))


def no(session: ClientSession, request: Request, applied: int, status=None) -> Call | None:
    return session.receive(encode_reply(refuse(request, FREED, applied=applied, status=status)))


def test_numbers_count_stripes_and_reads_carry_the_fence():
    session = opened()
    for begin in (get, put, lambda s: put(s, 2), get):
        begin(session)
    sent = send_all(session)
    assert numbers(sent) == [0, 1, 2, 3]
    assert [request.numbers for request in sent] == [0, 1, 2, 0]


def test_numbering_goes_on_where_the_channel_stands():
    session = opened(applied=40)
    put(session)
    assert numbers(send_all(session)) == [41]


def test_nothing_is_given_out_before_the_welcome():
    session = ClientSession(Hello(client_id=bytes(16), channel=1))
    put(session)
    assert session.needs_hello
    assert session.next_to_send() is None


def test_replies_are_matched_in_any_order_and_once():
    session = opened()
    calls = [get(session) for _ in range(3)]
    sent = send_all(session)
    assert ok(session, sent[2]) is calls[2]
    assert ok(session, sent[0]) is calls[0]
    assert ok(session, sent[0]) is None
    assert session.is_unanswered
    ok(session, sent[1])
    assert not session.is_unanswered
    assert not session.is_unanswered


def test_reply_to_another_op_is_the_peers_fault():
    session = opened()
    get(session)
    reply = Reply(Op.WAIT, request=send_all(session)[0].request)
    with pytest.raises(RemoteProtocolError):
        session.receive(encode_reply(reply))


def test_refusal_takes_no_number_and_those_behind_move_up():
    session = opened()
    first, second, read = put(session), put(session), get(session)
    sent = send_all(session)
    assert no(session, sent[0], applied=0) is first
    assert isinstance(first.reply.raised(), RegionFreedError)
    assert not session.is_all_sent
    for late in sent[1:]:
        assert no(session, late, applied=0, status=Status.GAP) is None
    again = send_all(session)
    assert numbers(again) == [1, 1]
    assert session.is_all_sent
    assert [ok(session, request) for request in again] == [second, read]
    assert session.acknowledged == 1
    put(session)
    assert not session.is_all_sent


def test_refusal_half_way_keeps_what_happened():
    session = opened()
    first, second = put(session, 2), put(session)
    sent = send_all(session)
    no(session, sent[0], applied=1)
    assert first.done == 1
    assert numbers(send_all(session)) == [2]
    assert second.reply is None


def test_gap_without_a_refusal_means_the_node_forgot():
    session = opened()
    put(session)
    ok(session, send_all(session)[0])
    put(session)
    with pytest.raises(SessionExpiredError) as caught:
        no(session, send_all(session)[0], applied=0, status=Status.GAP)
    assert caught.value.facts["outcome"] == "unknown"
    with pytest.raises(SessionExpiredError):
        put(session)
    assert session.next_to_send() is None


def test_gap_behind_a_lost_refusal_waits_for_the_reconnect():
    session = opened()
    put(session), put(session)
    sent = send_all(session)
    assert no(session, sent[1], applied=0, status=Status.GAP) is None
    connect(session, applied=0)
    assert numbers(send_all(session)) == [1, 2]


def test_reconnect_resends_what_is_open_in_order_and_answers_done_changes():
    session = opened()
    done, fetch, read, last = (
        put(session),
        put(session, 1, Op.FETCH),
        get(session),
        put(session),
    )
    before = send_all(session)
    connect(session, applied=2)
    assert done.reply.status is Status.OK
    assert fetch.reply is None
    again = send_all(session)
    assert [r.request for r in again] == [r.request for r in before[1:]]
    assert numbers(again) == [2, 2, 3]
    for request in again:
        ok(session, request)
    assert not session.is_unanswered
    assert last.offers == read.offers == 2


def test_no_session_asks_for_a_hello():
    session = opened()
    put(session)
    no(session, send_all(session)[0], applied=0, status=Status.NO_SESSION)
    assert session.needs_hello
    connect(session)
    assert len(send_all(session)) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"node_uuid": b"x" * 16},
        {"epoch": 1},
        {"applied": 0},
        {"applied": 9},
        {"applied": 1, "resumed": False},
    ],
)
def test_another_memory_or_a_forgotten_channel_expires_the_session(changed):
    session = opened()
    put(session)
    ok(session, send_all(session)[0])
    put(session)
    send_all(session)
    with pytest.raises(SessionExpiredError):
        connect(session, **({"applied": 1} | changed))
    assert session.needs_hello


def test_idle_client_that_was_forgotten_starts_over():
    session = opened()
    put(session)
    ok(session, send_all(session)[0])
    connect(session, applied=0, resumed=False)
    put(session)
    assert numbers(send_all(session)) == [1]


def test_node_that_ends_the_session():
    session = opened()
    put(session)
    with pytest.raises(SessionExpiredError):
        no(session, send_all(session)[0], applied=0, status=Status.SESSION_EXPIRED)


def test_refused_hello_is_raised_and_old_welcomes_ignored():
    session = ClientSession(Hello(client_id=bytes(16), channel=1))
    old = decode_request(session.hello())
    asked = decode_request(session.hello())
    session.receive(
        encode_reply(Reply(Op.HELLO, request=old.request, body=welcome(resumed=True)))
    )
    assert session.needs_hello
    with pytest.raises(AccessDeniedError):
        session.receive(encode_reply(refuse(asked, AccessDeniedError("no cookie"))))


def test_full_transport_gets_the_same_request_again():
    session = opened()
    call = put(session)
    assert session.next_to_send() is call
    session.unsent()
    assert call.offers == 0
    assert session.next_to_send() is call
    session.sent()
    with pytest.raises(LocalProtocolError):
        session.sent()
    with pytest.raises(LocalProtocolError):
        put(session, 0)


def test_interrupted_hand_over_needs_a_fresh_connection():
    session = opened()
    call = put(session)
    session.next_to_send()
    assert session.needs_hello
    assert session.next_to_send() is None
    connect(session, applied=1)
    assert call.reply.status is Status.OK


def test_withdraw_only_what_was_never_given_out():
    session = opened()
    calls = [get(session) for _ in range(WINDOW + 1)]
    send_all(session)
    assert not session.withdraw(calls[0])
    assert session.withdraw(calls[-1])
    for call in (*calls, calls[-1]):
        session.enqueue(call)  # whatever is queued or sent already stays as it is
    assert [session.withdraw(calls[-1]) for _ in range(2)] == [True, False]
    assert send_all(session) == []


def test_control_calls_share_the_channel():
    session = opened()
    put(session)
    call = session.begin(Request(Op.PING, body=Empty()))
    sent = send_all(session)
    assert numbers(sent) == [1, 1]
    session.receive(
        encode_reply(Reply(Op.PING, request=sent[1].request, number=1, body=Empty()))
    )
    assert isinstance(call.reply.body, Empty)


def test_after_a_lone_request_that_was_cut_off_only_a_greeting_helps():
    for applied in (0, 1):
        session = opened()
        assert session.offer_lone(Request(Op.PUT), 1)
        put(session)
        assert session.needs_hello
        assert session.next_to_send() is None
        connect(session, applied=applied)
        assert numbers(send_all(session)) == [applied + 1]
        assert not session.offer_lone(Request(Op.PUT), 1)

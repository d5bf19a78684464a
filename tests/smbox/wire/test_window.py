"""Numbers follow from order; answered changes leave in order."""

from __future__ import annotations

from smbox.testing.welcome import welcome
from smbox.wire.batch import Item, pack_items
from smbox.wire.call import Call
from smbox.wire.codec import Reply, Request, decode_request, encode_reply
from smbox.wire.messages import ErrorBody, Hello, Welcome
from smbox.wire.ops import Op
from smbox.wire.session import ClientSession
from smbox.wire.status import Status
from smbox.wire.window import Window


def filled(*counts: int) -> tuple[Window, list[Call]]:
    """A window of puts of so many stripes; 0 is a get."""
    window = Window()
    calls = [Call(Request(Op.PUT if n else Op.GET, at), n) for at, n in enumerate(counts, 1)]
    for call in calls:
        window.add(call)
    window.line_up()
    for call in calls:
        call.connection = 1
    return window, calls


def numbers(calls: list[Call]) -> list[int]:
    return [call.request.number for call in calls]


def refusal(applied: int) -> Reply:
    return Reply(Op.PUT, Status.REGION_FREED, error=ErrorBody(applied=applied))


def test_numbers_follow_from_the_order():
    window, calls = filled(0, 2, 0, 1, 1)
    assert numbers(calls) == [0, 1, 2, 3, 4]
    assert window.last == 4
    assert window.open_changes == [calls[1], calls[3], calls[4]]


def test_answered_reads_leave_at_once_and_changes_in_order():
    window, calls = filled(1, 0, 1)
    for call in calls[1:]:
        call.reply = Reply(call.request.op)
        window.settle()
    assert list(window.calls.values()) == [calls[0], calls[2]]
    assert window.acknowledged == 0
    calls[0].reply = Reply(Op.PUT)
    window.settle()
    assert not window.calls
    assert window.acknowledged == 2


def test_refused_change_gives_its_numbers_to_those_behind():
    window, calls = filled(1, 2, 1, 0)
    calls[1].reply = refusal(applied=2)
    window.settle()
    window.line_up()
    assert numbers(calls) == [1, 2, 3, 3]
    assert [call.connection for call in calls] == [1, 1, 0, 0]
    assert window.first_unsent(1) is calls[2]
    assert window.first_unsent(2) is calls[0]


def test_the_last_call_tells_whether_all_are_sent():
    assert Window().is_sent(1)
    window, calls = filled(1, 0, 1)
    assert window.is_sent(1)
    assert not window.is_sent(2)
    calls[0].reply = refusal(applied=0)
    window.settle()
    window.line_up()
    assert not window.is_sent(1)


def test_settling_and_lining_up_twice_changes_nothing():
    window, calls = filled(2, 1)
    calls[0].reply = Reply(Op.PUT)
    window.acknowledged = 2  # an interrupt between the two steps of settle
    window.line_up()
    assert numbers(calls) == [1, 3]
    window.settle()
    window.settle()
    assert window.acknowledged == 2


def limits(requests: int = 9, answers: int = 9, **nbytes: int) -> Welcome:
    """What a node says that takes so many requests, and keeps so many answers."""
    return welcome(window=requests, ring_entries=answers, **nbytes)


def test_room_for_bytes_of_answers():
    window = Window()
    gets = [Call(Request(Op.GET, number, nbytes=4)) for number in (1, 2)]
    item = Item(Op.FETCH, 2, 0, 5, bytes(5))
    frame = pack_items([item, item])  # whose heads are no data
    batch = Call(Request(Op.BATCH, 3, nbytes=2, payload=frame, items=(item, item)), 2)
    elastic = Call(Request(Op.ELASTIC, 4, nbytes=4, payload=bytes(4)), 1)
    put = Call(Request(Op.PUT, 5, nbytes=1000, payload=bytes(1000)), 1)
    assert window.has_room(batch, limits(answers_nbytes=1))
    window.add(gets[0])
    for call, most in ((batch, 24), (gets[1], 8)):
        assert window.has_room(call, limits(answers_nbytes=most))
        assert not window.has_room(call, limits(answers_nbytes=most - 1))
    for call in (put, elastic):
        assert window.has_room(call, limits(answers_nbytes=1))
    gets[0].reply = Reply(Op.GET)
    assert window.has_room(gets[1], limits(answers_nbytes=7))


def test_room_for_bytes_of_sources():
    window = Window()
    puts = [Call(Request(Op.PUT, at, nbytes=4, payload=bytes(4)), 1) for at in (1, 2)]
    assert window.has_room(puts[0], limits(sources_nbytes=1))
    window.add(puts[0])
    assert window.has_room(puts[1], limits(sources_nbytes=8))
    assert not window.has_room(puts[1], limits(sources_nbytes=7))
    assert window.has_room(Call(Request(Op.GET, 3, nbytes=1000)), limits(sources_nbytes=1))
    puts[0].reply = Reply(Op.PUT)
    assert window.has_room(puts[1], limits(sources_nbytes=7))


def test_what_the_node_says_of_room_holds_until_every_change_is_answered():
    window = Window()
    puts = [Call(Request(Op.PUT, at, nbytes=4, payload=bytes(4)), 1) for at in (1, 2)]
    window.add(puts[0])
    window.add(Call(Request(Op.WAIT, 3)))
    for room_nbytes, is_room in ((7, False), (8, True), (0, False)):
        window.room_nbytes = room_nbytes
        assert window.has_room(puts[1], limits(sources_nbytes=7)) == is_room
    window.room_nbytes = 8
    window.settle()
    assert window.room_nbytes == 8
    puts[0].reply = Reply(Op.PUT)
    window.settle()
    assert window.room_nbytes == 0


def send_all(session: ClientSession) -> list[Request]:
    sent = []
    while (call := session.next_to_send()) is not None:
        sent.append(call.request)
        session.sent()
    return sent


def test_a_reply_tells_the_session_of_room():
    session = ClientSession(Hello(client_id=bytes(16), channel=1))
    hello = decode_request(session.hello())
    greeting = Reply(Op.HELLO, request=hello.request, body=limits(sources_nbytes=2))
    session.receive(encode_reply(greeting))
    under_way: list[Request] = []
    for room, expected in ((0, 2), (0, 1), (1, 5)):
        while len(session._waiting) < 5:
            session.begin(Request(Op.PUT, nbytes=1, payload=bytes(1)), 1)
        if under_way:
            done = under_way.pop(0)
            reply = Reply(Op.PUT, request=done.request, number=done.number, room=room)
            session.receive(encode_reply(reply))
        sent = send_all(session)
        assert len(sent) == expected
        under_way += sent


def test_room_for_bytes_that_are_lent():
    window = Window()
    lends = [Call(Request(Op.LEND, at, nbytes=4)) for at in (1, 2)]
    stamps = Call(Request(Op.STAMPS, 3, nbytes=1 << 30))
    assert window.has_room(lends[0], limits(lent_nbytes=1))
    window.add(lends[0])
    assert window.has_room(lends[1], limits(lent_nbytes=8, answers_nbytes=1))
    assert not window.has_room(lends[1], limits(lent_nbytes=7))
    assert window.has_room(stamps, limits(lent_nbytes=1, answers_nbytes=1))
    lends[0].reply = Reply(Op.LEND)
    assert window.has_room(lends[1], limits(lent_nbytes=7))


def test_room_for_requests_and_for_answers():
    window, calls = filled(2, 2)
    read, silent, small, large = (
        Call(Request(Op.GET)),
        Call(Request(Op.PUT), 2),
        Call(Request(Op.ELASTIC), 1),
        Call(Request(Op.ELASTIC), 2),
    )
    assert window.has_room(silent, limits(3, 4))
    assert not window.has_room(read, limits(2, 9))
    assert window.has_room(read, limits(3, 4))
    assert window.has_room(small, limits(3, 5))
    assert not window.has_room(large, limits(3, 5))
    calls[1].reply = Reply(Op.PUT)
    window.settle()
    assert not window.has_room(large, limits(3, 5))
    calls[0].reply = Reply(Op.PUT)
    window.settle()
    assert window.has_room(large, limits(3, 5))


def test_what_is_removed_gives_its_numbers_to_those_behind():
    window, calls = filled(2, 1, 1)
    window.remove(calls[1])
    window.remove(calls[1])
    window.line_up()
    assert numbers(calls) == [1, 3, 3]


def test_adding_twice_keeps_the_place():
    window, calls = filled(1, 1)
    window.add(calls[0])
    assert list(window.calls.values()) == calls


def lone(window: Window, numbers: int = 1) -> Request | None:
    request = Request(Op.PUT if numbers else Op.GET)
    return request if window.offer_lone(request, 7, numbers) else None


def test_a_lone_request_takes_its_number_without_a_call():
    window = Window()
    for number in (1, 2):
        request = lone(window)
        assert (request.request, request.number, request.numbers) == (7, number, 1)
        assert window.last == number
        window.settle_lone(request)
        assert window.acknowledged == window.last == number
    read = lone(window, 0)
    assert (read.number, read.numbers) == (2, 0)
    window.settle_lone(read)
    assert window.acknowledged == window.last == 2


def test_only_who_is_alone_is_a_lone_request():
    window, calls = filled(0)
    assert lone(window) is None
    calls[0].reply = Reply(Op.GET)
    window.settle()
    assert lone(window) is not None


def test_a_lone_request_goes_on_as_the_only_call():
    window = Window()
    call = Call(lone(window), 1)
    window.line_up_lone(call)
    assert window.lone is None
    window.line_up()
    assert (list(window.calls.values()), numbers([call]), window.last) == ([call], [1], 1)


def test_a_lone_request_that_was_cut_off_was_done_or_never_will_be():
    for applied in (0, 1):
        window = Window()
        lone(window)
        window.end_lone(applied)
        assert (window.lone, window.acknowledged) == (None, applied)
    window.end_lone(5)
    assert window.acknowledged == 1, "there was none"

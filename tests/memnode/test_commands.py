from __future__ import annotations

from memnode.commands import COMMANDS, Execute, Greet, Part
from smbox.wire.codec import Request
from smbox.wire.messages import Hello
from smbox.wire.ops import Op

PEER = (0, b"peer")


def test_every_op_has_its_row():
    assert set(COMMANDS) == set(Op)
    assert all(command.op is op for op, command in COMMANDS.items())


def test_only_hello_needs_no_session():
    assert [op for op, command in COMMANDS.items() if not command.needs_session] == [Op.HELLO]


def test_what_requests_lead_to():
    hello = Request(Op.HELLO, body=Hello(client_id=bytes(16), channel=3))
    assert COMMANDS[Op.HELLO].effect_of(PEER, hello) == Greet(PEER, hello, hello.body)
    for op in Op:
        request = Request(op)
        if op is Op.BYE:
            assert COMMANDS[op].effect_of(PEER, request) == Part(PEER, request)
        elif op is not Op.HELLO:
            assert COMMANDS[op].effect_of(PEER, request) == Execute(PEER, request)

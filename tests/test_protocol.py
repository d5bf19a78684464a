"""Tests that docs/protocol.md and the code agree: its tables, and its examples in hex."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from smbox import errors
from smbox.address import GlobalAddress
from smbox.memory.kernels import KernelCode, OptimizerCode
from smbox.wire import codec, header, messages, operands
from smbox.wire.ops import ANSWERS, OPERANDS, SOURCES, Op, Status

PAGE = (Path(__file__).parent.parent / "docs" / "protocol.md").read_text()


def rows(section: str) -> list[list[str]]:
    """Return the rows of the first table of a section, without its head."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE).group().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def example(name: str) -> list[bytes]:
    text = PAGE.split(f"```hex {name}\n")[1].split("```")[0]
    return [bytes.fromhex(frame) for frame in text.strip().split("\n\n")]


def test_operations():
    table = {row[0]: row for row in rows("Operations")}
    assert {name: int(row[1]) for name, row in table.items()} == {op.name: op for op in Op}
    for op, kind in messages.REQUESTS.items():
        assert table[op.name][2] == kind.__name__
        assert table[op.name][3] == messages.REPLIES[op].__name__
    for op in set(Op) - set(messages.REQUESTS):
        assert (table[op.name][2] == "source") == (op in SOURCES)
        assert (table[op.name][2] == op.name.lower()) == (op in OPERANDS)
        assert (table[op.name][3] != "-") == (op in ANSWERS)


def test_statuses():
    table = {row[0]: row for row in rows("Statuses")}
    assert {name: int(row[1]) for name, row in table.items()} == {s.name: s for s in Status}
    for status in Status:
        assert getattr(errors, table[status.name][2], None) is status.error


def test_header_fields_follow_each_other():
    at = 0
    for offset, nbytes, *_ in rows("Messages"):
        assert int(offset) == at
        at += int(nbytes)
    assert at == header.HEADER_NBYTES


def test_limits_and_kernels():
    limits = dict(rows("Limits"))
    assert str(header.REQUEST_NBYTES_MAX) in limits["data of one request or reply"]
    assert str(header.LONG_NBYTES_MAX) in limits["data of a LEND, or a change with its source"]
    assert str(codec.CONTROL_NBYTES_MAX) in limits["msgpack body"]
    assert limits["items of a batch"] == str(operands.ITEMS_MAX)
    for op in OPERANDS:
        nbytes_max = str(operands.PAYLOAD_NBYTES_MAX[op])
        assert nbytes_max in limits["operand of GATHER, FROM, UPDATE, DOT"]
    assert limits["places of a GATHER"] == str(operands.PLACES_MAX)
    counts = f"{operands.SIBLINGS_MAX}, {operands.PARAMETERS_MAX}"
    assert limits["siblings, parameters of an UPDATE"] == counts
    for kernel in (*KernelCode, *OptimizerCode):
        assert f"{int(kernel)} {kernel.name}" in PAGE


def test_example_request():
    request = codec.decode_request(example("request"))
    assert (request.op, request.request, request.number) == (Op.ACCUMULATE, 5, 3)
    assert request.address == GlobalAddress.at(1, 0x2000)
    assert (request.kernel, request.nbytes, request.numbers) == (KernelCode.SUM, 8, 1)
    assert header.unpack_scale(request.scale, "f") == 0.5
    assert struct.unpack("<2f", request.payload) == (1.0, -2.0)
    assert codec.encode_request(request) == example("request")


def test_example_reply():
    reply = codec.decode_reply(example("reply"))
    assert (reply.status, reply.request, reply.number) == (Status.OK, 5, 3)
    assert codec.encode_reply(reply) == example("reply")


def test_example_refusal():
    reply = codec.decode_reply(example("refusal"))
    assert reply.error == messages.ErrorBody(message="freed", applied=2)
    assert codec.encode_reply(reply) == example("refusal")
    with pytest.raises(errors.RegionFreedError, match="freed"):
        raise reply.to_error()

"""The tables of operations."""

from __future__ import annotations

from smbox.memory.kernels import KERNELS, KernelCode
from smbox.wire.messages import REPLIES, REQUESTS
from smbox.wire.ops import (
    ANSWERS,
    BARE_KERNELS,
    CHANGES,
    CONTROL,
    OP_OF,
    OPERANDS,
    SCATTER_KERNELS,
    SOURCES,
    WHOLE_KERNELS,
    Op,
)


def test_numbers_are_never_reused():
    assert {op.name: int(op) for op in Op} == {
        "HELLO": 1,
        "BYE": 2,
        "PING": 3,
        "CREATE": 4,
        "PUBLISH": 5,
        "ATTACH": 6,
        "FREE": 7,
        "LIST": 8,
        "STATS": 9,
        "GET": 16,
        "PUT": 17,
        "ACCUMULATE": 18,
        "ELASTIC": 19,
        "FETCH": 20,
        "WAIT": 21,
        "BATCH": 22,
        "GATHER": 23,
        "FROM": 24,
        "UPDATE": 26,
        "SNAPSHOT": 27,
        "LEND": 28,
        "STAMPS": 29,
        "DOT": 30,
    }
    assert {OP_OF[int(op)] for op in Op} == set(Op)
    assert 25 not in OP_OF  # WIDE, which is retired


def test_control_ops_are_those_with_bodies():
    assert CONTROL == set(REQUESTS) == set(REPLIES)


def test_changes_carry_sources_and_control_changes_nothing():
    assert SOURCES | {Op.BATCH, Op.FROM, Op.UPDATE} == CHANGES
    assert not SOURCES & OPERANDS
    assert not CONTROL & (CHANGES | ANSWERS)


def test_whole_kernels_are_those_of_the_memory():
    whole = {KernelCode.COMPARE_SWAP, KernelCode.ARRIVE, KernelCode.WITHDRAW}
    assert {int(kernel) for kernel in whole} == WHOLE_KERNELS
    scatters = {KernelCode.SCATTER_PUT, KernelCode.SCATTER_SUM}
    assert {int(kernel) for kernel in scatters} == SCATTER_KERNELS
    assert whole | scatters == {code for code, kernel in KERNELS.items() if kernel.is_whole}
    assert {code for code, row in KERNELS.items() if not row.has_operand} == BARE_KERNELS

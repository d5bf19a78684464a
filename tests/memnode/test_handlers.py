from __future__ import annotations

from memnode.handlers import HANDLERS
from smbox.wire.ops import Op


def test_every_op_of_a_session_has_its_row():
    assert set(HANDLERS) == set(Op) - {Op.HELLO, Op.BYE}

"""Roles: they live, are killed, live again, and what they said last is kept."""

from __future__ import annotations

import os
import secrets

import pytest

from smbox.connecting import connect
from smbox.errors import ConnectError
from smbox.memory.layout import PREFIX
from smbox.memory.segment import listing
from smbox.testing.chaos import plan
from smbox.testing.chaos.processes import ClientRole, NodeRole, Role

pytestmark = pytest.mark.usefixtures("quick_starts")


def test_a_node_that_is_killed_comes_back_with_its_memory(tmp_path):
    node = NodeRole(f"chaos-{secrets.token_hex(4)}", tmp_path)
    node.start_and_wait()
    try:
        with connect(node.address, transport="ipc", timeout_s=60) as box:
            box.create("some", (4,), "int64", init=3)
            node.kill()
            assert node.process is None
            node.start_and_wait()
            assert box.attach("some").get().tolist() == [3, 3, 3, 3]
        assert node.life == 1
        assert node.failed() is None
        assert node.stop() is None
        assert listing(f"{PREFIX}{node.node}.") == []
    finally:
        node.kill()


class Failing(Role):
    def command(self):
        return ["no_such_module_of_ours"]


def test_what_ended_by_itself_is_told(tmp_path):
    role = Failing("some role", tmp_path)
    assert role.failed() is None
    role.start()
    role.process.wait()
    assert "some role ended with 1" in (told := role.failed())
    assert "no_such_module_of_ours" in told
    assert role.process is None
    assert role.stop() is None


def test_a_node_that_cannot_start_is_told(tmp_path):
    node = NodeRole("not a name", tmp_path)
    with pytest.raises(ConnectError, match="did not start"):
        node.start_and_wait()
    node.kill()


def test_a_client_has_so_many_lives(tmp_path):
    role = ClientRole(3, "tcp://h:1", "tcp", tmp_path, 9)
    role.life = 4
    assert role.command()[-3:] == ["3", "4", "9"]
    assert not role.is_immortal
    role.life = plan.LIVES - 1
    assert role.is_immortal
    assert os.fspath(tmp_path) in role.command()

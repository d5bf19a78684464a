from __future__ import annotations

import os
import select
import selectors
import signal
import sys

import pytest

from smbox.errors import ConfigError, ConnectError
from smbox.memory.segment import Segment, listing, unlink
from smbox_torch.launching.cluster import Plan
from smbox_torch.launching.local_host import LocalHost
from smbox_torch.launching.node_deaths import RESTARTS_MAX, STEADY_S
from smbox_torch.launching.node_keeper import NodeKeeper, close_all

GRACE_S = 0.5
NODE = """
import json, signal, sys
bind = sys.argv[sys.argv.index("--bind") + 1].replace(":0", ":1234")
print("a warning", flush=True)
print(json.dumps({"event": "ready", "address": bind, "argv": sys.argv[1:]}), flush=True)
signal.pause()
"""


@pytest.fixture
def keep():
    kept: list[NodeKeeper] = []

    def start(code: str = NODE, **options) -> tuple[NodeKeeper, list[str]]:
        notes: list[str] = []
        plan = Plan(["x"], memnode=(sys.executable, "-c", code), grace_s=GRACE_S, **options)
        kept.append(NodeKeeper(plan, LocalHost([]), os.environ, notes.append))
        return kept[-1], notes

    yield start
    close_all(kept, GRACE_S)


def kill(keeper: NodeKeeper, number: signal.Signals = signal.SIGKILL) -> None:
    keeper.child.send(number)
    assert select.select([keeper.child.pidfd], [], [], 60)[0]


def test_a_node_is_started_on_a_free_port_and_ends_with_its_launcher(keep):
    keeper, notes = keep(memory="64MiB")
    keeper.await_ready()
    assert keeper.address == "tcp://127.0.0.1:1234"
    argv = keeper._ready["argv"]
    assert argv[argv.index("--parent-pid") + 1] == str(os.getpid())
    assert argv[argv.index("--memory") + 1] == "64MiB"
    assert notes == ["memory node: a warning"]


@pytest.mark.usefixtures("foreign_memnode")
def test_a_memnode_in_the_current_directory_is_not_run():
    keeper = NodeKeeper(Plan(["x"], memory="16MiB"), LocalHost([]), os.environ, print)
    try:
        keeper.await_ready()
    finally:
        close_all([keeper], GRACE_S)


def test_a_node_that_dies_comes_back_on_its_name_and_address(keep):
    keeper, notes = keep()
    keeper.await_ready()
    before, pid = keeper._ready["argv"], keeper.child.pid
    kill(keeper)
    with selectors.DefaultSelector() as selector:
        keeper.restart(selector)
        assert keeper.child.pidfd in selector.get_map()
    after = keeper._ready["argv"]
    assert keeper.child.pid != pid
    assert keeper.address == "tcp://127.0.0.1:1234"
    assert after[after.index("--name") + 1] == before[before.index("--name") + 1]
    assert after[after.index("--bind") + 1] == keeper.address
    assert any("SIGKILL" in note for note in notes)


def test_a_node_that_is_stopped_ends_the_run_because_its_memory_is_gone(keep):
    stopping = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
    keeper, notes = keep(stopping + NODE)
    keeper.await_ready()
    kill(keeper, signal.SIGTERM)
    with selectors.DefaultSelector() as selector:
        with pytest.raises(ConnectError, match="removes its memory"):
            keeper.restart(selector)
        assert not selector.get_map()
    assert not any("starting it again" in note for note in notes)


def test_a_node_that_keeps_dying_is_given_up(keep):
    keeper, _ = keep()
    keeper.await_ready()
    keeper._deaths.in_a_row = RESTARTS_MAX
    kill(keeper)
    with selectors.DefaultSelector() as selector, pytest.raises(ConnectError, match="times"):
        keeper.restart(selector)


def test_a_node_that_lived_long_may_die_again(keep):
    keeper, _ = keep()
    keeper.await_ready()
    keeper._deaths.in_a_row = RESTARTS_MAX
    keeper._deaths.started_s -= STEADY_S + 1
    kill(keeper)
    with selectors.DefaultSelector() as selector:
        keeper.restart(selector)
    assert keeper._deaths.in_a_row == 1


def test_a_node_that_does_not_start_says_why(keep):
    keeper, notes = keep("import sys; sys.exit('no room')")
    with pytest.raises(ConnectError, match="exit code 1"):
        keeper.await_ready()
    assert notes == ["memory node: no room"]


def test_what_a_node_could_not_remove_is_removed_with_it(keep):
    keeper, _ = keep()
    keeper.await_ready()
    left = f"smbox.{keeper._name}.region.000000001000"
    Segment.create(left, 4096).close()
    other = f"smbox.{keeper._name}0.node"
    Segment.create(other, 4096).close()
    close_all([keeper], GRACE_S)
    close_all([keeper], GRACE_S)
    assert listing(f"smbox.{keeper._name}") == [other]
    unlink(other)


def test_arguments_that_the_node_refuses_are_no_failure_to_connect(keep):
    keeper, _ = keep("import sys; sys.exit(2)", memory="5X")
    with pytest.raises(ConfigError, match="refused its arguments"):
        keeper.await_ready()

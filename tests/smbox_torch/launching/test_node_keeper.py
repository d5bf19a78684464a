from __future__ import annotations

import os
import select
import selectors
import signal
import sys

import psutil
import pytest

from smbox.errors import ConfigError, ConnectError
from smbox.memory.segment import Segment, listing, unlink
from smbox_torch.launching import node_deaths, node_keeper
from smbox_torch.launching.cluster import Plan
from smbox_torch.launching.hosts import Host
from smbox_torch.launching.local_host import LocalHost
from smbox_torch.launching.node_keeper import NodeKeeper, close_all

GRACE_S = 0.5
NODE = """
import json, signal, sys, time
bind = sys.argv[sys.argv.index("--bind") + 1].replace(":0", ":1234")
print("a warning", flush=True)
print(json.dumps({"event": "ready", "address": bind}), flush=True)
while True: time.sleep(0.01)  # signal.pause() would miss a signal that comes just before it
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


def option(keeper: NodeKeeper, name: str) -> str:
    words = psutil.Process(keeper.child.pid).cmdline()
    return words[words.index(name) + 1]


def kill(keeper: NodeKeeper, number: signal.Signals = signal.SIGKILL) -> None:
    keeper.child.send(number)
    assert select.select([keeper.child.pidfd], [], [], 60)[0]


def test_a_node_is_started_on_a_free_port_and_ends_with_its_launcher(keep):
    keeper, notes = keep(memory="64MiB")
    keeper.await_ready()
    assert keeper.address == "tcp://127.0.0.1:1234"
    assert option(keeper, "--parent-pid") == str(os.getpid())
    assert option(keeper, "--memory") == "64MiB"
    assert notes == ["memory node: a warning"]


def test_a_node_that_is_not_ready_in_time_is_given_up(keep, monkeypatch):
    monkeypatch.setattr(node_keeper, "READY_S", 0.0)
    keeper, _ = keep("import signal; signal.pause()")
    with pytest.raises(ConnectError, match="not ready") as caught:
        keeper.await_ready()
    assert caught.value.facts == {"timeout_s": 0.0}


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
    pid, name = keeper.child.pid, option(keeper, "--name")
    kill(keeper)
    with selectors.DefaultSelector() as selector:
        keeper.restart(selector)
        assert keeper.child.pidfd in selector.get_map()
    assert keeper.child.pid != pid
    assert keeper.address == option(keeper, "--bind") == "tcp://127.0.0.1:1234"
    assert option(keeper, "--name") == name
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


def test_a_node_that_keeps_dying_is_given_up(keep, monkeypatch):
    monkeypatch.setattr(node_deaths, "RESTARTS_MAX", 1)
    keeper, _ = keep()
    keeper.await_ready()
    with selectors.DefaultSelector() as selector:
        kill(keeper)
        keeper.restart(selector)
        kill(keeper)
        with pytest.raises(ConnectError, match="2 times"):
            keeper.restart(selector)


def test_a_node_that_does_not_start_says_why(keep):
    keeper, notes = keep("import sys; sys.exit('no room')")
    with pytest.raises(ConnectError, match="exit code 1"):
        keeper.await_ready()
    assert notes == ["memory node: no room"]


def test_what_a_node_could_not_remove_is_removed_with_it(keep):
    keeper, _ = keep()
    keeper.await_ready()
    name = option(keeper, "--name")
    Segment.create(f"smbox.{name}.region.000000001000", 4096).close()
    other = f"smbox.{name}0.node"
    Segment.create(other, 4096).close()
    close_all([keeper], GRACE_S)
    close_all([keeper], GRACE_S)
    assert listing(f"smbox.{name}") == [other]
    unlink(other)


def test_arguments_that_the_node_refuses_are_no_failure_to_connect(keep):
    keeper, _ = keep("import sys; sys.exit(2)", memory="5X")
    with pytest.raises(ConfigError, match="refused its arguments"):
        keeper.await_ready()


def test_messages_about_a_node_name_its_host(keep, monkeypatch):
    """Of several nodes, one said that its /dev/shm was full."""
    monkeypatch.setattr(node_deaths, "RESTARTS_MAX", 0)
    hosts = (Host("b", "127.0.0.1", workers=1, memory="16MiB"),)
    keeper, notes = keep(hosts=hosts)
    keeper.await_ready()
    assert notes == ["host b: memory node: a warning"]
    kill(keeper)
    with selectors.DefaultSelector() as selector, pytest.raises(ConnectError, match="host='b'"):
        keeper.restart(selector)
    for code, error in (1, ConnectError), (2, ConfigError):
        with pytest.raises(error, match="host='b'"):
            keep(f"import sys; sys.exit({code})", hosts=hosts)[0].await_ready()


def test_the_python_of_this_host_is_the_running_one(monkeypatch):
    """It was the one that had imported the module, also in a fork with another one."""
    monkeypatch.setattr(sys, "executable", "/another/python")
    assert LocalHost([]).python == "/another/python"

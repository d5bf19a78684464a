from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from smbox import embedded
from smbox.embedded import EmbeddedNode, LocalBox
from smbox.errors import ConfigError, ConnectError, SmboxError, SystemLimitError
from smbox.memory.segment import listing

pytestmark = pytest.mark.usefixtures("quick_starts")

WAIT_S = 60.0

ORPHAN = """
import sys, time
from smbox.embedded import EmbeddedNode
node = EmbeddedNode("16MiB")
print(node.pid, flush=True)
time.sleep(600)
"""


def segments(pid):
    """The memory of the nodes of a process."""
    return listing(f"smbox.local-{pid}-")


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_box_of_ones_own_works_and_leaves_nothing():
    with embedded.local("16MiB") as box:
        region = box.create("w", init=np.arange(4.0))
        region.accumulate(np.ones(4))
        assert (region.get() == [1, 2, 3, 4]).all()
        assert box.address.startswith("tcp://127.0.0.1:")
        copy = pickle.loads(pickle.dumps(box))
        assert (copy.attach("w").get() == [1, 2, 3, 4]).all()
        copy.close()
    box.close()


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_killed_node_is_started_again_with_its_memory(transport):
    with embedded.local("16MiB", transport=transport, timeout_s=WAIT_S) as box:
        region = box.create("w", init=np.zeros(4))
        address, pid = box.address, box.stats()["pid"]
        os.kill(pid, signal.SIGKILL)
        for _ in range(3):
            region.accumulate(np.ones(4))
        assert box.stats()["pid"] != pid
        assert box.address == address
        assert (region.get() == 3).all()


def test_the_node_ends_with_its_parent_even_if_that_is_killed(until):
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE)
    with parent.stdout as output:
        pid = int(output.readline())
        assert segments(parent.pid)
    parent.kill()
    parent.wait()
    until(lambda: is_gone(pid))
    until(lambda: not segments(parent.pid))


@pytest.mark.parametrize(("memory", "told"), [("plenty", "'plenty'"), (4096, "at least 1 MiB")])
def test_memory_that_no_node_can_have_is_named_before_one_is_started(memory, told, capfd):
    with pytest.raises(ConfigError, match=told):
        embedded.local(memory)
    assert capfd.readouterr().err == ""


def test_a_node_that_does_not_start(monkeypatch):
    monkeypatch.setattr(embedded.sys, "executable", "/bin/false")
    with pytest.raises(ConnectError, match="does not start") as failed:
        EmbeddedNode("16MiB")
    assert failed.value.facts["exit_status"] == 1


PRINTS = """#!{python}
import sys, time
name = sys.argv[sys.argv.index("--name") + 1]
open(f"/dev/shm/smbox.{{name}}.cookie", "wb").close()
print({text!r}, end="", flush=True)
time.sleep({seconds})
"""


@pytest.mark.parametrize(
    ("text", "seconds", "told"),
    [
        ('{"addr', 0, "does not start"),
        ('{"addr', 60, "does not start"),
        ("noise\n", 60, "ready line"),
        ("7\n", 60, "ready line"),
        ("{}\n", 60, "ready line"),
    ],
)
def test_a_node_that_says_no_ready_line_does_not_start(
    text, seconds, told, tmp_path, monkeypatch
):
    """Also for half a line; the wait ends at the limit. The memory goes with the node."""
    fake = tmp_path / "python"
    fake.write_text(PRINTS.format(python=sys.executable, text=text, seconds=seconds))
    fake.chmod(0o700)
    monkeypatch.setattr(embedded.sys, "executable", str(fake))
    monkeypatch.setattr(embedded, "READY_TIMEOUT_S", 2.0)
    begun_s = time.monotonic()
    with pytest.raises(ConnectError, match=told):
        EmbeddedNode("16MiB")
    assert time.monotonic() - begun_s < 10.0
    assert listing(f"smbox.local-{os.getpid()}-") == []


@pytest.fixture
def deaf(tmp_path, monkeypatch):
    """Processes that say that they are ready and ignore SIGTERM, in place of nodes."""
    fake = tmp_path / "python"
    ready = json.dumps({"address": "tcp://127.0.0.1:9"})
    fake.write_text(f"#!/bin/sh\ntrap '' TERM\necho '{ready}'\nexec sleep 60\n")
    fake.chmod(0o700)
    monkeypatch.setattr(embedded.sys, "executable", str(fake))
    monkeypatch.setattr(embedded, "STOP_TIMEOUT_S", 0.1)


@pytest.mark.usefixtures("deaf")
def test_a_node_that_does_not_stop_is_killed():
    node = EmbeddedNode("16MiB")
    assert os.getsid(node.pid) == node.pid  # no Ctrl-C of a terminal reaches it
    node.close()
    assert is_gone(node.pid)


@pytest.mark.usefixtures("deaf")
@pytest.mark.parametrize("started", [0, 1])
def test_too_few_threads_leave_no_node(started, monkeypatch, own_children):
    """Neither for the thread that limits the start, nor for the one that watches the node."""
    calls = itertools.count()

    def start_thread(start):
        if next(calls) == started:
            raise SystemLimitError("no more threads")
        start()

    monkeypatch.setattr(embedded, "start_thread", start_thread)
    with pytest.raises(SystemLimitError):
        EmbeddedNode("16MiB")
    assert own_children() == []


def test_a_limit_of_processes_is_named(monkeypatch):
    def full(*_, **__):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.raises(SystemLimitError, match="raise ulimit -u"):
        EmbeddedNode("16MiB")


@pytest.mark.usefixtures("deaf")
def test_a_box_that_cannot_be_leaves_no_node(own_children):
    with pytest.raises(ConfigError, match="transport"):
        embedded.local("16MiB", transport="rdma")
    assert own_children() == []


def test_the_box_says_goodbye_before_its_node_ends(box, paths):
    found = []
    mine = LocalBox(paths, SimpleNamespace(close=lambda: found.append(closed(box))))
    mine.close()
    assert found == [True]


def closed(box):
    try:
        box.regions()
    except SmboxError:
        return True
    return False


def test_a_node_that_can_never_start_again_is_given_up(monkeypatch, caplog, until):
    monkeypatch.setattr(embedded, "PAUSE_S", 0.0)
    node = EmbeddedNode("16MiB")
    monkeypatch.setattr(embedded.sys, "executable", "/nowhere")
    os.kill(node.pid, signal.SIGKILL)
    until(lambda: "giving up" in caplog.text)
    assert caplog.text.count("does not start") == embedded.RESTARTS_MAX
    assert segments(os.getpid())
    node.close()
    assert segments(os.getpid()) == []


CLOSES_INSIDE = """
import sys
from smbox import embedded

def closed_inside(at):
    node, lines = embedded.EmbeddedNode("16MiB"), 0

    def trace(frame, event, _):
        nonlocal lines
        if frame.f_code is not embedded.EmbeddedNode.close.__code__:
            return None
        if event == "line":
            lines += 1
            if lines == at:
                sys.settrace(None)
                node.close()
        return trace

    sys.settrace(trace)
    node.close()
    sys.settrace(None)
    return lines == at

at = 1
while closed_inside(at):
    at += 1
print(at)
"""


def test_a_handler_may_close_inside_a_close_at_any_line(preloaded: str):
    """It waited for ever for the lock that the interrupted call held."""
    command = [preloaded, "-c", CLOSES_INSIDE]  # whose nodes are forks, too
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert int(done.stdout) > 4
    assert done.stderr == ""


EXITING = """
import atexit, smbox
atexit.register(lambda: region.get(timeout_s=2.0))
box = smbox.local("16MiB", transport="tcp")
region = box.create("w", shape=3)
print(box.stats()["name"])
"""


def test_a_process_that_ends_closes_its_box_and_stops_its_node():
    """An exit function that runs later waited for the node until its timeout."""
    command = ["env", sys.executable, "-c", EXITING]  # no fork, which would end otherwise
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert "ConfigError: the box was closed" in done.stderr
    assert "memnode" not in done.stderr  # a node that outlives its parent says so
    assert listing(f"smbox.{done.stdout.strip()}.") == []


@pytest.mark.usefixtures("foreign_memnode")
def test_a_memnode_in_the_current_directory_is_not_run():
    with embedded.local("16MiB") as box:
        assert box.create("w", shape=3).get().tolist() == [0.0, 0.0, 0.0]


def test_a_forked_child_does_not_end_the_node():
    node = EmbeddedNode("16MiB")
    try:
        child = os.fork()
        if child == 0:
            node.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert not is_gone(node.pid)
    finally:
        node.close()
    assert is_gone(node.pid)


def test_a_process_with_many_files_starts_a_node():
    """Its pipe has a descriptor that is too large for select()."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1200:
        pytest.skip("this process may not open so many files")
    with contextlib.ExitStack() as files:
        for _ in range(1100):
            files.enter_context(open(os.devnull))
        with embedded.local("16MiB") as box:
            assert box.create("w", shape=3).get().tolist() == [0.0, 0.0, 0.0]

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

import smbox
from smbox.errors import ConnectError, RegionFreedError
from smbox.memory.layout import PREFIX
from smbox.memory.segment import listing
from smbox_torch.launching import node_deaths
from smbox_torch.launching.access import Access, made_keys
from smbox_torch.launching.detached_node import DetachedNode

BIND = "tcp://127.0.0.1:0"
SOON_S = 60.0


@pytest.fixture
def key_folders(monkeypatch, tmp_path) -> Path:
    """The folder in which the nodes of this process have the folders of their keys."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def serving(node: DetachedNode) -> Iterator[str]:
    """Serve a node in a thread; gives its address."""
    address = node.start()
    thread = threading.Thread(target=node.serve)
    thread.start()
    try:
        yield address
    finally:
        node.stop()
        thread.join(SOON_S)
        assert not thread.is_alive()


@contextmanager
def used_over_tcp(node: DetachedNode, key: str) -> Iterator[smbox.Box]:
    """Serve a node and connect to it; its memory is not mapped."""
    with (
        serving(node) as address,
        Access(address, key).entered(TRANSPORT="tcp"),
        smbox.connect() as box,
    ):
        yield box


def running(launcher: int | None = None) -> tuple[psutil.Process, str]:
    """The memory node of a launcher, and its name; None: this process is the launcher."""
    parent = str(launcher or os.getpid())
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        is_node = words[:4] == [sys.executable, "-P", "-m", "memnode"]
        if is_node and words[words.index("--parent-pid") + 1] == parent:
            return process, words[words.index("--name") + 1]
    raise AssertionError("no memory node of this launcher runs")


def segments(name: str) -> list[str]:
    return listing(f"{PREFIX}{name}.")


def test_it_serves_clients_with_the_key_and_leaves_nothing(capsys, key_folders):
    files, key = made_keys()
    node = DetachedNode(3, "16MiB", files, BIND)
    with serving(node) as address:
        process, name = running()
        assert process not in psutil.Process().children()
        with Access(address, key).entered(), smbox.connect() as box:
            assert box.create("a", shape=(4,), init=1.0).parts[0].node == 3
        assert segments(name)
    assert segments(name) == []
    assert not os.listdir(key_folders)


def test_a_node_that_is_killed_goes_on_with_its_memory(capsys):
    files, key = made_keys()
    node = DetachedNode(0, "16MiB", files, BIND)
    with used_over_tcp(node, key) as box:
        region = box.create("a", shape=(4,), init=1.0)
        first, _ = running()
        first.kill()
        region.accumulate(np.ones(4, np.float32), timeout_s=SOON_S)
        assert region.get(timeout_s=SOON_S).tolist() == [2.0] * 4
        assert running()[0] != first
    assert "died; starting it again" in capsys.readouterr().out


def test_a_node_that_dies_too_often_in_a_row_is_not_started_again(monkeypatch):
    monkeypatch.setattr(node_deaths, "RESTARTS_MAX", 0)
    node = DetachedNode(0, "16MiB", made_keys()[0], BIND)
    node.start()
    process, name = running()
    process.kill()
    with pytest.raises(ConnectError, match="died 1 times in a row"):
        node.serve()
    assert segments(name) == []


def test_deaths_after_long_lives_are_not_in_a_row(monkeypatch):
    monkeypatch.setattr(node_deaths, "RESTARTS_MAX", 1)
    monkeypatch.setattr(node_deaths, "STEADY_S", 0.0)
    files, key = made_keys()
    node = DetachedNode(0, "16MiB", files, BIND)
    with used_over_tcp(node, key) as box:
        kept = box.counter("kept")
        for count in range(3):
            assert kept.add(1, timeout_s=SOON_S) == count
            running()[0].kill()
        assert kept.add(0, timeout_s=SOON_S) == 3


def test_what_a_node_says_before_it_is_ready_is_shown(capsys):
    node = DetachedNode(0, "200TiB", made_keys()[0], BIND)
    with serving(node):
        assert re.search("memory node: .* but /dev/shm has room for", capsys.readouterr().out)


def test_a_node_that_is_stopped_does_not_begin_with_empty_memory(capsys):
    node = DetachedNode(0, "16MiB", made_keys()[0], BIND)
    node.start()
    process, name = running()
    process.terminate()
    with pytest.raises(ConnectError, match="removes its memory"):
        node.serve()
    assert "starting it again" not in capsys.readouterr().out
    assert segments(name) == []


def test_a_client_that_maps_the_memory_of_a_killed_node_learns_that_it_was_removed(capsys):
    files, key = made_keys()
    node = DetachedNode(0, "16MiB", files, BIND)
    with Access(node.start(), key).entered(), smbox.connect(timeout_s=SOON_S) as box:
        region = box.create("a", shape=(4,), init=1.0)
        region.put(np.ones(4, np.float32))  # maps the memory
        process, name = running()
        process.kill()
        node.stop()
        node.serve()
        with pytest.raises(RegionFreedError):
            region.put(np.ones(4, np.float32))
    assert segments(name) == []


def test_a_node_that_does_not_start_says_why(key_folders):
    node = DetachedNode(0, "plenty", made_keys()[0], BIND)
    with pytest.raises(ConnectError, match=r"it said: .*plenty"):
        node.start()
    assert not os.listdir(key_folders)


def test_a_launcher_that_is_killed_takes_it_along(tmp_path):
    code = f"""
from smbox_torch.launching.access import made_keys
from smbox_torch.launching.detached_node import DetachedNode
node = DetachedNode(0, "16MiB", made_keys()[0], {BIND!r})
node.start()
print("ready", flush=True)
input()
"""
    launcher = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ
        | {
            "PYTHONUNBUFFERED": "",  # the node keeps what it cannot write
            "TMPDIR": str(tmp_path),
        },
    )
    with launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
        node, name = running(launcher.pid)
        assert segments(name)
        assert os.listdir(tmp_path)
        launcher.kill()
        psutil.wait_procs([node], timeout=SOON_S)
    assert segments(name) == []
    deadline_s = time.monotonic() + SOON_S
    while os.listdir(tmp_path):  # the shell is nobody's child either
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_node_that_is_stopped_while_it_is_started_again_ends(capsys, monkeypatch):
    node = DetachedNode(0, "16MiB", made_keys()[0], BIND)
    node.start()
    start = node.start

    def stopped_and_started() -> str:
        node.stop()
        return start()

    monkeypatch.setattr(node, "start", stopped_and_started)
    thread = threading.Thread(target=node.serve)
    process, name = running()
    process.kill()
    thread.start()
    thread.join(SOON_S)
    is_serving = thread.is_alive()
    node.stop()
    thread.join(SOON_S)
    assert not is_serving
    assert segments(name) == []

"""``memnode --nodes``: nodes that start, stop and die together."""

from __future__ import annotations

import errno
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import smbox
from memnode import group, server
from memnode.cli import EXIT_ADDRESS, EXIT_CLEAN, EXIT_CONFIG, EXIT_FAILED, EXIT_MEMORY, main
from memnode.config import Bind, NodeConfig
from memnode.group import arguments_of, members
from smbox.errors import ConfigError
from smbox.memory.layout import name_of
from smbox.memory.segment import listing, unlink

pytestmark = pytest.mark.usefixtures("quick_starts")

WAIT_S = 60.0
FREE = "tcp://127.0.0.1:0"


@pytest.fixture
def name():
    made = f"group-{secrets.token_hex(4)}"
    yield made
    for left in listing(f"smbox.{made}"):
        unlink(left)


@pytest.fixture
def start(name):
    """Starts a group; returns its process and its ready line.

    With the preloaded Python the process is one that waits for the group's.
    """
    started = []

    def run(*options, nodes=3, bind=FREE, python=sys.executable):
        command = [python, "-P", "-m", "memnode", "--nodes", str(nodes)]
        command += ["--name", name, "--bind", bind, "--memory", "16MiB", "--json", *options]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        line = process.stdout.readline()
        return process, json.loads(line) if line else None

    yield run
    for process in started:
        children = psutil.Process(process.pid).children() if process.poll() is None else []
        process.terminate()
        process.communicate(timeout=WAIT_S)
        psutil.wait_procs(children, timeout=WAIT_S)


def children(process):
    return psutil.Process(process.pid).children()


def regions(name):
    """Segments of the regions of a group of two."""
    return [left for node in (0, 1) for left in listing(name_of(f"{name}-{node}", "region."))]


@pytest.mark.usefixtures("foreign_memnode")
def test_a_memnode_in_the_current_directory_is_not_run(start):
    _, ready = start(nodes=2)
    assert ready["event"] == "ready"


def test_ids_ports_and_names_follow_one_another():
    binds = (Bind.parse("tcp://127.0.0.1:7070"),)
    made = members(NodeConfig(binds, name="lab", node_id=4, parent_pid=1), 3)
    assert [each.binds[0].address for each in made] == [
        f"tcp://127.0.0.1:{port}" for port in (7070, 7071, 7072)
    ]
    assert [each.node_id for each in made] == [4, 5, 6]
    assert {each.parent_pid for each in made} == {None}  # the group stops its nodes
    assert [each.name for each in made] == ["lab-0", "lab-1", "lab-2"]
    paths = members(NodeConfig((Bind.parse("ipc:///run/n"),)), 2)
    assert [each.binds[0].address for each in paths] == ["ipc:///run/n.0", "ipc:///run/n.1"]
    assert [each.binds[0].port for each in members(NodeConfig((Bind.parse(FREE),)), 2)] == [
        0,
        0,
    ]


def test_nodes_without_a_limit_share_what_is_free(monkeypatch):
    """Each took most of it: together they promised more memory than there is."""
    kept = {"lab-0": 100 << 20, "lab-1": 0}
    monkeypatch.setattr(server, "used_nbytes", kept.__getitem__)
    monkeypatch.setattr(server, "room_nbytes", lambda: 1000 << 20)
    made = members(NodeConfig((Bind.parse(FREE),), name="lab"), 2)
    assert [each.memory_nbytes >> 20 for each in made] == [550, 450]
    unnamed = members(NodeConfig((Bind.parse(FREE),)), 3)
    assert [each.memory_nbytes >> 20 for each in unnamed] == [300] * 3
    # Smaller shares were refused as a wrong --memory, which nobody gave.
    monkeypatch.setattr(server, "room_nbytes", lambda: 64 << 20)
    few = members(NodeConfig((Bind.parse(FREE),)), 64)
    assert few[63].memory_nbytes == 1 << 20


def test_a_group_that_cannot_be_is_refused(capsys):
    config = NodeConfig((Bind.parse("tcp://127.0.0.1:65535"),))
    for count in (0, 2, 1000):
        with pytest.raises(ConfigError):
            members(config, count)
    with pytest.raises(ConfigError, match="node id"):
        members(NodeConfig((Bind.parse(FREE),), node_id=65535), 2)
    assert main(["--nodes", "0"]) == EXIT_CONFIG
    assert "1 to 256" in capsys.readouterr().err


def test_a_configuration_is_a_command_line(tmp_path):
    config = NodeConfig(
        (Bind.parse(FREE), Bind.parse("ipc:///run/n")),
        name="lab",
        memory_nbytes=1 << 20,
        keep=True,
        keys=tmp_path,
        node_id=2,
    )
    words = arguments_of(config)
    assert words == [
        *("--bind", FREE, "--bind", "ipc:///run/n", "--name", "lab", "--memory", "1048576"),
        *("--keys", str(tmp_path), "--node-id", "2", "--keep"),
    ]
    assert arguments_of(replace(config, keys=None, insecure=True))[-1] == "--insecure"


def test_one_ready_line_leads_to_all_nodes(start, name):
    process, ready = start("--log-level", "error")
    assert all(child.cmdline()[-1] == "error" for child in children(process))
    own = [child.pid for child in children(process)]
    assert [os.getsid(pid) for pid in own] == own  # Ctrl-C reaches only the group's process
    assert len(set(ready["addresses"])) == 3
    assert ready["address"] == ",".join(ready["addresses"])
    with smbox.connect(ready["address"], timeout_s=WAIT_S) as box:
        assert [info.node_id for info in box.nodes] == [0, 1, 2]
        assert [info.name for info in box.nodes] == [f"{name}-{index}" for index in range(3)]
        region = box.create("w", shape=(7,), init=2.0, layout="striped")
        assert region.get().tolist() == [2.0] * 7
        assert region.is_local
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == EXIT_CLEAN
    assert listing(f"smbox.{name}") == []


def test_nodes_die_together_and_come_back_with_their_memory(start, preloaded):
    process, ready = start(nodes=2)
    others = children(process)
    with smbox.connect(ready["address"], timeout_s=WAIT_S) as box:
        box.create("w", shape=(7,), init=2.0, layout="striped")
    os.kill(others[1].pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == EXIT_FAILED
    assert f"memory node {others[1].pid} ended" in errors
    assert not any(child.is_running() for child in others)
    _, again = start(nodes=2, python=preloaded)
    with smbox.connect(again["address"], timeout_s=WAIT_S) as box:
        assert box.attach("w").get().tolist() == [2.0] * 7


def test_a_node_that_is_stopped_alone_removes_its_own_memory_only(start, name):
    process, _ = start(nodes=2)
    children(process)[1].terminate()
    process.communicate(timeout=WAIT_S)
    assert process.returncode == EXIT_FAILED
    assert listing(f"smbox.{name}-0.")
    assert listing(f"smbox.{name}-1.") == []


def test_nodes_of_a_group_that_is_killed_come_back_with_their_memory(start, preloaded):
    process, ready = start(nodes=2)
    others = children(process)
    with smbox.connect(ready["address"], timeout_s=WAIT_S) as box:
        box.create("w", shape=(7,), init=2.0, layout="striped")
    process.kill()
    process.communicate(timeout=WAIT_S)
    _, alive = psutil.wait_procs(others, timeout=WAIT_S)
    assert alive == []
    _, again = start(nodes=2, python=preloaded)
    with smbox.connect(again["address"], timeout_s=WAIT_S) as box:
        assert box.attach("w").get().tolist() == [2.0] * 7


def test_a_node_that_does_not_stop_is_killed_and_the_status_tells(
    name, monkeypatch, own_children
):
    monkeypatch.setattr(group, "STOP_S", 0.3)
    config = NodeConfig((Bind.parse(FREE),), name=name, memory_nbytes=16 << 20)
    nodes = group.NodeGroup(members(config, 2), "error", parent_pid=None)
    with nodes.opened():
        stuck = own_children()[1]
        stuck.suspend()
        os.kill(os.getpid(), signal.SIGTERM)
        assert nodes.run() == -signal.SIGKILL
    assert listing(f"smbox.{name}-0.") == []
    assert listing(f"smbox.{name}-1.")  # as after any kill


def test_a_group_ends_with_its_parent(start, preloaded):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent:
        more = ("--parent-pid", str(parent.pid))
        process, _ = start(*more, nodes=2, python=preloaded)
        parent.communicate(b"\n", timeout=WAIT_S)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == EXIT_CLEAN


def test_a_start_that_is_refused_leaves_what_it_found(start, name, preloaded):
    process, ready = start("--keep", nodes=2, python=preloaded)
    with smbox.connect(ready["address"], timeout_s=WAIT_S) as box:
        box.create("w", shape=(7,), init=2.0, layout="striped")
    process.terminate()
    process.communicate(timeout=WAIT_S)
    kept = regions(name)
    assert len(kept) == 3
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # a port that no other process uses
        taken.listen()
        port = taken.getsockname()[1] - 2
        process, ready = start(nodes=3, bind=f"tcp://127.0.0.1:{port}", python=preloaded)
        assert ready is None
        _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == EXIT_ADDRESS
    assert "does not start" in errors
    assert regions(name) == kept
    assert listing(f"smbox.{name}-2.") == []
    _, again = start(nodes=2, python=preloaded)
    with smbox.connect(again["address"], timeout_s=WAIT_S) as box:
        assert box.attach("w").get().tolist() == [2.0] * 7


def test_a_limit_of_the_system_at_the_start_is_named(name, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(subprocess, "Popen", full)
    status = main(["--nodes", "2", "--name", name, "--bind", FREE, "--memory", "16MiB"])
    assert status == EXIT_MEMORY
    assert "cannot start a memory node" in (told := capsys.readouterr().err)
    assert "raise ulimit -n" in told


def test_a_new_group_that_is_refused_leaves_nothing_of_its_own(start, name, preloaded):
    other = f"smbox.{name}-00.node"  # not of the first node, whose name it begins with
    Path("/dev/shm", other).touch(0o600)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1] - 1
        process, ready = start(nodes=2, bind=f"tcp://127.0.0.1:{port}", python=preloaded)
    assert ready is None
    process.communicate(timeout=WAIT_S)
    assert listing(f"smbox.{name}") == [other]


def test_a_node_that_prints_before_its_ready_line_is_told(
    name, monkeypatch, capsys, tmp_path, own_children
):
    """The group failed with a traceback of the JSON decoder."""
    fake = tmp_path / "python"
    fake.write_text(
        f"#!{sys.executable}\nimport time\nprint('noise', flush=True)\ntime.sleep(60)\n"
    )
    fake.chmod(0o700)
    monkeypatch.setattr(group.sys, "executable", str(fake))
    status = main(["--nodes", "1", "--name", name, "--bind", FREE, "--memory", "16MiB"])
    assert status == EXIT_FAILED
    told = capsys.readouterr().err
    assert "prints before its ready line" in told
    assert "line='noise" in told
    assert own_children() == []

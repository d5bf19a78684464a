"""What stands while workers run ends at the same time: each waits here for the other's end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from smbox.errors import ConnectError
from smbox_torch.launching.cluster import Plan
from smbox_torch.launching.frames import BEGIN, Kind, encode
from smbox_torch.launching.hosts import Host
from smbox_torch.launching.serving import serving

GRACE_S = 20.0
BOTH = ["a", "b"]
READY = BEGIN + encode(Kind.READY, 0, {"pid": 1, "python": "", "command": [], "free_port": 1})

# Ends at SIGTERM, or where meet() stands: in order only if the other one was told to end, too.
MEETING = f"""
import json, os, pathlib, signal, sys, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
def await_both(what):
    (folder / (name + what)).touch()
    while len(list(folder.glob("?" + what))) < 2: time.sleep(0.01)
def meet(*_):
    await_both(".told")
    (folder / (name + ".met")).touch()
    os._exit(0)
signal.signal(signal.SIGTERM, meet)
READY = {READY!r}
"""
AGENT = f"{MEETING}\nos.write(1, READY)\nwhile os.read(0, 65536): pass\nmeet()"
SILENT = f"{MEETING}\nawait_both('.up')\nwhile True: time.sleep(0.01)"
FAILING = f"{MEETING}\nwhile len(list(folder.glob('?.up'))) < 2: time.sleep(0.01)\nsys.exit(1)"
NODE = f"""
{MEETING}
name = sys.argv[sys.argv.index("--node-id") + 1]
print(json.dumps({{"event": "ready", "address": "tcp://127.0.0.1:9"}}), flush=True)
while True: time.sleep(0.01)
"""


def host(name: str, code: str, folder: Path) -> Host:
    """A host that is entered by Python code, which does not become its agent."""
    enter = (sys.executable, "-c", code, str(folder), name)
    return Host(name, "10.0.0.1", workers=1, enter=enter)


def plan(*hosts: Host) -> Plan:
    return Plan(["true"], hosts=hosts, address="tcp://10.0.0.9:9", grace_s=GRACE_S)


def met(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("?.met"))


def test_hosts_end_at_the_same_time(tmp_path: Path):
    with serving(plan(*(host(name, AGENT, tmp_path) for name in BOTH)), {}, print) as stand:
        assert not any(each.is_lost for each in stand.hosts)
    assert met(tmp_path) == BOTH


def test_hosts_that_are_entered_end_at_the_same_time(tmp_path: Path):
    hosts = [host(name, SILENT, tmp_path) for name in BOTH]
    with (
        pytest.raises(ConnectError, match="cannot connect to host 'c'"),
        serving(plan(host("c", FAILING, tmp_path), *hosts), {}, print),
    ):
        pytest.fail("entered")
    assert met(tmp_path) == BOTH


def test_memory_nodes_end_at_the_same_time(tmp_path: Path):
    memnode = (sys.executable, "-c", NODE, str(tmp_path))
    nodes = Plan(["true"], memnode=memnode, memory_nodes=2, grace_s=GRACE_S)
    with serving(nodes, os.environ, print) as stand:
        assert len(stand.nodes) == 2
    assert met(tmp_path) == ["0", "1"]

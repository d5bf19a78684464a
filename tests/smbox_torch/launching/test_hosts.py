from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from smbox import toml
from smbox.errors import ConfigError
from smbox_torch.launching import run
from smbox_torch.launching.cluster import Plan, Run, worker_env
from smbox_torch.launching.hosts import Host, read, travelling
from smbox_torch.world import World

RUN = Run("r", "tcp://10.0.0.1:7070", 1, "10.0.0.1")
FILE = b"""
[[host]]
name = "memory"
address = "10.0.0.1"
memory = "1GiB"
port = 7070

[[host]]
name = "a"
address = "10.0.0.2"
workers = 1
enter = ["ssh", "a"]

[[host]]
name = "b"
address = "10.0.0.3"
workers = 3
enter = ["ssh", "b"]
env = {CUDA_VISIBLE_DEVICES = "0"}
"""


def test_workers_are_numbered_host_by_host_and_shares_may_differ():
    plan = Plan(["x"], hosts=read(FILE))
    found = [World.from_env(worker_env(plan, {}, rank, run=RUN)) for rank in range(4)]
    assert [world.rank for world in found] == [0, 1, 2, 3]
    assert [world.local_rank for world in found] == [0, 0, 1, 2]
    assert [world.local_world_size for world in found] == [1, 3, 3, 3]
    assert [world.group_rank for world in found] == [0, 1, 1, 1]
    assert {world.groups for world in found} == {2}
    assert {world.world_size for world in found} == {4}
    assert [plan.named(place) for place in plan.places] == ["host a"] + ["host b"] * 3


def test_memory_nodes_run_where_the_file_says_or_on_the_first_hosts():
    hosts = read(FILE)
    assert Plan(["x"], hosts=hosts).memory_hosts == [0]
    assert hosts[0].bind() == "tcp://10.0.0.1:7070"
    assert Host("c", "fe80::1").bind() == "tcp://[fe80::1]:0"
    plan = Plan(["x"], hosts=hosts[1:], memory_nodes=3)
    assert plan.memory_hosts == [0, 1, 0]
    assert Plan(["x"], hosts=hosts[1:], address="tcp://10.0.0.9:7070").memory_hosts == []


def test_real_hosts_map_memory_where_they_can_and_keys_are_those_of_the_run():
    plan = Plan(["x"], hosts=read(FILE), keys="keys", key="keys/a.key")
    env = worker_env(plan, {"SMBOX_KEY": "other.key"}, 0, run=RUN)
    assert "SMBOX_TRANSPORT" not in env
    assert env["SMBOX_KEY"] == "keys/a.key"
    assert env["SMBOX_MASTER_ADDR"] == "10.0.0.1"
    there = Plan(["x"], hosts=read(FILE)[1:], address="tcp://10.0.0.9:7070", key="keys/a.key")
    assert worker_env(there, {}, 0, run=RUN)["SMBOX_KEY"] == "keys/a.key"


def test_what_is_about_a_login_or_a_host_does_not_travel():
    kept = {"PATH": "/bin", "PYTHONPATH": "x", "SMBOX_KEY": "k", "OMP_NUM_THREADS": "1"}
    left = {"HOME": "/h", "SSH_AUTH_SOCK": "s", "XDG_RUNTIME_DIR": "d", "PWD": "/"}
    assert travelling(kept | left) == kept


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"[[host]", "not a file of hosts"),
        (b"", "host"),
        (b'[[host]]\nname = "a"\naddress = "::1"\ncolour = "red"', "colour"),
        (b'[[host]]\nname = "a b"\naddress = "::1"\nworkers = 1', "names of hosts"),
        (b'[[host]]\nname = "a"\naddress = "::1"\nworkers = -1', "at least 0"),
        (b'[[host]]\nname = "a"\naddress = "::1"\nport = 65536', "65535"),
        (b'[[host]]\nname = "a"\naddress = "::1"', "workers = 1"),
        (b'[[host]]\nname = "a"\naddress = "::1"\nworkers = 1\npython = "a b"', "shell"),
        (b'[[host]]\nname = "a"\naddress = "::1"\nenv = {SMBOX_RANK = "7"}', "set by the run"),
        (b'[[host]]\nname = "a"\naddress = "::1"\nworkers = 20000', "at most 10000"),
        (b'[[host]]\nname = "a"\naddress = "::1"\nenv = {"A=B" = "7"}', "env"),
        (b'[[host]]\nname = "a"\naddress = "::1"\nenv = {"" = "7"}', "env"),
        (b'[[host]]\nname = "a"\naddress = "::1"\nenv = {A = "\\u0000"}', "NUL.*keys=.'env'"),
        (b'[[host]]\nname = "a"\naddress = "::1"\nenter = ["\\u0000"]', "NUL.*keys=.'enter'"),
        (b'[[host]]\nname = "a"\naddress = "::1"\nfolder = "\\u0000"', "NUL.*keys=.'folder'"),
        (b'[[host]]\nname = "a"\naddress = "::1"\nmemory = "\\u0000"', "NUL.*keys=.'memory'"),
        (b'[[host]]\nname = "a"\nworkers = "x"', r"host\[0\]\.workers"),
        (b"\xff", "UTF-8"),
        (b"host = " + 3000 * b"[", "nested too deeply"),
        (b"workers = 1" + 5000 * b"0", "5001 digits"),
        (2 * b'[[host]]\nname = "a"\naddress = "::1"\nworkers = 1\n', "differ"),
    ],
)
def test_a_file_that_cannot_be_is_refused(text: bytes, says: str):
    with pytest.raises(ConfigError, match=says):
        read(text)


UNREACHABLE = ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "::ffff:0.0.0.0"]
LOOPBACK = ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"]
NO_ADDRESS = ["", "localhost", "a.example", "10.0.0", "10.0.0.1:7070", "\\u0000"]


@pytest.mark.parametrize("address", [*UNREACHABLE, *LOOPBACK, *NO_ADDRESS])
def test_an_address_that_no_other_host_reaches_is_refused(tmp_path: Path, address: str):
    path = tmp_path / "lab.toml"
    path.write_bytes(FILE.replace(b"10.0.0.3", address.encode()))
    with pytest.raises(ConfigError) as caught:
        toml.read(path, read)
    facts = caught.value.facts
    assert (facts["file"], facts["host"], facts["key"]) == (str(path), "b", "address")


@pytest.mark.parametrize("memory", ["8 gigs", "1KiB"])
def test_a_memory_that_no_node_can_have_is_refused(tmp_path: Path, memory: str):
    path = tmp_path / "lab.toml"
    path.write_bytes(FILE + f'memory = "{memory}"\n'.encode())
    with pytest.raises(ConfigError) as caught:
        toml.read(path, read)
    facts = caught.value.facts
    assert (facts["file"], facts["host"], facts["key"]) == (str(path), "b", "memory")


@pytest.mark.parametrize("address", LOOPBACK)
def test_a_single_host_may_be_at_a_loopback_address(address: str):
    text = f"[[host]]\nname = 'a'\naddress = '{address}'\nworkers = 1\n"
    assert [host.address for host in read(text.encode())] == [address]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"nodes": 2}, "--nodes"),
        ({"per_node": 2}, "--nodes"),
        ({"memory": "1GiB"}, "where memory nodes run"),
        ({"memory_nodes": 2}, "where memory nodes run"),
        ({"address": "tcp://10.0.0.9:7070"}, "where memory nodes run"),
    ],
)
def test_arguments_that_contradict_the_file_are_refused(wrong: dict, says: str):
    with pytest.raises(ConfigError, match=says):
        Plan(["x"], hosts=read(FILE), **wrong)


PORT = b'[[host]]\nname = "a"\naddress = "10.0.0.1"\nworkers = 1\nport = 7070\n'


@pytest.mark.parametrize("more", [b"", PORT.replace(b'"a"', b'"b"')])
def test_a_port_is_that_of_one_memory_node(more: bytes):
    with pytest.raises(ConfigError, match=r"tcp://10\.0\.0\.1:7070.*nodes=2"):
        Plan(["x"], hosts=read(PORT + more), memory_nodes=2)
    assert Plan(["x"], hosts=read(PORT + more)).memory_hosts == [0]
    free = (PORT + more).replace(b"7070", b"0")
    assert len(Plan(["x"], hosts=read(free), memory_nodes=2).memory_hosts) == 2


def test_keys_go_with_hosts():
    with pytest.raises(ConfigError, match="--hosts"):
        Plan(["x"], insecure=True)


@pytest.mark.parametrize(
    ("made", "told"),
    [(None, "names no folder"), ([], "--client NAME"), (["a", "b"], "several clients' keys")],
)
def test_a_folder_without_one_key_of_the_workers_is_refused(
    tmp_path: Path, monkeypatch, made, told
):
    path = tmp_path / "lab.toml"
    path.write_bytes(FILE)
    folder = tmp_path / "keys"
    if made is not None:
        folder.mkdir()
        for name in made:
            (folder / f"{name}.key").touch()
    with pytest.raises(ConfigError, match=told):
        run.command(["x"], hosts=path, keys=folder)
    plans: list[Plan] = []
    launcher = SimpleNamespace(run=lambda: 0)
    monkeypatch.setattr(run, "Launcher", lambda plan, *_: plans.append(plan) or launcher)
    monkeypatch.setenv("SMBOX_KEY", "c.key")
    with pytest.raises(typer.Exit):
        run.command(["x"], hosts=path, keys=folder)
    assert [plan.key for plan in plans] == ["c.key"]


@pytest.mark.parametrize("option", ["nodes", "per_node"])
def test_the_numbers_of_workers_are_those_of_the_file(option: str):
    with pytest.raises(ConfigError, match="leave out --nodes, --per-node"):
        Plan(["x"], hosts=[Host(name="a", address="127.0.0.1", workers=1)], **{option: 2})

from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path

import pytest

from smbox.keys import Authorised, Role, read_client_key, read_clients, read_node_key
from smbox_torch.launching.access import CLIENT, Access, made_keys, write_keys

ADDRESS = "tcp://10.0.0.1:7070,tcp://10.0.0.2:7070"


def ours() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name.startswith("SMBOX_")}


def test_keys_survive_the_way_to_another_host(tmp_path: Path):
    files, key = made_keys()
    write_keys(files, tmp_path)
    clients, errors = read_clients(tmp_path)
    assert list(clients.values()) == [Authorised(CLIENT, Role.ADMIN)]
    assert errors == []
    with Access(ADDRESS, key).entered():
        client = read_client_key(os.environ["SMBOX_KEY"])
    assert client.node == read_node_key(tmp_path).public
    assert client.public in clients
    assert stat.S_IMODE((tmp_path / "node.toml").stat().st_mode) == 0o600


def test_the_variables_are_there_inside_a_block_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SMBOX_ADDRESS", "ipc:///tmp/other")
    monkeypatch.setenv("SMBOX_TIMEOUT_S", "7")
    before = ours()
    access = pickle.loads(pickle.dumps(Access(ADDRESS, "a key")))
    with access.entered(RANK=1):
        inside = ours()
        file = Path(inside["SMBOX_KEY"])
        assert file.read_text() == "a key"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert inside == before | {
        "SMBOX_ADDRESS": ADDRESS,
        "SMBOX_KEY": str(file),
        "SMBOX_RANK": "1",
    }
    assert ours() == before
    assert not file.exists()


def test_a_call_has_the_variables_and_returns():
    def told(*names: str) -> list[str]:
        return [os.environ[f"SMBOX_{name}"] for name in names]

    called = Access(ADDRESS, "a key").call(told, ["ADDRESS", "RANK"], {"RANK": 3})
    assert called == [ADDRESS, "3"]


def test_a_key_is_not_printed():
    assert "secret" not in repr(Access(ADDRESS, "secret"))

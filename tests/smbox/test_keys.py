from __future__ import annotations

import datetime as dt
import os
import resource
import time
from contextlib import contextmanager

import pytest

from smbox.errors import ConfigError
from smbox.keys import (
    Authorised,
    Role,
    add_client,
    make_node_key,
    read_client_key,
    read_clients,
    read_node_key,
    today,
)


@pytest.fixture
def folder(tmp_path):
    assert make_node_key(tmp_path / "keys")
    return tmp_path / "keys"


def test_a_client_carries_its_pair_and_the_nodes_public_key(folder):
    path = add_client(folder, Authorised("alice", Role.WRITE, "run/", dt.date(2999, 1, 2)))
    key = read_client_key(path)
    assert (key.name, key.node) == ("alice", read_node_key(folder).public)
    found, errors = read_clients(folder)
    assert errors == []
    assert found == {key.public: Authorised("alice", Role.WRITE, "run/", dt.date(2999, 1, 2))}
    assert key.secret not in (folder / "clients" / "alice.toml").read_text()


def test_secrets_are_for_their_owner_alone(folder):
    paths = [folder / "node.toml", add_client(folder, Authorised("alice", Role.READ))]
    assert [oct(path.stat().st_mode & 0o777) for path in paths] == ["0o600", "0o600"]
    os.chmod(paths[1], 0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_client_key(paths[1])


def test_a_file_that_any_user_may_change_authorises_nobody(folder):
    before = os.umask(0)
    try:
        add_client(folder, Authorised("alice", Role.READ))
    finally:
        os.umask(before)
    [entry] = (folder / "clients").iterdir()
    assert oct(entry.stat().st_mode & 0o777) == "0o644"  # the node may be of another user
    assert len(read_clients(folder)[0]) == 1
    entry.chmod(0o666)
    found, [error] = read_clients(folder)
    assert found == {}
    assert "chmod 664" in str(error)


def test_a_nodes_key_is_made_once(folder):
    before = read_node_key(folder)
    assert not make_node_key(folder)
    assert read_node_key(folder) == before


def test_a_client_of_the_same_name_is_refused_and_nothing_changes(folder):
    path = add_client(folder, Authorised("alice", Role.READ))
    before = path.read_text()
    with pytest.raises(ConfigError, match="client of this name exists"):
        add_client(folder, Authorised("alice", Role.ADMIN))
    assert path.read_text() == before
    assert [client.role for client in read_clients(folder)[0].values()] == [Role.READ]
    (folder / "clients" / "alice.toml").unlink()
    with pytest.raises(ConfigError, match="client of this name exists") as caught:
        add_client(folder, Authorised("alice", Role.ADMIN))
    assert caught.value.facts["file"] == str(path)


@contextmanager
def full_disk():
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


def test_a_full_disk_leaves_no_part_of_a_key(tmp_path):
    folder = tmp_path / "keys"
    with pytest.raises(ConfigError, match="cannot write keys"), full_disk():
        make_node_key(folder)
    assert make_node_key(folder)
    with pytest.raises(ConfigError, match="cannot write keys"), full_disk():
        add_client(folder, Authorised("alice", Role.READ))
    add_client(folder, Authorised("alice", Role.READ))


@pytest.mark.parametrize("name", ["", "../alice", "a/b", ".hidden", "x" * 65, "new\nline"])
def test_a_name_that_no_file_may_have_is_refused(folder, name):
    with pytest.raises(ConfigError, match="name"):
        add_client(folder, Authorised(name, Role.READ))
    assert read_clients(folder) == ({}, [])


@pytest.mark.parametrize("prefix", ['a"b', "a\nb", "a\\b"])
def test_a_prefix_that_would_break_its_file_is_refused(folder, prefix):
    with pytest.raises(ConfigError, match="prefix"):
        add_client(folder, Authorised("alice", Role.READ, prefix))


def test_an_expired_key_is_refused_before_anything_is_sent(folder):
    path = add_client(folder, Authorised("alice", Role.READ, expires=today()))
    with pytest.raises(ConfigError, match="expired"):
        read_client_key(path)
    yesterday = today() - dt.timedelta(days=1)
    assert Authorised("a", Role.READ, expires=today()).is_valid(yesterday)
    assert not Authorised("a", Role.READ, expires=today()).is_valid(today())


def test_a_key_expires_at_one_moment_in_all_time_zones(monkeypatch):
    try:
        for zone in ("EAST-14", "WEST+12"):  # at any time one of them has another date than UTC
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert today() == dt.datetime.now(dt.UTC).date()
    finally:
        monkeypatch.undo()
        time.tzset()


BROKEN = {
    "no TOML": "public = ",
    "no key": 'public = "short"\nrole = "read"',
    "another alphabet": f'public = "{"~" * 40}"\nrole = "read"',
    "no role": "public = {key!r}",
    "a misspelt prefix": "public = {key!r}\nrole = 'admin'\nprefx = 'run/'",
    "an unknown role": "public = {key!r}\nrole = 'root'",
    "no date": "public = {key!r}\nrole = 'read'\nexpires = 'tomorrow'",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_authorises_nobody_and_hinders_nobody(folder, text):
    add_client(folder, Authorised("alice", Role.READ))
    text = text.replace("{key!r}", repr(read_node_key(folder).public))
    (folder / "clients" / "broken.toml").write_text(text)
    found, errors = read_clients(folder)
    assert [client.name for client in found.values()] == ["alice"]
    assert len(errors) == 1
    assert "broken.toml" in str(errors[0])


def test_of_two_files_with_one_key_the_first_counts(folder):
    add_client(folder, Authorised("alice", Role.READ))
    text = (folder / "clients" / "alice.toml").read_text()
    (folder / "clients" / "zoe.toml").write_text(text.replace("read", "admin"))
    found, errors = read_clients(folder)
    assert [client.role for client in found.values()] == [Role.READ]
    assert len(errors) == 1


def test_clients_are_read_in_order_of_their_files_and_copies_by_an_editor_are_none(folder):
    names = [f"client{index}" for index in (7, 2, 9, 4, 1, 8, 3, 6, 5)]
    for name in names:
        add_client(folder, Authorised(name, Role.READ))
    entry = folder / "clients" / f"{name}.toml"
    entry.rename(f"{entry}~")
    (folder / "clients" / f".{name}.toml.swp").write_text("public =")
    found, errors = read_clients(folder)
    assert [client.name for client in found.values()] == sorted(names[:-1])
    assert errors == []


@pytest.mark.parametrize("part", ["node", "public", "secret"])
@pytest.mark.parametrize("value", ["short", "~" * 40], ids=["short", "another alphabet"])
def test_a_client_is_told_which_key_in_its_file_is_none(folder, part, value):
    path = add_client(folder, Authorised("alice", Role.READ))
    key = getattr(read_client_key(path), part)
    path.write_text(path.read_text().replace(key, value))
    with pytest.raises(ConfigError, match=f"{part} is not a key of 40 characters"):
        read_client_key(path)


def test_a_pipe_is_no_key_and_is_not_waited_for(folder):
    os.mkfifo(folder / "pipe.key", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        read_client_key(folder / "pipe.key")


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match="keygen"):
        read_client_key(tmp_path / "nobody.key")
    with pytest.raises(ConfigError, match="keygen"):
        read_node_key(tmp_path)
    assert read_clients(tmp_path) == ({}, [])


def test_a_pair_that_is_none_is_refused(folder):
    path = add_client(folder, Authorised("alice", Role.READ))
    mine, other = read_client_key(path).public, read_node_key(folder).public
    path.write_text(path.read_text().replace(f'public = "{mine}"', f'public = "{other}"'))
    with pytest.raises(ConfigError, match="not a pair"):
        read_client_key(path)


def test_a_link_at_the_place_of_a_key_is_not_followed(tmp_path):
    target = tmp_path / "elsewhere"
    (tmp_path / "node.toml").symlink_to(target)
    with pytest.raises(ConfigError, match="cannot write keys"):
        make_node_key(tmp_path)
    assert not target.exists()

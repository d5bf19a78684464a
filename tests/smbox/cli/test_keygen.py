"""``smbox keygen``: invalid arguments and folders."""

from __future__ import annotations

import datetime as dt
import shlex
from contextlib import suppress

import pytest

from smbox.cli.main import main
from smbox.errors import ConfigError
from smbox.keys import (
    Authorised,
    Role,
    add_client,
    make_node_key,
    read_client_key,
    read_clients,
    today,
)


def test_a_key_of_one_day_is_valid_today(tmp_path):
    with suppress(SystemExit):
        main(["keygen", str(tmp_path), "--client", "a", "--days", "1"])
    assert read_client_key(tmp_path / "a.key").expires == today() + dt.timedelta(days=1)


def test_a_client_without_a_role_may_write_but_neither_create_nor_free(tmp_path):
    with suppress(SystemExit):
        main(["keygen", str(tmp_path), "--client", "a"])
    (client,) = read_clients(tmp_path)[0].values()
    assert (client.role, client.prefix, client.expires) == (Role.WRITE, "", None)


@pytest.mark.parametrize("days", ["0", "-1", "3000000", "1000000000"])
def test_days_that_no_calendar_has_are_refused_and_nothing_is_made(tmp_path, capsys, days):
    with pytest.raises(SystemExit) as raised:
        main(["keygen", str(tmp_path / "keys"), "--client", "a", "--days", days])
    assert raised.value.code == 2
    assert "days" in capsys.readouterr().err
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize(
    "wrong", [["--client", "a/b"], ["--prefix", "run'"], ["--role", "reader"]]
)
def test_a_client_that_cannot_be_named_is_refused_and_nothing_is_made(tmp_path, capsys, wrong):
    with pytest.raises(SystemExit) as raised:
        main(["keygen", str(tmp_path / "keys"), "--client", "first", *wrong])
    assert raised.value.code == 2
    assert wrong[1] in capsys.readouterr().err
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize(
    ("option", "values"),
    [("--role", ["read", "admin"]), ("--prefix", ["a/", "b/"]), ("--days", ["1", "2"])],
)
def test_an_option_for_each_client_is_refused_and_nothing_is_made(
    tmp_path, capsys, option, values
):
    clients = zip("ab", values, strict=True)
    given = [word for name, value in clients for word in ("--client", name, option, value)]
    with pytest.raises(SystemExit) as raised:
        main(["keygen", str(tmp_path / "keys"), *given])
    assert raised.value.code == 2
    assert f"{option} applies to all clients" in capsys.readouterr().err
    assert not (tmp_path / "keys").exists()


def test_a_name_given_twice_is_refused_and_nothing_is_made(tmp_path, capsys):
    with pytest.raises(SystemExit) as raised:
        main(["keygen", str(tmp_path / "keys"), "--client", "a", "--client", "a"])
    assert raised.value.code == 2
    assert "name='a'" in capsys.readouterr().err
    assert not (tmp_path / "keys").exists()


def test_a_name_that_is_taken_is_refused_and_nothing_is_made(tmp_path, capsys):
    make_node_key(tmp_path)
    add_client(tmp_path, Authorised("old", Role.READ))
    with pytest.raises(SystemExit) as raised:
        main(["keygen", str(tmp_path), "--client", "new", "--client", "old"])
    assert raised.value.code == 2
    assert "old.toml" in capsys.readouterr().err
    assert not (tmp_path / "new.key").exists()
    assert [client.name for client in read_clients(tmp_path)[0].values()] == ["old"]


def test_commands_that_it_tells_hold_for_a_folder_with_a_space(tmp_path, capsys):
    folder = tmp_path / "my keys"
    with suppress(SystemExit):
        main(["keygen", str(folder), "--client", "a"])
    told = capsys.readouterr().out.splitlines()[0]
    assert shlex.split(told.partition("with: ")[2])[-2:] == ["--keys", str(folder)]
    key = folder / "a.key"
    key.chmod(0o644)
    with pytest.raises(ConfigError) as refused:
        read_client_key(key)
    assert shlex.split(refused.value.message.partition("run ")[2]) == ["chmod", "600", str(key)]


@pytest.mark.parametrize("below", ["", "keys"])
def test_a_file_is_no_folder_of_keys(tmp_path, capsys, below):
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(SystemExit) as raised:
        main(["keygen", str(file / below)])
    assert raised.value.code == 2
    told = capsys.readouterr().err
    assert "cannot write keys: Not a directory" in told
    assert str(file) in told
    assert file.read_text() == "kept"


def test_a_folder_that_cannot_be_made_is_named(capsys):
    with pytest.raises(SystemExit) as raised:
        main(
            ["keygen", "/proc/keys-of-smbox", "--client", "a"]
        )  # no user can create files in /proc
    assert raised.value.code == 2
    assert "folder='/proc/keys-of-smbox'" in capsys.readouterr().err


def test_a_client_that_cannot_be_authorised_has_no_key(tmp_path, capsys):
    folder = tmp_path / "keys"
    make_node_key(folder)
    (folder / "clients").rmdir()
    with pytest.raises(SystemExit) as raised:
        main(["keygen", str(folder), "--client", "a"])
    assert raised.value.code == 2
    assert "cannot write keys" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["node.toml"]


def test_a_folder_without_clients_tells_how_to_create_one(tmp_path, capsys):
    with suppress(SystemExit):
        main(["keygen", str(tmp_path)])
    assert "--client NAME" in capsys.readouterr().out

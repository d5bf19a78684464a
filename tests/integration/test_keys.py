"""Tests of nodes with keys over real connections: admission, rights and secrecy."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import smbox
from smbox.errors import AccessDeniedError, ConfigError, ConnectError
from smbox.keys import Authorised, Role, add_client, make_node_key

SOON_S = 10.0
ONES = np.ones(8, np.float32)


def test_a_removed_client_is_out_and_others_go_on(guarded):
    kept, gone = guarded.box(guarded.key("kept")), guarded.box(guarded.key("gone"))
    region = kept.create("a", init=ONES)
    theirs = gone.attach("a")
    assert theirs.get().tolist() == ONES.tolist()  # now it has a connection
    (guarded.folder / "clients" / "gone.toml").unlink()
    with pytest.raises(AccessDeniedError, match="node refuses this key"):
        smbox.connect(guarded.address, key=guarded.folder / "gone.key")
    assert guarded.denies(theirs.get, "not authorised any more")
    assert region.get().tolist() == ONES.tolist()


def test_a_changed_role_counts_at_once(guarded):
    box = guarded.box(guarded.key("worker"))
    region = box.create("a", init=ONES)
    file = guarded.folder / "clients" / "worker.toml"
    file.write_text(file.read_text().replace('"admin"', '"read"'))
    assert guarded.denies(lambda: region.put(ONES), "role")
    assert region.get().tolist() == ONES.tolist()


def test_each_refusal_says_which_end_refused_and_comes_soon(guarded, tmp_path):
    make_node_key(tmp_path / "others")
    strange = add_client(tmp_path / "others", Authorised("x", Role.ADMIN))
    began_s = time.monotonic()
    with pytest.raises(AccessDeniedError, match="node refuses clients without a key"):
        smbox.connect(guarded.address)
    with pytest.raises(ConnectError, match="client refuses the node"):
        smbox.connect(guarded.address, key=strange)
    with (
        smbox.local(memory="16MiB") as plain,
        pytest.raises(ConnectError, match="client refuses a node that encrypts nothing"),
    ):
        smbox.connect(plain.address, key=strange)
    with pytest.raises(ConfigError, match="cannot read"):
        smbox.connect(guarded.address, key=tmp_path / "nothing.key")
    assert time.monotonic() - began_s < 3 * SOON_S


def test_the_key_comes_from_the_environment_and_through_a_restart(guarded, monkeypatch):
    key = guarded.key("worker")
    guarded.box(key).create("a", init=ONES)
    monkeypatch.setenv("SMBOX_KEY", str(key))
    with smbox.connect(guarded.address, transport="tcp", timeout_s=60.0) as box:
        region = box.attach("a")
        region.accumulate(ONES)
        guarded.restart()
        region.accumulate(ONES)
        assert region.get().tolist() == (3 * ONES).tolist()


def test_strangers_do_not_hinder_a_client(guarded):
    box = guarded.box(guarded.key("worker"))
    region = box.create("a", init=ONES)
    host, port = guarded.address.removeprefix("tcp://").split(":")
    strangers = []
    for _ in range(200):
        stranger = socket.create_connection((host, int(port)))
        stranger.send(secrets.token_bytes(1000))
        strangers.append(stranger)
    for _ in range(100):
        region.accumulate(ONES)
    for stranger in strangers:
        stranger.close()
    assert region.get().tolist() == (101 * ONES).tolist()


def test_refusals_do_not_fill_the_log(guarded, tmp_path):
    gone = guarded.key("gone")
    guarded.box(gone)
    (guarded.folder / "clients" / "gone.toml").unlink()
    time.sleep(2.0)  # the node reads its folder once a second
    for _ in range(5):
        with pytest.raises(AccessDeniedError):
            smbox.connect(guarded.address, key=gone)
    guarded.stop()
    told = [line for line in guarded.errors.splitlines() if "handshakes" in line]
    assert 1 <= len(told) <= 2
    assert "127.0.0.1" in told[0]


def test_a_folder_without_a_key_stops_a_node_at_its_start(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "memnode",
            "--bind",
            "tcp://127.0.0.1:0",
            "--keys",
            str(tmp_path),
            "--name",
            f"none-{secrets.token_hex(4)}",
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "smbox keygen" in done.stderr


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


def test_nothing_readable_travels(guarded, stack):
    """Neither data nor names are readable on the network."""
    relay = stack.enter_context(Relay(guarded.address))
    key = guarded.key("worker")
    guarded.box(key)
    box = stack.enter_context(smbox.connect(relay.address, key=key, transport="tcp"))
    data = np.frombuffer(b"a secret weight " * 64, np.uint8)
    box.create("a secret name", init=data)
    assert box.attach("a secret name").get().tobytes() == data.tobytes()
    assert len(relay.seen) > 2 * data.nbytes
    assert b"secret" not in relay.seen


class Relay:
    """A relay that forwards the bytes of a connection and keeps a copy."""

    def __init__(self, address):
        host, port = address.removeprefix("tcp://").split(":")
        self._far, self.seen = (host, int(port)), bytearray()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self._sockets, self._threads = [], []

    def __enter__(self):
        self._start(self._accept)
        return self

    def __exit__(self, *_):
        for each in (self._server, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (self._server, *self._sockets):
            each.close()

    def _start(self, work, *arguments):
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, far = self._server.accept()[0], socket.create_connection(self._far)
                self._sockets += [near, far]
                self._start(self._carry, near, far)
                self._start(self._carry, far, near)

    def _carry(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.seen += data
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

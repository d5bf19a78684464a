"""An ipc address takes nothing that is somebody's, and leaves nothing."""

from __future__ import annotations

import socket

import pytest
import zmq

from memnode.config import Bind
from memnode.ipc_path import SocketFile, check_free
from memnode.listener import Listener
from smbox.errors import ConnectError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s"


@pytest.fixture
def listen(path):
    context, made = zmq.Context(), []

    def listen():
        made.append(Listener(context, Bind.parse(f"ipc://{path}")))
        return made[-1]

    yield listen
    for listener in made:
        listener.close()
    context.term()


def test_a_file_of_another_kind_stays(listen, path):
    path.write_text("precious")
    with pytest.raises(ConnectError, match="another kind"):
        listen()
    assert path.read_text() == "precious"


def test_a_socket_in_use_is_nobody_elses(listen, path):
    first = listen()
    with pytest.raises(ConnectError, match="somebody else"):
        listen()
    first.close()
    assert not path.exists()


def test_the_socket_of_a_killed_node_is_taken_over(listen, path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    listen().close()
    assert not path.exists()


def test_one_whose_queue_is_full_is_in_use(path):
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))
        with pytest.raises(ConnectError, match="somebody else"):
            check_free(str(path), f"ipc://{path}")


def test_a_path_that_another_took_meanwhile_stays(path):
    path.touch()
    ours = SocketFile(str(path))
    other = path.with_name("other")
    other.write_text("new")
    other.rename(path)
    ours.remove()
    assert path.read_text() == "new"


def test_what_is_gone_already_is_fine(path):
    path.touch()
    ours = SocketFile(str(path))
    path.unlink()
    ours.remove()


def test_an_abstract_name_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "@name").write_text("precious")
    check_free("@name", "ipc://@name")
    SocketFile("@name").remove()
    assert (tmp_path / "@name").exists()

"""Faulty host commands: each start and each order ends in time, and nothing stays."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import psutil
import pytest

from smbox.errors import ConnectError, SystemLimitError
from smbox_torch.launching import agent, host_command, remote_host
from smbox_torch.launching.children import Lines, Running, end_all
from smbox_torch.launching.cluster import Plan
from smbox_torch.launching.frames import BEGIN, Kind, encode
from smbox_torch.launching.hosts import Host
from smbox_torch.launching.serving import Serving, serving

MARK = "FAR_HOST_OF_TEST"
TIMEOUT_S = 60.0
SHORT_S = 1.0
LONG = {"LONG": 200_000 * "x"}  # more than a pipe holds
READY = encode(Kind.READY, 0, {"pid": 1, "python": "p", "command": ["x"], "free_port": 1})
ORDER = b'"argv"'  # stands in each order to start a process

# Says that it is ready, takes one order to start, and then does what the test says.
AGENT = f"""
import os, signal, sys, time
os.write(1, {BEGIN + READY!r})
heard = b""
while {ORDER!r} not in heard:
    heard += os.read(0, 65536)
"""


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch, having) -> Iterator[str]:
    """A word that all processes of the test have; none of them stays."""
    word = uuid.uuid4().hex
    monkeypatch.setenv(MARK, word)
    yield word
    deadline_s = time.monotonic() + TIMEOUT_S
    while left := having(MARK, word):
        assert time.monotonic() < deadline_s, left
        time.sleep(0.05)


def entered(
    notes: list[str], *enter: str, env: dict[str, str] | None = None
) -> AbstractContextManager[Serving]:
    """Enter host a, which has one worker and no memory node."""
    host = Host("a", "127.0.0.1", workers=1, enter=enter, python=sys.executable)
    plan = Plan(["true"], hosts=(host,), address="tcp://127.0.0.1:9", grace_s=0.5)
    return serving(plan, env or {}, notes.append)


@contextmanager
def answering(monkeypatch: pytest.MonkeyPatch, notes: list[str], *enter: str):
    """Host a, which has to answer soon once it is ready."""
    with entered(notes, *enter) as served:
        for module in (host_command, remote_host):
            monkeypatch.setattr(module, "ANSWER_S", SHORT_S)
        yield served.hosts[0]


def start(host, env: dict[str, str] | None = None) -> Running:
    return host.start(["sleep", "1000"], env or {}, Lines(lambda line: None))


def await_end(child: Running) -> int | None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not child.reap():
        assert time.monotonic() < deadline_s
        for pipe in child.pipes:
            pipe.read()
        time.sleep(0.01)
    return child.exit_code


@pytest.mark.parametrize("env", [{}, LONG], ids=["short", "long"])
@pytest.mark.parametrize(
    "code",
    ["sleep 1000; :", "exec >&- 2>&-; sleep 1000; :", "exec <&-; sleep 1000; :", "yes; :"],
)
def test_a_start_ends_in_time_at_an_entrance_without_an_agent(
    monkeypatch: pytest.MonkeyPatch, code: str, env: dict[str, str]
):
    monkeypatch.setattr(remote_host, "READY_S", SHORT_S)
    with (
        pytest.raises(ConnectError, match=r"cannot connect to host 'a'.*no reply"),
        entered([], "sh", "-c", code, env=env),
    ):
        pytest.fail("entered")


@pytest.mark.parametrize(
    ("code", "how", "said"),
    [
        ("printf 'no route to a'; exit 255", "exit code 255", "no route to a"),
        ("printf 'first\nlast\n'; exit 1", "exit code 1", "first | last"),
        ("echo 'no key' >&2; exit 1", "exit code 1", "no key"),
        ("exit 0", "exit code 0", ""),
        ("kill -9 $$", "signal SIGKILL", ""),
        ("head -c 100000 /dev/urandom; exit 1", "exit code 1", None),
        ("head -c 100000 /dev/zero; exit 1", "exit code 1", None),
    ],
)
def test_all_that_an_entrance_says_stands_in_the_error(code: str, how: str, said: str | None):
    with pytest.raises(ConnectError) as caught, entered([], "sh", "-c", code):
        pytest.fail("entered")
    assert "cannot connect to host 'a'" in caught.value.message
    assert caught.value.message.endswith(how)
    assert said is None or caught.value.facts["said"] == said


def test_both_streams_of_an_entrance_stand_in_the_error():
    code = "echo out; echo err >&2; exit 1"  # the end of out may be that of a mark, and waits
    with pytest.raises(ConnectError) as caught, entered([], "sh", "-c", code):
        pytest.fail("entered")
    assert set(caught.value.facts["said"].split(" | ")) == {"out", "err"}


def test_a_question_that_nobody_answers_stands_in_the_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(remote_host, "READY_S", 5 * SHORT_S)
    code = "printf 'Password: '; printf 'Code: ' >&2; sleep 1000; :"
    with pytest.raises(ConnectError) as caught, entered([], "sh", "-c", code):
        pytest.fail("entered")
    assert caught.value.message.endswith("no reply")
    assert set(caught.value.facts["said"].split(" | ")) == {"Password: ", "Code: "}


def test_a_limit_of_this_host_is_not_taken_for_a_wrong_entrance(monkeypatch):
    def refuse(_: int) -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(SystemLimitError, match="raise ulimit -u"), entered([]):
        pass


def test_signs_that_move_a_terminal_are_not_shown():
    notes: list[str] = []
    code = r"printf '\033[2J\033[31mred\033[0m\r\nnext\n'; exit 1"
    with pytest.raises(ConnectError), entered(notes, "sh", "-c", code):
        pytest.fail("entered")
    assert notes == ["host a: red", "host a: next"]


@pytest.mark.parametrize(
    "wrong", [13 * b"\xff", encode(Kind.READY, 0, {}), encode(Kind.REFUSED, 0, 7)]
)
def test_a_host_that_begins_with_no_frames_is_named(wrong: bytes):
    code = f"import os, signal\nos.write(1, {BEGIN + wrong!r})\nsignal.pause()"
    with (
        pytest.raises(ConnectError, match=r"(?s)host 'a' .*it sends invalid frames"),
        entered([], sys.executable, "-c", code),
    ):
        pytest.fail("entered")


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("os.write(1, 13 * b'\\xff'); signal.pause()", "it sends invalid frames"),
        ("os.write(1, EXIT); signal.pause()", "it sends invalid frames"),
        ("os.close(1); signal.pause()", "its output has ended"),
        ("sys.exit(3)", "exit code 3"),
        ("os.kill(os.getpid(), 15)", "signal SIGTERM"),
    ],
)
def test_a_host_that_fails_later_is_lost_with_its_processes(monkeypatch, code: str, how: str):
    notes: list[str] = []
    code = f"{AGENT}\nEXIT = {encode(Kind.EXIT, 1, 'x')!r}\n{code}"
    with answering(monkeypatch, notes, sys.executable, "-c", code) as host:
        assert await_end(start(host)) == remote_host.LOST
        assert host.is_lost
        with pytest.raises(ConnectError, match="host='a'"):
            start(host)
    assert len(notes) == 1
    assert notes[0].startswith(f"host a: its connection has ended ({how}")


def test_a_host_that_closes_its_input_is_lost(monkeypatch):
    notes: list[str] = []
    code = f"{AGENT}\nos.close(0); os.write(2, b'closed\\n'); signal.pause()"
    with answering(monkeypatch, notes, sys.executable, "-c", code) as host:
        child = start(host)
        deadline_s = time.monotonic() + TIMEOUT_S
        while notes != ["host a: closed"]:
            assert time.monotonic() < deadline_s
            for pipe in child.pipes:
                pipe.read()
        child.send(signal.SIGTERM)
        assert await_end(child) == remote_host.LOST
    assert notes[1:] == ["host a: its connection has ended (its input has ended)"]


def test_a_host_that_stops_reading_is_lost(monkeypatch):
    notes: list[str] = []
    with answering(monkeypatch, notes) as host:
        first = start(host)
        os.kill(host.pid, signal.SIGSTOP)
        second = start(host, LONG)
        assert host.is_lost
        assert {await_end(first), await_end(second)} == {remote_host.LOST}
    assert notes == ["host a: its connection has ended (it has accepted no frames for 1 s)"]


def test_a_host_that_waits_for_this_process_is_not_lost(monkeypatch):
    """Nobody read the output of the run for a while: Ctrl-S on a terminal, ``less``."""
    notes: list[str] = []
    waits = iter([2 * SHORT_S])

    def show(_: str) -> None:
        if wait_s := next(waits, 0.0):
            time.sleep(wait_s)

    with answering(monkeypatch, notes) as host:
        first = host.start(["yes", 1000 * "y"], {}, Lines(show))
        assert select.select([pipe.fd for pipe in first.pipes], [], [], TIMEOUT_S)[0]
        start(host, LONG)
        assert not host.is_lost
    assert notes == []


def test_an_answer_that_came_in_time_counts_though_it_is_read_late(monkeypatch):
    notes: list[str] = []
    end = encode(Kind.EXIT, 1, -signal.SIGKILL)
    code = f"{AGENT}\nos.write(1, {end!r}); os.read(0, 65536); signal.pause()"
    with answering(monkeypatch, notes, sys.executable, "-c", code) as host:
        monkeypatch.setattr(remote_host, "ANSWER_S", -1.0)  # late as soon as it is asked
        child = start(host)
        assert select.select([pipe.fd for pipe in child.pipes], [], [], TIMEOUT_S)[0]
        child.send(signal.SIGKILL)
        assert child.reap()
        assert child.exit_code == -signal.SIGKILL
        assert not host.is_lost
    assert notes == []


@pytest.mark.parametrize("killed", ["the agent", "the words that entered"])
def test_no_process_of_a_lost_host_runs_on(killed: str):
    with entered([], "setsid", "-w") as served:  # the agent has a session of its own, as by ssh
        child = start(served.hosts[0])
        words = psutil.Process(served.agents[0].pid)
        while len(below := words.children(recursive=True)) < 2:
            assert not child.reap()
        agent = psutil.Process(served.hosts[0].pid)
        (agent if killed == "the agent" else words).kill()
        assert await_end(child) == remote_host.LOST
        assert not psutil.wait_procs(below, TIMEOUT_S)[1]


def test_a_host_that_tells_no_end_is_lost(monkeypatch):
    notes: list[str] = []
    with answering(monkeypatch, notes) as host:
        child = start(host)
        os.kill(host.pid, signal.SIGSTOP)
        end_all([child], 0.1)
        assert child.exit_code == remote_host.LOST
    assert notes == ["host a: its connection has ended (it has not answered for 1 s)"]


def test_a_process_on_a_host_has_the_login_below_what_the_launcher_tells(monkeypatch, tmp_path):
    started: list[dict[str, str]] = []

    def begin(_argv, env, *_, **__):
        started.append(env)
        raise OSError("not started")

    monkeypatch.setattr(agent, "Child", begin)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    login = {"SMBOX_KEY": "the login's", "PLACE": "the login", "OWN": "the login", "RANK": "7"}
    for name, value in login.items():
        monkeypatch.setenv(name, value)
    told = {"folder": str(tmp_path), "env": {}, "words": [], "workers": 1000, "grace_s": 1.0}
    order = {"argv": ["x"], "env": {"PLACE": "told"}, "node": "", "at_death": 9}
    read_end, write_end = os.pipe()
    with open(write_end, "wb") as orders:
        orders.write(encode(Kind.PREPARE, 0, told) + encode(Kind.START, 1, order))
    with open(read_end) as orders, open(os.devnull, "wb") as events:
        agent.Agent(orders.fileno(), events.fileno()).run()
    (env,) = started
    assert (env["PLACE"], env["OWN"], env["OMP_NUM_THREADS"]) == ("told", "the login", "1")
    assert "SMBOX_KEY" not in env
    assert "RANK" not in env

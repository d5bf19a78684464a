from __future__ import annotations

import math
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from smbox.errors import ConfigError, WorkerLostError
from smbox_torch.averaging.store_exchange import StoreExchange, kept_stores
from smbox_torch.launching.local_host import free_port
from smbox_torch.world import World

SHORT_S = 1.0
LONG_S = 60.0


@pytest.fixture(autouse=True)
def _end_stores():
    yield
    kept_stores.clear()


def world(rank: int, size: int, port: int) -> World:
    return World(
        rank,
        rank,
        size,
        size,
        master_addr="127.0.0.1",
        master_port=port,
    )


def exchange_of_all(port: int, addresses: str, timeout_s: float = LONG_S) -> list[list[str]]:
    size = len(addresses)
    exchanges = [StoreExchange(world(rank, size, port), timeout_s) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda each, own: each(own), exchanges, addresses))


@pytest.mark.parametrize("timeout_s", [LONG_S, math.inf])
def test_all_learn_all_addresses(timeout_s):
    assert exchange_of_all(free_port(), "abc", timeout_s) == [["a", "b", "c"]] * 3


def test_a_second_exchange_returns_no_address_of_the_first():
    port = free_port()
    assert exchange_of_all(port, "ab") == [["a", "b"]] * 2
    assert is_served(port)  # another worker may begin its next exchange already
    with pytest.raises(WorkerLostError, match="rank 1 never came"):
        StoreExchange(world(0, 2, port), SHORT_S)("c")
    assert exchange_of_all(port, "de") == [["d", "e"]] * 2


def test_who_serves_the_store_names_the_workers_that_never_came():
    with pytest.raises(WorkerLostError, match="rank 1, 2 never came") as caught:
        StoreExchange(world(0, 3, free_port()), SHORT_S)("a")
    assert caught.value.facts["rank"] == 1


def is_served(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_worker_that_gave_up_may_come_again(until):
    """It names the worker that never came; those that come later name it."""
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(StoreExchange(world(0, 3, port), LONG_S), "a")
        until(lambda: is_served(port))
        for rank, lost in (1, 2), (2, 1):
            with pytest.raises(WorkerLostError, match=f"rank {lost} never came"):
                StoreExchange(world(rank, 3, port), SHORT_S)("gave up")
        second = pool.submit(StoreExchange(world(1, 3, port), LONG_S), "b")
        third = StoreExchange(world(2, 3, port), LONG_S)("c")
        assert first.result() == second.result() == third == ["a", "b", "c"]


def test_a_store_that_nobody_serves_is_named():
    port = free_port()
    with pytest.raises(WorkerLostError, match="does not answer") as caught:
        StoreExchange(world(1, 2, port), SHORT_S)("b")
    assert caught.value.facts["store"] == f"tcp://127.0.0.1:{port}"


def test_a_store_that_never_answers_holds_nobody_for_ever():
    """As one whose process is stopped: torch's own client waits for it without an end."""
    begun_s = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(WorkerLostError, match="does not answer") as caught:
            StoreExchange(world(1, 2, port), SHORT_S)("b")
    assert caught.value.facts["rank"] == 0
    assert time.monotonic() - begun_s < LONG_S


SERVE = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
before = store.num_keys()
while store.num_keys() < before + 2:
    pass
print("came", flush=True)
sys.stdin.readline()
"""


def test_a_worker_that_is_early_comes_again_when_rank_0_is_started_again(preloaded, until):
    """A launcher starts a killed worker before rank 0 has noticed its death, and ended too."""
    port = free_port()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen([preloaded, "-c", SERVE, str(port)], **pipes) as before,
        ThreadPoolExecutor(1) as pool,
    ):
        early = pool.submit(StoreExchange(world(1, 2, port), LONG_S), "b")
        assert before.stdout.readline() == b"came\n"
        before.kill()
        before.wait(LONG_S)
        until(lambda: not is_served(port))
        assert StoreExchange(world(0, 2, port), LONG_S)("a") == ["a", "b"]
        assert early.result(LONG_S) == ["a", "b"]


def test_several_workers_need_a_master():
    with pytest.raises(ConfigError, match="exchange="):
        StoreExchange(World(world_size=2), LONG_S)

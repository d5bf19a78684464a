"""One contract, every way to the memory: mapped, over tcp, over ipc."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import pytest

import smbox
from smbox.testing.contract import CHECKS

STOP_S = 30.0


@contextlib.contextmanager
def node(*binds):
    """Run a memory node; yield its addresses in the order of ``binds``."""
    options = [word for bind in binds for word in ("--bind", bind)]
    command = [sys.executable, "-m", "memnode", "--json", "--memory", "256MiB", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["addresses"]
        finally:
            process.terminate()
            process.wait(STOP_S)


def bind_of(transport, folder):
    return f"ipc://{folder}/node" if transport == "ipc" else "tcp://127.0.0.1:0"


@pytest.fixture(scope="module", params=["shm", "tcp", "ipc"])
def box(request, tmp_path_factory):
    transport = request.param
    with (
        node(bind_of(transport, tmp_path_factory.mktemp("node"))) as (address,),
        smbox.connect(address, transport=transport, timeout_s=60.0) as box,
    ):
        assert box.transport == transport
        assert box.address == address
        yield box


@pytest.mark.shares
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract_holds(box, check):
    check(box)


def test_auto_maps_the_memory_of_its_own_host():
    with (
        node("tcp://127.0.0.1:0") as (address,),
        smbox.connect(address) as box,
        smbox.connect(address, transport="tcp") as other,
    ):
        assert (box.transport, other.transport) == ("shm", "tcp")
        assert "/dev/shm" in box.transport_reason
        mapped = box.create("both", shape=(3,), dtype="int64", init=1)
        remote = other.attach("both")
        remote.accumulate([1, 2, 3])
        mapped.accumulate([10, 20, 30])
        assert mapped.get().tolist() == remote.get().tolist() == [12, 23, 34]
        assert mapped.version == remote.version == 2


def test_a_transport_that_cannot_work_says_why():
    with (
        node("tcp://127.0.0.1:0") as (address,),
        pytest.raises(smbox.ConfigError, match="address is one of tcp"),
    ):
        smbox.connect(address, transport="ipc", timeout_s=60.0)

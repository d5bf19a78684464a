"""The contract of a box on every path: mapped, tcp, ipc, and in one process."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest

import smbox
from memnode.node import Node
from smbox.config import ClientConfig
from smbox.memory.node_memory import NodeMemory
from smbox.testing.contract import CHECKS
from smbox.testing.inproc import InprocHub
from smbox.testing.inproc_box import handle, inproc_box

pytestmark = pytest.mark.usefixtures("quick_starts")

MEMORY_NBYTES = 256 << 20
STOP_S = 30.0
TIMEOUT_S = 60.0


@contextlib.contextmanager
def node(*binds):
    """Run a memory node; yield its addresses in the order of ``binds``."""
    options = [word for bind in binds for word in ("--bind", bind)]
    command = [
        sys.executable,
        "-m",
        "memnode",
        "--json",
        "--memory",
        str(MEMORY_NBYTES),
        *options,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["addresses"]
        finally:
            process.terminate()
            process.wait(STOP_S)


def bind_of(transport, folder):
    return f"ipc://{folder}/node" if transport == "ipc" else "tcp://127.0.0.1:0"


@contextlib.contextmanager
def connected(transport, folder):
    """Run a node in a process of its own and connect to it; yield the box and its address."""
    with (
        node(bind_of(transport, folder)) as (address,),
        smbox.connect(address, transport=transport, timeout_s=TIMEOUT_S) as box,
    ):
        yield box, address


@contextlib.contextmanager
def in_this_process():
    """Run a node inside its clients' calls; yield as above."""
    memory = NodeMemory.open(f"contract-{secrets.token_hex(4)}", MEMORY_NBYTES)
    try:
        node = Node(memory, now_s=time.monotonic())
        config = ClientConfig(f"inproc://{memory.name}", timeout_s=TIMEOUT_S)
        with inproc_box(InprocHub(partial(handle, node)).connect, config) as box:
            yield box, config.address
        node.close()
    finally:
        memory.close(keep=False)


@pytest.fixture(scope="module", params=["shm", "tcp", "ipc", "inproc"])
def box(request, tmp_path_factory):
    transport = request.param
    way = (
        in_this_process()
        if transport == "inproc"
        else connected(transport, tmp_path_factory.mktemp("node"))
    )
    with way as (box, address):
        assert box.transport == transport
        assert box.address == address
        yield box


@pytest.mark.shares
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract_holds(box, check):
    check(box)


@pytest.mark.shares
def test_flush_tells_each_change_that_failed_and_that_nobody_waited_for(box):
    """A call that raised the error of the first one hid that of the second one."""
    freed, ones = box.create("freed", shape=(4,)), np.ones(4, np.float32)
    box.free(freed)
    for waited in (0, 1):
        handles = [freed.put_nb(ones), freed.accumulate_nb(ones)]
        with pytest.raises(smbox.RegionFreedError):
            handles[waited].wait()
        with pytest.raises(smbox.RegionFreedError):
            box.flush()
        box.flush()
    for _ in range(3):
        freed.put_nb(ones)
    with pytest.raises(smbox.RegionFreedError) as error:
        box.flush()
    assert error.value.__notes__ == ["2 more changes failed"]


@pytest.mark.shares
def test_flush_tells_what_failed_though_done_was_asked(box):
    """``done`` raises no error, and ``when_all`` that of the first one alone."""
    freed, ones = box.create("freed", shape=(4,)), np.ones(4, np.float32)
    box.free(freed)
    for combine in (
        lambda put: put,
        lambda put: put.then(print),
        lambda put: smbox.when_all([put]),
    ):
        handle = combine(freed.put_nb(ones))
        while not handle.done():
            time.sleep(0.001)
        with pytest.raises(smbox.RegionFreedError):
            box.flush()
        handle = combine(freed.put_nb(ones))
        while not handle.done():
            time.sleep(0.001)
        with pytest.raises(smbox.RegionFreedError):
            handle.wait()
        box.flush()
    with pytest.raises(smbox.RegionFreedError):
        smbox.when_all([freed.put_nb(ones), freed.put_nb(ones)]).wait()
    with pytest.raises(smbox.RegionFreedError):
        box.flush()
    box.flush()


@pytest.mark.shares
def test_flush_says_nothing_of_a_read_that_failed(box):
    freed = box.create("freed", shape=(4,))
    box.free(freed)
    read = freed.get_nb()
    box.flush()
    with pytest.raises(smbox.RegionFreedError):
        read.wait()


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
        pytest.raises(smbox.ConfigError, match="scheme of the address is tcp"),
    ):
        smbox.connect(address, transport="ipc", timeout_s=TIMEOUT_S)

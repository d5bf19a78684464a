from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import zmq

from memnode.config import Bind, NodeConfig
from memnode.flow import UNSENT_NBYTES_MAX
from memnode.server import NodeServer
from smbox import dtypes
from smbox.config import WINDOW_MAX
from smbox.errors import ConnectError
from smbox.memory import layout
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.node_memory import NodeMemory
from smbox.memory.region_header import RegionSpec
from smbox.memory.segment import listing, unlink
from smbox.memory.superblock import NodeOwnedError, remove_all
from smbox.testing.regions import build
from smbox.wire.codec import Request, encode_request
from smbox.wire.header import pack_scale
from smbox.wire.messages import Empty, Free
from smbox.wire.operands import Item
from smbox.wire.ops import Op, Status

pytestmark = pytest.mark.usefixtures("quick_starts")

WAIT_S = 60.0
FREE_PORT = "tcp://127.0.0.1:0"


def floats(*values):
    return np.array(values, np.float32)


def test_a_client_does_all_there_is(start, connect):
    node = start()
    peer = connect(node)
    elements = 3 * STRIPE_NBYTES // 4
    address = peer.create("w", (elements,), init=1.0).body.address
    data = np.arange(STRIPE_NBYTES // 4, dtype=np.float32)
    peer.put(address, data)
    np.testing.assert_array_equal(peer.get(address, STRIPE_NBYTES), data)
    peer.add(address, floats(1, 1), scale_by=2.0)
    raw = pack_scale(0.5, "f")
    old = peer.change(Op.ELASTIC, KernelCode.ELASTIC, address, floats(4, 5), scale=raw)
    assert np.frombuffer(old.payload, np.float32).tolist() == [2, 3]
    fetched = peer.fetch_add(address, floats(0, 0))
    assert np.frombuffer(fetched.payload, np.float32).tolist() == [3, 4]
    one = floats(1)
    item = Item(Op.FETCH, int(KernelCode.SUM), address, 4, one.tobytes(), pack_scale(1.0, "f"))
    batch = peer.ask(Op.BATCH, number=5, numbers=2, nbytes=2, items=(item, item))
    assert np.frombuffer(batch.payload, np.float32).tolist() == [3, 4]
    waiting = peer.begin(Op.WAIT, address=address, version=7, nbytes=60_000)
    connect(node).put(address, floats(0))
    assert (peer.reply().request, peer.ask(Op.PING, body=Empty()).status) == (
        waiting.request,
        Status.OK,
    )
    assert peer.ask(Op.STATS, body=Empty()).body.facts["requests.BATCH"] == 1
    assert peer.ask(Op.FREE, body=Free(address=address)).status is Status.OK
    assert peer.ask(Op.GET, address=address, nbytes=4).status is Status.REGION_FREED


def test_only_addresses_of_this_host_want_a_proof(start, connect):
    node, found = start("--bind", "tcp://0.0.0.0:0", "--insecure"), []
    for address in node.ready["addresses"]:
        node.address = address.replace("0.0.0.0", "127.0.0.1")
        found.append(connect(node).hello(proof=b"").status)
    assert found == [Status.ACCESS_DENIED, Status.OK]


def test_a_clean_stop_leaves_nothing(start, connect):
    node = start("--name", name := f"t{secrets.token_hex(4)}")
    connect(node).create("w")
    assert node.ready["name"] == name
    assert node.ready["pid"] == node.process.pid
    assert len(listing(f"smbox.{name}.")) > 4
    assert node.stop() == 0
    assert listing(f"smbox.{name}.") == []
    assert node.errors == ""


def test_keep_leaves_the_memory_for_the_next(start, connect):
    name = f"t{secrets.token_hex(4)}"
    node = start("--name", name, "--keep")
    peer = connect(node)
    address = peer.create("w").body.address
    peer.put(address, floats(5))
    assert node.stop(signal.SIGINT) == 0
    again = connect(start("--name", name), like=peer)
    assert again.get(address, 4, number=1).tolist() == [5]


def test_a_killed_node_comes_back_with_all_that_was_acknowledged(start, connect):
    name = f"t{secrets.token_hex(4)}"
    node = start("--name", name)
    peer = connect(node)
    address = peer.create("w", (64,)).body.address
    peer.put(address, floats(1, 2, 3))
    answer = peer.fetch_add(address, floats(10))
    assert node.stop(signal.SIGKILL) == -signal.SIGKILL
    node = start("--name", name, bind=node.address)
    again = connect(node, like=peer)
    assert (again.welcome.applied, again.welcome.resumed) == (2, True)
    assert again.welcome.node_uuid == peer.welcome.node_uuid
    assert again.welcome.incarnation == peer.welcome.incarnation + 1
    assert again.get(address, 12, number=2).tolist() == [11, 2, 3]
    repeated = again.fetch_add(address, floats(10), number=2)
    assert bytes(repeated.payload) == bytes(answer.payload)
    assert again.get(address, 4).tolist() == [11]
    assert node.stop() == 0
    assert listing(f"smbox.{name}.") == []


def test_duplicates_after_a_reconnect_change_nothing(start, connect):
    node = start()
    peer = connect(node)
    address = peer.create("w").body.address
    peer.add(address, floats(1), number=1)
    peer.fetch_add(address, floats(1), number=2)
    again = connect(node, like=peer)
    assert again.welcome.applied == 2
    assert again.add(address, floats(1), number=1).status is Status.OK
    reply = again.fetch_add(address, floats(1), number=2)
    assert np.frombuffer(reply.payload, np.float32).tolist() == [1]
    assert again.get(address, 4).tolist() == [2]
    assert peer.ask(Op.PING, body=Empty()).status is Status.NO_SESSION


def test_a_second_owner_is_refused(start, tmp_path):
    node = start()
    name = node.ready["name"]
    config = NodeConfig((Bind.parse(f"ipc://{tmp_path}/s"),), name=name, memory_nbytes=1 << 24)
    with pytest.raises(NodeOwnedError) as caught, NodeServer(config).opened():
        pass
    assert caught.value.facts["pid"] == node.process.pid


def test_an_address_in_use_is_refused_and_leaves_no_memory(start):
    node = start()
    name = f"t{secrets.token_hex(4)}"
    config = NodeConfig((Bind.parse(node.address),), name=name, memory_nbytes=1 << 24)
    with pytest.raises(ConnectError), NodeServer(config).opened():
        pass
    assert listing(f"smbox.{name}.") == []


def test_an_address_in_use_leaves_memory_without_a_superblock_as_it_was(start):
    node = start()
    name = f"t{secrets.token_hex(4)}"
    memory = NodeMemory.open(name, 1 << 24)
    build(
        name, RegionSpec("r", dtypes.by_name("int8"), (1,)), memory.superblock.take_address(1)
    )
    memory.close(keep=True)
    unlink(layout.name_of(name, "node"))
    before = listing(f"smbox.{name}.")
    config = NodeConfig((Bind.parse(node.address),), name=name, memory_nbytes=1 << 24)
    with pytest.raises(ConnectError), NodeServer(config).opened():
        pass
    assert listing(f"smbox.{name}.") == before
    remove_all(name)


def test_garbage_ends_nothing(start, connect):
    node = start()
    peer = connect(node)
    host, port = node.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" + secrets.token_bytes(4096))
    good = encode_request(Request(Op.STATS, request=7, body=Empty()))
    for frames in (
        [b""],
        [b"x"] * 10,
        [secrets.token_bytes(64)],
        [good[0][:-1], good[1]],
        [good[0], b"\xc1"],
        [good[0], bytes(1 << 20)],
        [good[0][:5] + b"\xee" + good[0][6:], b""],
        [b"SMBX\x07" + bytes(59)],
    ):
        peer.socket.send_multipart(frames)
    peer.socket.send_multipart(
        encode_request(Request(Op.PING, request=99, body=Empty(), generation=1))
    )
    replies = []
    while not replies or replies[-1].request != 99:
        replies.append(peer.reply())
    assert {reply.status for reply in replies[:-1]} == {Status.BAD_MESSAGE, Status.VERSION}
    assert replies[-1].status is Status.OK


def test_a_client_that_does_not_read_costs_a_bounded_memory(start, connect, until):
    node = start()
    peer, other = connect(node), connect(node)
    address = peer.create("w", (1 << 18,)).body.address
    other.get(address, 1 << 20)
    before = psutil.Process(node.process.pid).memory_info().rss
    for _ in range(300):
        peer.begin(Op.GET, address=address, nbytes=1 << 20)
    until(lambda: other.ask(Op.STATS, body=Empty()).body.facts["requests.GET"] == 301)
    growth = psutil.Process(node.process.pid).memory_info().rss - before
    assert growth < UNSENT_NBYTES_MAX + (8 << 20)
    until(lambda: other.ask(Op.STATS, body=Empty()).body.facts["parked_now"] == 1)


def test_a_client_that_reads_late_gets_all_of_its_window(start, connect):
    peer = connect(start())
    address = peer.create("w", (1 << 18,), init=3.0).body.address
    asked = [
        peer.begin(Op.GET, address=address, nbytes=1 << 20).request for _ in range(WINDOW_MAX)
    ]
    time.sleep(0.3)  # the kernel's buffers are full, the channel is parked
    replies = [peer.reply() for _ in asked]
    assert [reply.request for reply in replies] == asked
    assert {np.frombuffer(reply.payload, np.float32).sum() for reply in replies} == {3 << 18}


def test_it_listens_on_several_addresses(start, connect, tmp_path):
    node = start("--bind", f"ipc://{tmp_path}/node")
    assert node.ready["addresses"] == [node.address, f"ipc://{tmp_path}/node"]
    address = connect(node).create("w").body.address
    node.address = f"ipc://{tmp_path}/node"
    assert connect(node).get(address, 4).tolist() == [0]


def test_it_ends_with_its_parent(start):
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    node = start("--parent-pid", str(parent.pid))
    parent.communicate()
    assert node.process.wait(WAIT_S) == 0
    assert listing(f"smbox.{node.ready['name']}.") == []
    node.process.communicate()


def test_an_open_address_is_warned_of_and_wants_no_proof(start, make_peer):
    node = start("--insecure", bind="tcp://0.0.0.0:0")
    node.address = node.address.replace("0.0.0.0", "127.0.0.1")
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.setsockopt(zmq.LINGER, 0)
        client.setsockopt(zmq.RCVTIMEO, int(WAIT_S * 1000))
        client.connect(node.address)
        peer = make_peer(client.send_multipart, client.recv_multipart, b"", None)
        assert peer.hello(proof=b"").status is Status.OK
    node.stop()
    assert "INSECURE" in node.errors

"""Tests of several memory nodes in different processes as one address space."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import secrets
import subprocess
import textwrap

import numpy as np
import pytest

import smbox
from smbox.box import Box
from smbox.cli import layouts
from smbox.errors import ConfigError, ConnectError, PeerLostError, RegionNotFoundError
from smbox.keys import Authorised, Role, add_client, make_node_key
from smbox.many.box import ManyBox

WAIT_S = 60.0
X = np.arange(30, dtype=np.float32)


def stop(process):
    process.terminate()
    process.communicate(timeout=WAIT_S)


@contextlib.contextmanager
def memnode(python, *options):
    """Run ``memnode``; yield its ready line."""
    name = f"many-{secrets.token_hex(4)}"
    command = [python, "-m", "memnode", "--json", "--name", name, *options]
    command += ["--memory", "64MiB"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield json.loads(process.stdout.readline())
    finally:
        stop(process)


@pytest.fixture(scope="module")
def addresses(preloaded):
    with memnode(preloaded, "--nodes", "3", "--bind", "tcp://127.0.0.1:0") as ready:
        yield ready["addresses"]


@pytest.fixture(params=["shm", "tcp"])
def box(request, addresses):
    made = smbox.connect(",".join(addresses), transport=request.param, timeout_s=WAIT_S)
    with made as box:
        yield box
        for info in box.regions():
            with contextlib.suppress(smbox.RegionFreedError):
                box.free(info)


pytestmark = pytest.mark.shares


def test_one_address_is_a_plain_box(addresses):
    with smbox.connect(addresses[0], timeout_s=WAIT_S) as box:
        assert type(box) is Box


def test_neither_order_nor_spelling_of_addresses_matters(box, addresses, monkeypatch):
    box.create("w", init=X, layout="striped")
    box.create("v", init=X)
    spelled = [each.replace("127.0.0.1", "localhost") for each in reversed(addresses)]
    monkeypatch.setenv("SMBOX_ADDRESS", " , ".join(spelled))
    with smbox.connect(timeout_s=WAIT_S) as other:
        assert type(other) is ManyBox
        assert other.attach("w").get().tolist() == X.tolist()
        assert other.attach("v").address == box.attach("v").address


def test_mapped_and_remote_clients_share_a_region(box, addresses):
    region = box.create("w", init=X, layout="striped")
    assert region.is_local == (box.transport == "shm")
    with smbox.connect(",".join(addresses), transport="tcp", timeout_s=WAIT_S) as other:
        other.attach("w").accumulate(X)
    assert region.get().tolist() == (2 * X).tolist()
    if region.is_local:
        part = region.parts[1]
        view = region[part.first_row : part.limit_row].local()
        assert view.tolist() == (2 * X[part.first_row : part.limit_row]).tolist()


def test_all_nodes_are_needed(addresses):
    nobody = "tcp://127.0.0.1:9"
    with pytest.raises(ConnectError) as caught:
        smbox.connect(f"{addresses[0]},{nobody}", timeout_s=0.5)
    assert caught.value.facts["address"] == nobody


def test_equal_ids_are_refused_and_both_addresses_named(addresses):
    again = addresses[1].replace("127.0.0.1", "localhost")
    with pytest.raises(ConfigError, match="two addresses lead to nodes of one id") as caught:
        smbox.connect(f"{addresses[1]},{addresses[0]},{again}", timeout_s=WAIT_S)
    assert caught.value.facts["node"] == 1
    assert caught.value.facts["addresses"] == [addresses[1], again]


def test_boxes_and_regions_travel_to_other_processes(box):
    region = box.create("w", init=X, layout="striped")
    optimizer = box.optimizer(region, "momentum", lr=0.5)
    with pickle.loads(pickle.dumps(box)) as copy:
        assert copy.address == box.address
        travelled = pickle.loads(pickle.dumps(region[5:25]))
        assert [part[:4] for part in travelled.parts] == [
            part[:4] for part in region[5:25].parts
        ]
        travelled.accumulate(X[5:25])
        assert region[5:25].get().tolist() == (2 * X[5:25]).tolist()
    assert optimizer.states


def add(region, rows):
    region.rows(rows).accumulate(np.ones(len(rows), np.float32))


def test_forked_children_use_what_they_inherit(box):
    region = box.create("w", shape=(30,), layout="striped")
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=add, args=(region, range(30))) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(WAIT_S)
    assert [child.exitcode for child in children] == [0, 0]
    assert region.get().tolist() == [2.0] * 30


@contextlib.contextmanager
def two_nodes(python, folder, ids):
    """Run nodes of these ids at two fixed addresses; yield the addresses."""
    with contextlib.ExitStack() as stack:
        binds = [f"ipc://{folder}/{number}" for number in (0, 1)]
        for bind, node_id in zip(binds, ids, strict=True):
            stack.enter_context(memnode(python, "--bind", bind, "--node-id", str(node_id)))
        yield ",".join(binds)


def value_of(box):
    try:
        return box.counter("steps").value
    except PeerLostError as error:
        node, found = error.facts["node"], error.facts["found"]
        return {node, found}, error.facts["outcome"]


def value_in_child(answers, box):
    answers.put(value_of(box))


def test_copies_and_children_do_not_use_nodes_of_other_ids(preloaded, tmp_path):
    """A name's node had exchanged addresses with another: they used a counter there."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def seen_by_others():
        child = context.Process(target=value_in_child, args=(answers, box))
        child.start()
        child.join(WAIT_S)
        copy = pickle.loads(travelled)
        found = answers.get(), value_of(copy)
        copy.close()
        return found

    with two_nodes(preloaded, tmp_path, (3, 8)) as address:
        box = smbox.connect(address, timeout_s=WAIT_S)
        travelled = pickle.dumps(box)
        box.counter("steps").add(5)
        assert seen_by_others() == (5, 5)
    with two_nodes(preloaded, tmp_path, (8, 3)):
        assert seen_by_others() == (({3, 8}, "none"), ({3, 8}, "none"))
        with smbox.connect(address, timeout_s=WAIT_S) as again:
            assert again.counter("steps").value == 0
    box.close()


DIES_BEFORE_THE_HEAD = """
import os, sys
import numpy as np
import smbox
from smbox.many import creating
box = smbox.connect(sys.argv[1], timeout_s=60.0)
creating.encode = lambda head: os._exit(9)
box.create("w", init=np.arange(30, dtype=np.float32), layout="striped")
"""


def test_a_creator_that_dies_leaves_parts_that_can_be_removed(box, preloaded):
    script = [preloaded, "-c", textwrap.dedent(DIES_BEFORE_THE_HEAD), box.address]
    died = subprocess.run(script, timeout=WAIT_S, check=False, env=os.environ)
    assert died.returncode == 9
    with pytest.raises(RegionNotFoundError):
        box.attach("w", timeout_s=0.0)
    left = layouts.find_orphans(box)
    assert [info.address.node for info in left] == [0, 1, 2]
    region = box.create("w", init=X, layout="striped")
    assert layouts.find_orphans(box) == left
    for info in left:
        box.free(info)
    assert layouts.find_orphans(box) == []
    assert region.get().tolist() == X.tolist()


def test_kept_memory_of_another_node_id_is_refused(preloaded):
    name = f"kept-{secrets.token_hex(4)}"
    command = [preloaded, "-m", "memnode", "--json", "--name", name]
    command += ["--memory", "16MiB", "--bind", "tcp://127.0.0.1:0"]
    first = [*command, "--node-id", "7", "--keep"]
    with subprocess.Popen(first, stdout=subprocess.PIPE, text=True) as process:
        address = json.loads(process.stdout.readline())["address"]
        with smbox.connect(address, timeout_s=WAIT_S) as box:
            region = box.create("w", init=X)
            assert (region.address.node, box.node.node_id) == (7, 7)
        stop(process)
    refused = subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert refused.returncode == 3
    assert "found=7, wanted=0" in refused.stderr
    again = [*command, "--node-id", "7"]
    with subprocess.Popen(again, stdout=subprocess.PIPE, text=True) as process:
        address = json.loads(process.stdout.readline())["address"]
        with smbox.connect(address, timeout_s=WAIT_S) as box:
            assert box.attach("w").get().tolist() == X.tolist()
        stop(process)


def test_one_key_leads_to_all_nodes_of_one_folder(tmp_path, preloaded):
    folder = tmp_path / "keys"
    make_node_key(folder)
    key = add_client(folder, Authorised("worker", Role.ADMIN, ""))
    options = ("--nodes", "2", "--bind", "tcp://127.0.0.1:0", "--keys", str(folder))
    with (
        memnode(preloaded, *options) as ready,
        smbox.connect(ready["address"], key=key, timeout_s=WAIT_S) as box,
    ):
        assert box.create("w", init=X, layout="striped").get().tolist() == X.tolist()

from __future__ import annotations

import gc
import threading
import time
import weakref

import numpy as np
import pytest
from msgspec.structs import replace

import memnode.node
from smbox.deadline import ANSWER_MIN_S, deadline_of
from smbox.dtypes import by_name
from smbox.errors import (
    AddressRangeError,
    ConfigError,
    LayoutMismatchError,
    LimitError,
    RegionExistsError,
    RegionFreedError,
    RegionNotFoundError,
    RequestTimeoutError,
)
from smbox.memory import mapped
from smbox.memory.layout import RegionKind
from smbox.paths.control import new_token
from smbox.paths.requests import CreateRequest
from smbox.testing.faults import FaultScript
from smbox.wire import messages
from smbox.wire.ops import Op

WAIT_S = 30.0


def test_the_node_is_known(node, client):
    assert client.control.node.name == node.name
    assert client.control.node.uuid == node.memory.superblock.uuid
    assert client.control.address == "inproc://node"
    assert client.control.stats(WAIT_S)["name"] == node.name


def test_a_created_region_is_found_by_name_and_address(client):
    info = client.create(10, name="w")
    assert (info.name, info.shape, info.nbytes) == ("w", (10,), 40)
    assert client.control.find("w", RegionKind.ARRAY, WAIT_S) == info
    over_s = time.monotonic()
    assert client.control.attach("w", RegionKind.ARRAY, over_s) == info  # all the same
    assert client.control.locate(info.address + 8, WAIT_S) == info
    assert client.control.regions(WAIT_S) == [info]


def test_the_timeout_of_a_creation_restarts_while_the_node_makes_the_region(
    client, monkeypatch
):
    monkeypatch.setattr(mapped, "SLICE_NBYTES", 4096)
    monkeypatch.setattr(memnode.node, "PARKED_AFTER_S", 0.0)
    monkeypatch.setattr(memnode.node, "PARKED_INTERVAL_S", 0.0)
    client.create(1)
    spec = CreateRequest("large", by_name("uint8"), (400_000,))
    with pytest.raises(RequestTimeoutError):
        client.control.create(spec, 0.0, new_token())
    other = replace(spec, name="other")
    assert client.control.create(other, 0.0, new_token(), restarts=True).name == "other"


@pytest.mark.parametrize("init", [None, np.ones(3)])
def test_only_a_timeout_that_was_not_given_restarts(solo, box, monkeypatch, init):
    plain, asked = solo.control.create, []

    def create(*args, restarts):
        asked.append(restarts)
        return plain(*args)

    monkeypatch.setattr(solo.control, "create", create)
    for name, timeout_s in (("a", None), ("b", 30.0)):
        box.create(name, 3, init=init, timeout_s=timeout_s)
    assert asked == [True, False]


def test_a_name_is_taken_once(client):
    info = client.create(10, name="w")
    with pytest.raises(RegionExistsError):
        client.create(10, name="w")
    assert client.create(10, name="w", exist_ok=True) == info
    with pytest.raises(LayoutMismatchError):
        client.create(11, name="w", exist_ok=True)


@pytest.mark.parametrize("side", ["request", "reply"])
@pytest.mark.parametrize("op", [Op.CREATE, Op.FREE, Op.PUBLISH], ids=lambda op: op.name)
def test_a_repeated_request_finds_itself_done(node, clients, op, side):
    script = FaultScript().cut(op, side=side)
    client = clients(script.around(node.connect))
    info = client.create(10, name="w", publish=False)
    client.control.publish(info, WAIT_S)
    client.control.free(info.address, WAIT_S)
    assert client.control.regions(WAIT_S) == []
    assert script.is_over()


def test_an_unpublished_region_is_nobodys_until_it_is_published(client):
    ours = client.create(10, name="w", publish=False)
    with pytest.raises(RegionNotFoundError):
        client.control.find("w", RegionKind.ARRAY, WAIT_S)
    client.control.publish(ours, WAIT_S)
    assert client.control.find("w", RegionKind.ARRAY, WAIT_S) == ours


def test_the_second_to_publish_is_refused(client):
    first, second = (client.create(10, name="w", publish=False) for _ in range(2))
    client.control.publish(first, WAIT_S)
    with pytest.raises(RegionExistsError):
        client.control.publish(second, WAIT_S)
    assert client.control.regions(WAIT_S) == [first]


def test_a_silent_node_is_waited_for_no_longer_than_the_region(node, clients):
    control = clients().control
    control.ping(WAIT_S)
    node.is_down = True
    with pytest.raises(RequestTimeoutError) as caught:
        control.attach("w", RegionKind.ARRAY, deadline_of(0.01))
    assert caught.value.facts["timeout_s"] <= ANSWER_MIN_S
    node.is_down = False


def test_attaching_waits_for_the_region(clients):
    waiting, creating = clients(), clients()
    found = []
    thread = threading.Thread(
        target=lambda: found.append(
            waiting.control.attach("w", RegionKind.ARRAY, deadline_of(WAIT_S))
        )
    )
    thread.start()
    info = creating.create(10, name="w")
    thread.join(WAIT_S)
    assert found == [info]


def test_free_is_told_once(client):
    info = client.create(10, name="w")
    client.control.free(info.address, WAIT_S)
    with pytest.raises(RegionFreedError):
        client.control.free(info.address, WAIT_S)
    with pytest.raises(RegionNotFoundError):
        client.control.find("w", RegionKind.ARRAY, WAIT_S)
    with pytest.raises(AddressRangeError):
        client.control.locate(1, WAIT_S)


def test_long_lists_come_in_pages(client, monkeypatch):
    infos = [client.create(1, name=f"w{n}") for n in range(5)]
    whole = messages.ListRegions
    monkeypatch.setattr(messages, "ListRegions", lambda after: whole(after=after, limit=2))
    assert client.control.regions(WAIT_S) == infos


def test_who_was_refused_and_did_not_hear_of_it_is_told_when_asking_again(node, clients):
    script = FaultScript().cut(Op.PUBLISH, side="reply")
    client, other = clients(script.around(node.connect)), clients()
    ours = client.create(10, name="w", publish=False)
    theirs = other.create(10, name="w")
    with pytest.raises(RegionExistsError):
        client.control.publish(ours, WAIT_S)
    assert script.is_over()
    assert client.control.regions(WAIT_S) == [theirs]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("x" * 201, LimitError),
        ("\u00e9" * 101, LimitError),
        ("", LimitError),
        ("a\ud800", ConfigError),
        ("a\0", ConfigError),
        (b"bytes", TypeError),
    ],
)
def test_names_that_no_region_can_have(client, name, error):
    with pytest.raises(error):
        client.create(10, name=name)
    not_found = TypeError if error is TypeError else RegionNotFoundError
    with pytest.raises(not_found):
        client.control.find(name, RegionKind.ARRAY, WAIT_S)
    deadline_s = time.monotonic() + WAIT_S
    with pytest.raises(not_found):
        client.control.attach(name, RegionKind.ARRAY, deadline_s)
    assert time.monotonic() < deadline_s


@pytest.mark.parametrize("shape", [(1,) * 9, (1 << 70,), (1 << 40, 1 << 40), (0, 1 << 62)])
def test_shapes_that_no_region_can_have(client, shape):
    info = client.create(10, name="w")
    spec = CreateRequest("v", info.dtype, shape)
    with pytest.raises(LimitError):
        client.control.create(spec, WAIT_S, new_token())


def test_a_create_keeps_no_reference_to_the_callers_array(boxes):
    """It was part of a cycle: until it was collected, its memory was not free."""
    box, x = boxes(), np.ones(8, np.float32)
    array = weakref.ref(x)
    gc.disable()
    try:
        box.create("some", init=x, exist_ok=True)
        del x
        assert array() is None
    finally:
        gc.enable()

from __future__ import annotations

import math
import secrets

import numpy as np
import pytest

from memnode import creation
from smbox import dtypes
from smbox.errors import ConfigError, LimitError
from smbox.memory.layout import STRIPE_NBYTES, RegionKind, RegionState
from smbox.memory.mapped import SLICE_NBYTES, Building
from smbox.memory.segment import listing
from smbox.wire.messages import Attach, Create, Empty, Free, Publish
from smbox.wire.ops import Op, Status

FLOAT32 = dtypes.by_name("float32")
TOKEN = bytes(range(16))
LARGE = (3 * SLICE_NBYTES // 4,)  # elements: a few slices


def large(name="w", token=None, **fields):
    token = secrets.token_bytes(16) if token is None else token
    return Create(name=name, dtype="float32", shape=LARGE, token=token, **fields)


def building(bench):
    return listing(f"smbox.{bench.name}.building.")


def is_live(bench, address):
    return bench.memory.regions[address].state == RegionState.LIVE


def test_a_created_region_holds_its_init(bench):
    peer = bench.peer()
    body = peer.create("w", (3,), init=2.5).body
    assert (body.name, body.shape) == ("w", (3,))
    assert is_live(bench, body.address)
    assert peer.get(body.address, 12).tolist() == [2.5, 2.5, 2.5]


def test_create_or_attach(bench):
    one, two = bench.peer(), bench.peer()
    made = one.create("w").body
    assert two.create("w").status is Status.REGION_EXISTS
    found = two.create("w", exist_ok=True).body
    assert found == made
    assert two.create("w", (9,), exist_ok=True).status is Status.LAYOUT_MISMATCH


def test_a_repeated_create_is_answered_as_the_first(bench):
    peer = bench.peer()
    token = secrets.token_bytes(16)
    first = peer.create("w", token=token).body
    assert peer.create("w", token=token).body == first


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"dtype": "complex64"}, Status.ERROR),
        ({"name": "a\nb"}, Status.ERROR),
        ({"dtype": "int8", "init": 1000}, Status.ERROR),
        ({"shape": (1 << 40,)}, Status.LIMIT),
    ],
)
def test_creates_that_are_refused_leave_nothing(bench, fields, status):
    reply = bench.peer().create(**({"name": "w"} | fields))
    assert reply.status is status
    assert bench.memory.regions == {}
    assert building(bench) == []


def test_the_memory_limit_holds(bench):
    peer = bench.peer()
    assert peer.create("a", (40 << 20,)).error is None
    refused = peer.create("b", (40 << 20,))
    assert refused.status is Status.OUT_OF_MEMORY
    assert peer.create("c", (1 << 20,)).error is None


def test_others_are_served_while_a_large_region_is_made(bench):
    slow, other = bench.peer(), bench.peer()
    slow.begin(Op.CREATE, body=large("w", publish=False))
    assert bench.waiting(slow)
    assert bench.node.poll_s == 0.0
    small = other.create("w", (4,)).body  # which is not taken yet
    assert other.get(small.address, 16).tolist() == [0, 0, 0, 0]
    other.ask(Op.BYE, body=Empty())
    assert len(building(bench)) == 1
    assert slow.reply().body.address == bench.memory.superblock.first_address  # not begun anew


def test_two_creates_of_a_name_make_one_region(bench):
    one, two = bench.peer(), bench.peer()
    one.begin(Op.CREATE, body=large(init=1.0))
    two.begin(Op.CREATE, body=large(init=2.0, exist_ok=True))
    first, second = one.reply().body, two.reply().body
    assert first.address == second.address
    assert np.all(bench.memory.regions[first.address].array() == 1.0)


def test_a_creator_that_leaves_blocks_nobody(bench):
    one, two = bench.peer(), bench.peer()
    one.begin(Op.CREATE, body=large())
    two.begin(Op.CREATE, body=large())
    one.ask(Op.BYE, body=Empty())
    assert two.reply().error is None
    assert building(bench) == []
    assert len(bench.memory.regions) == 1


@pytest.mark.parametrize("exist_ok", [False, True])
def test_a_name_that_was_published_while_a_region_was_made_is_taken(bench, exist_ok):
    slow, quick = bench.peer(), bench.peer()
    filled = quick.create("w", LARGE, publish=False).body.address
    slow.begin(Op.CREATE, body=large(exist_ok=exist_ok))
    assert bench.waiting(slow)
    assert quick.ask(Op.PUBLISH, body=Publish(address=filled)).error is None
    reply = slow.reply()
    if exist_ok:
        assert reply.body.address == filled
    else:
        assert reply.status is Status.REGION_EXISTS
    assert list(bench.memory.regions) == [filled]
    assert building(bench) == []
    assert quick.ask(Op.ATTACH, body=Attach(name="w")).body.address == filled


@pytest.mark.parametrize("publish", [True, False])
def test_a_creator_that_asks_again_finds_what_it_began(bench, publish):
    peer = bench.peer()
    create = large(init=3.0, publish=publish)
    for _ in range(2):  # each time after one slice
        peer.begin(Op.CREATE, body=create)
        assert peer.hello().error is None
    body = peer.ask(Op.CREATE, body=create).body
    assert is_live(bench, body.address) is publish
    assert building(bench) == []
    # never begun anew
    assert (
        list(bench.memory.regions) == [body.address] == [bench.memory.superblock.first_address]
    )
    assert np.all(bench.memory.regions[body.address].array() == 3.0)


def test_a_creator_that_lost_its_connection_blocks_nobody(bench):
    first, second = bench.peer(), bench.peer()
    first.begin(Op.CREATE, body=large())
    assert first.hello().error is None
    second.begin(Op.CREATE, body=large(exist_ok=True))
    assert bench.waiting(second)
    made = second.reply().body.address
    assert list(bench.memory.regions) == [made] == [bench.memory.superblock.first_address]


@pytest.mark.parametrize("publish", [True, False])
def test_a_region_that_nobody_asks_for_again_is_made_all_the_same(bench, publish):
    peer = bench.peer()
    create = large(publish=publish)
    peer.begin(Op.CREATE, body=create)
    assert peer.hello().error is None
    while bench.node.poll_s == 0.0:
        bench.node.tick(now_s=0.0)
    made = list(bench.memory.regions)
    assert peer.ask(Op.CREATE, body=create).body.address == made[0]
    peer.begin(Op.CREATE, body=large("other"))
    assert peer.hello().error is None
    peer.ask(Op.BYE, body=Empty())
    assert building(bench) == []
    assert list(bench.memory.regions) == (made if publish else [])


def test_a_build_that_fails_after_its_creator_left_is_abandoned(bench, monkeypatch):
    peer = bench.peer()
    peer.begin(Op.CREATE, body=large())
    assert peer.hello().error is None
    monkeypatch.setattr(Building, "step", lambda _: 1 / 0)
    bench.tick()
    assert building(bench) == []
    assert bench.node.is_idle


def test_scratch_goes_when_its_channel_resumes_and_what_is_to_be_published_stays(bench):
    peer, other = bench.peer(), bench.peer()
    filled = peer.create("w", publish=False).body.address
    mine = peer.ask(Op.SNAPSHOT, address=filled, nbytes=4).version
    theirs = other.ask(Op.SNAPSHOT, address=filled, nbytes=4).version
    assert sorted(bench.memory.regions) == [filled, mine, theirs]
    assert peer.hello().error is None
    assert sorted(bench.memory.regions) == [filled, theirs]
    assert peer.ask(Op.FREE, body=Free(address=mine)).status is Status.REGION_FREED
    assert peer.ask(Op.PUBLISH, body=Publish(address=filled)).error is None
    peer.ask(Op.BYE, body=Empty())
    assert sorted(bench.memory.regions) == [filled, theirs]


def test_a_creator_discards_by_its_token_what_it_began(bench):
    """Its CREATE may be done although the client never got the reply."""
    peer, other = bench.peer(), bench.peer()
    create = large(publish=False)
    discard = Free(token=create.token)
    peer.begin(Op.CREATE, body=create)
    assert peer.hello().error is None
    for each, body in ((other, discard), (peer, Free(token=TOKEN))):
        assert each.ask(Op.FREE, body=body).error is None
        assert len(building(bench)) == 1
    assert peer.ask(Op.FREE, body=discard).error is None
    assert building(bench) == []
    assert peer.ask(Op.CREATE, body=create).error is None
    assert other.ask(Op.FREE, body=discard).error is None
    assert len(bench.memory.regions) == 1  # it is not the other client's
    for _ in range(2):
        assert peer.ask(Op.FREE, body=discard).error is None
        assert bench.memory.regions == {}
    published = large()
    address = peer.ask(Op.CREATE, body=published).body.address
    assert peer.ask(Op.FREE, body=Free(token=published.token)).error is None
    assert list(bench.memory.regions) == [address]
    discard = Free(token=published.token, published=True)
    assert other.ask(Op.FREE, body=discard).error is None  # only its creator knows the token
    assert bench.memory.regions == {}
    assert peer.ask(Op.FREE, body=Free()).error is not None


def test_publishing_races(bench):
    one, two = bench.peer(), bench.peer()
    mine = one.create("w", publish=False).body
    theirs = two.create("w", publish=False).body
    assert not is_live(bench, mine.address)
    assert mine.address != theirs.address
    one.put(mine.address, np.ones(8, np.float32))
    assert two.create("w").error is None  # a name is taken by what is live only
    assert one.create("w", publish=False).status is Status.REGION_EXISTS


def created(**fields):
    plain = {"name": "w", "dtype": "float32", "shape": (4, 2), "token": TOKEN}
    return Create(**(plain | fields))


def test_a_create_becomes_a_spec():
    spec = creation.spec_of(created())
    assert (spec.name, spec.dtype, spec.shape) == ("w", FLOAT32, (4, 2))
    assert spec.token == TOKEN


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"dtype": "complex64"}, ConfigError),
        ({"dtype": "int8", "init": 1000}, ConfigError),
        ({"kind": 9}, ConfigError),
        ({"shape": (1 << 40, 1 << 40)}, LimitError),
        ({"shape": (0, 1 << 62)}, LimitError),  # no array has such a length
        ({"kind": RegionKind.COUNTER}, ConfigError),
        ({"kind": RegionKind.COUNTER, "dtype": "int64", "shape": (2,)}, ConfigError),
        ({"kind": RegionKind.BARRIER, "dtype": "int64", "shape": (9,)}, ConfigError),
        ({"kind": RegionKind.BARRIER, "dtype": "uint64", "shape": (3,)}, ConfigError),
        (
            {"kind": RegionKind.BARRIER, "dtype": "uint64", "shape": (STRIPE_NBYTES // 8 + 1,)},
            ConfigError,
        ),
    ],
)
def test_creates_that_make_no_sense(fields, error):
    with pytest.raises(error):
        creation.spec_of(created(**fields))


def test_counters_and_barriers():
    assert creation.spec_of(created(kind=2, dtype="int64", shape=())).kind == RegionKind.COUNTER
    for words in (7, STRIPE_NBYTES // 8):
        barrier = creation.spec_of(created(kind=3, dtype="uint64", shape=(words,)))
        assert barrier.kind == RegionKind.BARRIER


@pytest.mark.parametrize(
    ("dtype", "init"),
    [("float32", 0.1), ("float32", math.nan), ("int8", -128), ("uint8", 255.0), ("bool", True)],
)
def test_inits(dtype, init):
    creation.check_init(dtypes.by_name(dtype), init)


@pytest.mark.parametrize(
    ("dtype", "init"),
    [("int8", 128), ("uint8", -1), ("int32", 0.5), ("int64", math.inf), ("bool", 2)],
)
def test_inits_that_do_not_fit(dtype, init):
    with pytest.raises(ConfigError):
        creation.check_init(dtypes.by_name(dtype), init)


@pytest.mark.parametrize("consistency", [0, 2, 4])
def test_a_consistency_that_is_unknown_is_told(consistency):
    with pytest.raises(ConfigError, match="consistency is one of stripe, none"):
        creation.spec_of(created(consistency=consistency))

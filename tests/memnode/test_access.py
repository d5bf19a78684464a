"""Requests that a client with a key must not get through, however they are worded."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import closing

import numpy as np
import pytest

from memnode import access as node_access
from memnode.access import Access
from memnode.node import HOUSEKEEPING_S
from smbox.keys import Authorised, Role, add_client, make_node_key, read_client_key
from smbox.memory.kernels import OptimizerCode
from smbox.memory.locks import LockFile
from smbox.memory.mapped import SLICE_NBYTES
from smbox.wire import operands
from smbox.wire.messages import Attach, Create, Empty, Free, ListRegions, Publish
from smbox.wire.ops import Op, Status


def snapshot_of(bench, reader, name="run/a"):
    """Let a reader make a copy of a new region; return its address."""
    address = bench.peer().create(name).body.address
    taken = reader.ask(Op.SNAPSHOT, address=address, nbytes=32)
    assert taken.error is None
    return taken.version


def test_every_role_may_take_a_snapshot_and_free_its_copy(guarded_bench):
    bench, enter = guarded_bench
    reader = enter(Role.READ, "run/")
    copy = snapshot_of(bench, reader)
    assert reader.get(copy, 32).size
    assert reader.ask(Op.FREE, body=Free(address=copy)).status is Status.OK


@pytest.mark.parametrize("exist_ok", [False, True])
def test_a_create_tells_nothing_of_names_of_others(guarded_bench, exist_ok):
    bench, enter = guarded_bench
    bench.peer().create("others")
    asked = enter(Role.ADMIN, "run/").create("others", publish=False, exist_ok=exist_ok)
    assert asked.status is Status.ACCESS_DENIED
    assert "address" not in asked.error.facts


def test_a_step_needs_the_names_of_parameters_and_states(guarded_bench):
    bench, enter = guarded_bench
    own, other = (bench.peer().create(name).body.address for name in ("run/p", "other"))
    operand = operands.pack_update([other], [0.1, 0.9], np.ones(8, np.float32))
    fields = {"kernel": OptimizerCode.MOMENTUM, "nbytes": 32, "number": 1, "numbers": 1}
    asked = enter(Role.WRITE, "run/").ask(Op.UPDATE, address=own, payload=operand, **fields)
    assert asked.status is Status.ACCESS_DENIED
    assert not bench.memory.regions[other].data.any()


def test_a_region_is_published_under_a_name_of_the_present_prefix(guarded_bench, tmp_path):
    bench, enter = guarded_bench
    admin = enter(Role.ADMIN)
    made = admin.create("other", publish=False)
    (file,) = (tmp_path / "clients").glob("*.toml")
    file.write_text(file.read_text().replace('prefix = ""', 'prefix = "run/"'))
    bench.tick(after_s=2 * HOUSEKEEPING_S)
    asked = admin.ask(Op.PUBLISH, body=Publish(address=made.body.address))
    assert asked.status is Status.ACCESS_DENIED


@pytest.mark.parametrize("role", [Role.READ, Role.WRITE])
def test_only_an_admin_publishes(guarded_bench, role):
    bench, enter = guarded_bench
    admin = enter(Role.ADMIN)
    publish = Publish(address=admin.create("w", publish=False).body.address)
    assert enter(role).ask(Op.PUBLISH, body=publish).status is Status.ACCESS_DENIED
    assert bench.peer().ask(Op.ATTACH, body=Attach(name="w")).status is Status.REGION_NOT_FOUND
    assert admin.ask(Op.PUBLISH, body=publish).status is Status.OK


def test_only_regions_of_the_prefix_are_found_by_address_or_name(guarded_bench):
    bench, enter = guarded_bench
    own, other = (bench.peer().create(name).body.address for name in ("run/a", "other"))
    for attach in (
        (Attach(address=own), Attach(address=other)),
        (Attach("run/a"), Attach("other")),
    ):
        told = [enter(Role.READ, "run/").ask(Op.ATTACH, body=body).status for body in attach]
        assert told == [Status.OK, Status.ACCESS_DENIED]


def test_an_admin_frees_only_names_that_begin_with_its_prefix(guarded_bench):
    bench, enter = guarded_bench
    admin = enter(Role.ADMIN, "run/")
    made = {name: bench.peer().create(name).body.address for name in ("x", "x/run/y", "run/y")}
    told = [admin.ask(Op.FREE, body=Free(address=at)).status for at in made.values()]
    assert told == [Status.ACCESS_DENIED, Status.ACCESS_DENIED, Status.OK]
    assert set(bench.memory.regions) == {made["x"], made["x/run/y"]}


@pytest.mark.parametrize("published", [False, True])
def test_a_reader_discards_only_what_was_not_published(guarded_bench, published):
    _, enter = guarded_bench
    free = Free(token=secrets.token_bytes(16), published=published)
    asked = enter(Role.READ).ask(Op.FREE, body=free)
    assert (asked.status is Status.ACCESS_DENIED) == published


def test_another_clients_snapshot_is_closed(guarded_bench):
    bench, enter = guarded_bench
    address = snapshot_of(bench, enter(Role.READ))
    other = enter(Role.READ, "run/")
    for asked in (
        other.ask(Op.GET, address=address, nbytes=32),
        other.ask(Op.ATTACH, body=Attach(address=address)),
        other.ask(Op.FREE, body=Free(address=address)),
    ):
        assert asked.status is Status.ACCESS_DENIED


def test_a_page_of_regions_has_the_names_that_its_client_may_see_and_no_others(guarded_bench):
    bench, enter = guarded_bench
    for name in ("others", "run/a", "more/run/c", "run/b", "last"):
        bench.peer().create(name)
    reader, pages, after = enter(Role.READ, "run/"), [], -1
    while True:
        page = reader.ask(Op.LIST, body=ListRegions(after=after, limit=1)).body
        pages.append(([region.name for region in page.regions], page.more))
        if not page.more:
            break
        after = page.regions[-1].address
    assert pages == [(["run/a"], True), (["run/b"], False)]


def test_a_key_that_is_taken_back_ends_what_its_client_is_making(guarded_bench, tmp_path):
    bench, enter = guarded_bench
    admin = enter(Role.ADMIN)
    files = list((tmp_path / "clients").glob("*.toml"))
    other, shape = enter(Role.ADMIN), (SLICE_NBYTES,)
    create = Create(name="w", dtype="float32", shape=shape, token=secrets.token_bytes(16))
    admin.begin(Op.CREATE, body=create)
    for file in files:
        file.unlink()
    bench.tick(after_s=2 * HOUSEKEEPING_S)
    assert admin.reply().status is Status.ACCESS_DENIED
    assert bench.node.is_idle
    assert other.create("w").error is None
    assert len(bench.memory.regions) == 1


def test_a_key_that_is_taken_back_ends_the_snapshot_of_its_client(guarded_bench, tmp_path):
    bench, enter = guarded_bench
    region = bench.memory.regions[bench.peer().create("w").body.address]
    reader = enter(Role.READ)
    with closing(LockFile(bench.name)) as locks:
        region.try_lock(0, locks)
        reader.begin(Op.SNAPSHOT, address=region.address, nbytes=32)
        assert bench.waiting(reader)
        for file in (tmp_path / "clients").glob("*.toml"):
            file.unlink()
        bench.tick(after_s=2 * HOUSEKEEPING_S)
        assert reader.reply().status is Status.ACCESS_DENIED
    assert len(bench.memory.regions) == 1


@pytest.mark.parametrize("is_reached", [True, False])
def test_a_key_that_is_taken_back_ends_the_waits_of_its_client(
    guarded_bench, tmp_path, is_reached
):
    """The reply told one version more, or the error of the timeout did."""
    bench, enter = guarded_bench
    owner, reader = bench.peer(), enter(Role.READ)
    address = owner.create("w").body.address
    reader.begin(Op.WAIT, address=address, version=1, nbytes=1000)
    for file in (tmp_path / "clients").glob("*.toml"):
        file.unlink()
    bench.node.context.access.refresh()
    if is_reached:
        owner.put(address, np.ones(8, np.float32))
    bench.tick(after_s=1.5)
    assert reader.reply().status is Status.ACCESS_DENIED
    assert bench.node.is_idle


def test_a_key_that_nobody_authorises_is_denied_all(guarded_bench):
    bench, _ = guarded_bench
    stranger = bench.peer(user="x" * 40)
    assert stranger.ask(Op.PING, body=Empty()).status is Status.ACCESS_DENIED
    assert stranger.create("w").status is Status.ACCESS_DENIED


def make_pipe(path):
    os.mkfifo(path)


def make_loop(path):
    path.symlink_to(path.name)


def make_folder(path):
    path.mkdir()


def make_device(path):
    path.symlink_to("/dev/zero")


def make_nest(path):
    path.write_text("a = " + "[" * 10_000)


def make_number(path):
    path.write_text("a = " + "9" * 10_000)


@pytest.mark.parametrize(
    "make", [make_pipe, make_loop, make_folder, make_device, make_nest, make_number]
)
def test_a_file_that_is_no_key_hinders_neither_others_nor_a_removal(tmp_path, caplog, make):
    make_node_key(tmp_path)
    users = {
        name: read_client_key(add_client(tmp_path, Authorised(name, Role.READ))).public
        for name in ("kept", "gone")
    }
    make(tmp_path / "clients" / "broken.toml")
    access = Access(tmp_path)
    assert all(access.find(user) for user in users.values())
    assert "ignored a file of the key folder: " in caplog.text
    (tmp_path / "clients" / "gone.toml").unlink()
    access.refresh()
    assert access.find(users["kept"])
    assert access.find(users["gone"]) is None


def test_no_file_is_read_for_a_key_that_is_unknown_or_unchanged(tmp_path, monkeypatch):
    make_node_key(tmp_path)
    known = read_client_key(add_client(tmp_path, Authorised("a", Role.READ, "run/"))).public
    access = Access(tmp_path)
    monkeypatch.setattr(Access, "refresh", None)
    assert access.find_now("unknown") is None
    assert access.find_now(known).name == "a"
    names = "run/a", "other"
    for user, seen in (("unknown", [False, False]), (known, [True, False]), ("", [True, True])):
        assert [access.can_see(user, name) for name in names] == seen


def test_a_file_that_another_of_its_size_and_time_replaces_is_read(tmp_path):
    make_node_key(tmp_path)
    keys = [read_client_key(add_client(tmp_path, Authorised(n, Role.READ))) for n in "ab"]
    first, second = (tmp_path / "clients" / f"{name}.toml" for name in "ab")
    os.utime(second, ns=(0, first.stat().st_mtime_ns))
    access = Access(tmp_path)
    second.replace(first)
    assert access.find_now(keys[0].public) is None
    assert access.find(keys[1].public).name == "a"


def test_a_reader_opens_what_exists_and_creates_and_frees_nothing(guarded_bench):
    bench, enter = guarded_bench
    made = bench.peer().create("w").body.address
    reader = enter(Role.READ)
    assert reader.create("w", exist_ok=True).body.address == made
    freed = [
        enter(role).ask(Op.FREE, body=Free(address=made)) for role in (Role.READ, Role.WRITE)
    ]
    for denied in (reader.create("w"), reader.create("new", exist_ok=True), *freed):
        assert denied.status is Status.ACCESS_DENIED
    assert len(bench.memory.regions) == 1


def test_the_operand_of_a_sum_and_of_a_change_needs_its_name(guarded_bench):
    bench, enter = guarded_bench
    own, other = (bench.peer().create(name).body.address for name in ("run/a", "other"))
    writer, payload = enter(Role.WRITE, "run/"), operands.pack_address(other)
    for op, fields in ((Op.DOT, {}), (Op.FROM, {"kernel": 1, "number": 1, "numbers": 1})):
        asked = writer.ask(op, address=own, nbytes=32, payload=payload, **fields)
        assert asked.status is Status.ACCESS_DENIED


def test_a_folder_is_read_again_only_after_a_change(tmp_path, monkeypatch, caplog):
    make_node_key(tmp_path)
    access = Access(tmp_path)

    def full(_folder):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(node_access, "read_clients", full)
    access.refresh()
    assert caplog.text == ""
    with pytest.raises(OSError, match="Too many"):  # no node starts without its clients
        Access(tmp_path)

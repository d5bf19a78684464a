"""Tests of the rights of clients with keys: roles and prefixes of names."""

from __future__ import annotations

import secrets

import numpy as np
import pytest

from memnode.access import NEEDED
from smbox.errors import AccessDeniedError
from smbox.keys import Role
from smbox.wire.ops import CHANGES, Op

LONG = 1 << 20  # elements: more than one stripe, more than one request
ONES = np.ones(8, np.float32)


def batch(box):
    with box.batch() as batch:
        batch.accumulate(box.attach("a"), ONES)
        batch.accumulate(box.attach("b"), ONES)


def put_together(box, *regions):
    with box.batch() as batch:
        for region in regions:
            batch.put(region, 2 * ONES)


def free(box):
    box.free(box.regions()[0].name)


USES = {
    "get": (Role.READ, lambda box: box.attach("a").get()),
    "long get": (Role.READ, lambda box: box.attach("long").get()),
    "snapshot": (Role.READ, lambda box: box.attach("long").get(snapshot=True)),
    "gather": (Role.READ, lambda box: box.attach("a").rows([1, 2]).get()),
    "wait": (Role.READ, lambda box: box.attach("a").wait(0)),
    "list": (Role.READ, lambda box: box.regions()),
    "open what exists": (Role.READ, lambda box: box.create("a", shape=8, exist_ok=True)),
    "counter's value": (Role.READ, lambda box: box.counter("count").value),
    "dot": (Role.READ, lambda box: box.attach("a").dot(box.attach("b"))),
    "put": (Role.WRITE, lambda box: box.attach("a").put(ONES)),
    "scale": (Role.WRITE, lambda box: box.attach("a").scale(2.0)),
    "accumulate": (Role.WRITE, lambda box: box.attach("a").accumulate(ONES)),
    "elastic": (Role.WRITE, lambda box: box.attach("a").elastic(ONES.copy(), 0.5)),
    "fetch_and_op": (Role.WRITE, lambda box: box.attach("a").fetch_and_op(ONES)),
    "rows": (Role.WRITE, lambda box: box.attach("a").rows([1]).accumulate(ONES[:1])),
    "from": (Role.WRITE, lambda box: box.attach("a").accumulate_from(box.attach("b"))),
    "count": (Role.WRITE, lambda box: box.counter("count").add(1)),
    "batch": (Role.WRITE, batch),
    "create": (Role.ADMIN, lambda box: box.create(f"a{secrets.token_hex(4)}", shape=8)),
    "create and fill": (
        Role.ADMIN,
        lambda box: box.create(f"a{secrets.token_hex(4)}", init=ONES),
    ),
    "free": (Role.ADMIN, free),
}


def test_a_role_may_do_what_it_says_and_no_more(guarded):
    admin = guarded.box(guarded.key("admin"))
    for name in ("a", "b"):
        admin.create(name, init=ONES)
    admin.create("long", shape=LONG)
    admin.counter("count")
    boxes = {Role.ADMIN: admin}
    for role in (Role.READ, Role.WRITE):
        boxes[role] = guarded.box(guarded.key(role.name.lower(), role))
    before = admin.attach("a").version
    for needed, use in USES.values():
        for role, box in boxes.items():
            if role < needed:
                with pytest.raises(AccessDeniedError, match="role"):
                    use(box)
    assert admin.attach("a").version == before
    for needed, use in USES.values():
        for role, box in boxes.items():
            if role >= needed:
                use(box)


def test_every_operation_has_a_role():
    assert set(NEEDED) == set(Op)
    assert all(NEEDED[op] is Role.WRITE for op in CHANGES)


def test_a_prefix_hides_all_other_names(guarded):
    admin = guarded.box(guarded.key("admin"))
    mine, other = admin.create("run/a", init=ONES), admin.create("other", init=ONES)
    box = guarded.box(guarded.key("worker", Role.ADMIN, "run/"))
    assert [region.name for region in box.regions()] == ["run/a"]
    found = box.attach("run/a")
    found.put(2 * ONES)
    denied = (
        lambda: box.attach("other"),
        lambda: box.create("another", shape=8),
        lambda: box.create("other", shape=8, exist_ok=True),
        lambda: box.counter("count"),
        lambda: box.barrier("meet", 1),
        lambda: box.get(other.address, 8),
        lambda: box.put(other.address, ONES),
        lambda: box.free("other"),
        lambda: found.accumulate_from(other),
        lambda: found.dot(other),
    )
    for use in denied:
        with pytest.raises(AccessDeniedError, match="prefix"):
            use()
    assert other.get().tolist() == ONES.tolist()
    assert mine.get().tolist() == (2 * ONES).tolist()
    box.create("run/b", init=ONES)
    assert box.attach("run/b").get(snapshot=True).tolist() == ONES.tolist()


def test_a_batch_is_refused_whole_for_one_name(guarded):
    box = guarded.box(guarded.key("worker"))
    mine, other = box.create("run/a", init=ONES), box.create("other", init=ONES)
    file = guarded.folder / "clients" / "worker.toml"
    file.write_text(file.read_text().replace('prefix = ""', 'prefix = "run/"'))
    assert guarded.denies(other.get, "prefix")
    with pytest.raises(AccessDeniedError, match="prefix"):
        put_together(box, mine, other)
    assert mine.get().tolist() == ONES.tolist()

"""The local path: threads, forks, freed and replaced memory, and close."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from smbox.errors import ConfigError, PeerLostError, RegionFreedError
from smbox.handle import Handle
from smbox.memory import layout
from smbox.memory.journal import Writer
from smbox.memory.mapped import MappedRegion
from smbox.memory.segment import listing
from smbox.memory.superblock import unlink_all
from smbox.paths.local import LocalPath
from smbox.testing.contract_tools import in_threads
from smbox.testing.solo import solo_box


def slots(solo):
    return set(listing(layout.name_of(solo.control.memory.name, "slot.")))


def test_a_new_thread_takes_over_the_slot_of_one_that_ended(solo, box):
    region = box.create("some", shape=(4,), dtype="int64")
    own, made = slots(solo), set()
    for _ in range(5):
        in_threads(2, lambda _: region.accumulate(np.ones(4, np.int64)))
        made |= slots(solo) - own
    region.accumulate(np.ones(4, np.int64))
    made |= slots(solo) - own
    assert len(made) <= 2
    box.close()
    assert slots(solo) < own | {"never"}
    with solo_box(solo) as other:
        assert other.attach("some").get().tolist() == [11] * 4


def test_reads_need_no_journal(solo, box, held, monkeypatch):
    written = box.create("some", shape=(400_000,), init=5.0)
    before = slots(solo)
    monkeypatch.setattr(Writer, "create", None)
    with solo_box(solo) as other:
        region = other.attach("some")
        assert region.get()[0] == 5
        assert region.get(snapshot=True)[-1] == 5
        assert region.rows([3]).get() == [5]
        with held(written):
            handle = region.get_nb()
            assert region.version == written.version
        assert handle.result()[-1] == 5
        assert slots(solo) == before


def test_a_snapshot_opens_no_file_that_an_interrupt_would_leave_open(box, monkeypatch):
    region = box.create("some", shape=(400_000,), init=5.0)
    region.get()
    before = len(os.listdir("/proc/self/fd"))

    def open_and_raise(*args, open_file=os.open, **options):
        open_file(*args, **options)
        raise KeyboardInterrupt  # the signal is handled when open returns

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", open_and_raise)
        for _ in range(3):
            with contextlib.suppress(KeyboardInterrupt):
                assert region.get(snapshot=True)[-1] == 5
    assert len(os.listdir("/proc/self/fd")) == before


def test_close_ends_a_wait(box, paths):
    handle = Handle("wait", paths.data().wait_version(box.create("r", 4).info, 1), int)
    assert not handle.done()
    box.close()
    with pytest.raises(PeerLostError, match="closed"):
        handle.wait()


def test_close_waits_for_no_request_and_ends_it(box, held, caplog):
    region = box.create("some", shape=(4,))
    with held(region):
        handle = region.put_nb(np.ones(4, np.float32))
        box.close()
    assert "before all changes were done" in caplog.text
    with pytest.raises(PeerLostError, match="closed") as caught:
        handle.wait()
    assert caught.value.facts["outcome"] == "none"


def test_a_client_maps_no_region_of_which_it_knows_that_it_was_freed(solo, box):
    region = box.create("some", shape=(4,))
    region.put(np.ones(4, np.float32))
    box.free(region)
    with pytest.raises(RegionFreedError, match="name='some'"):
        region.get()
    gc.collect()
    name = layout.region_name(solo.control.memory.name, region.address.offset)
    assert name not in Path("/proc/self/maps").read_text()


def accumulate_for_ever(region):
    while True:
        region.accumulate(np.ones(100_000, np.int64))


def test_close_while_others_work_leaves_the_memory_whole(solo, box):
    region = box.create("some", shape=(100_000,), dtype="int64")
    begun = threading.Barrier(3)

    def job(index):
        if index == 0:
            begun.wait()
            box.close()
            return
        region.accumulate(np.ones(100_000, np.int64))
        begun.wait()
        with pytest.raises((ConfigError, PeerLostError)):  # before a verb, or inside one
            accumulate_for_ever(region)

    in_threads(3, job)
    with solo_box(solo) as other:
        again = other.attach("some")
        again.accumulate(np.ones(100_000, np.int64), timeout_s=60.0)
        contents = again.get()
        assert contents.min() >= 3
        assert len(np.unique(contents[: layout.STRIPE_NBYTES // 8])) == 1


def test_freed_regions_are_let_go(solo, box):
    for index in range(5):
        region = box.create(f"r{index}", shape=(4,))
        region.get()
        box.free(region)
    last = box.create("last", shape=(4,))
    last.get()
    gc.collect()
    prefix = layout.name_of(solo.control.memory.name, "region.")
    mapped = set(re.findall(f"{prefix}[0-9a-f]+", Path("/proc/self/maps").read_text()))
    assert mapped == {layout.region_name(solo.control.memory.name, last.address.offset)}


def test_the_old_address_of_a_replaced_memory_is_an_error(solo, box):
    """A node that was stopped and started by the same name has other memory."""
    box.create("mapped", shape=(4,)).get()
    node = solo.control.node
    path = LocalPath(type(node)(node.name, b"\0" * 16, node.node_id, node.incarnation))
    (info,) = box.regions()
    with pytest.raises(PeerLostError, match="another node"):
        path.version(info, 1.0)
    path.close()


def test_a_new_thread_learns_that_the_memory_is_gone(solo, box):
    region = box.create("mapped", shape=(4,))
    region.get()
    unlink_all(solo.control.memory.name)
    with ThreadPoolExecutor(1) as pool, pytest.raises(PeerLostError, match="connect again"):
        pool.submit(region.get).result()


def test_a_fork_during_the_first_change_of_a_thread_leaves_the_child_free(box, monkeypatch):
    region = box.create("some", shape=(4,))
    region.get()
    making, is_forked = threading.Event(), threading.Event()
    create = Writer.create

    def slow(*arguments):
        making.set()
        assert is_forked.wait(60.0)
        return create(*arguments)

    monkeypatch.setattr(Writer, "create", slow)
    first = threading.Thread(target=lambda: region.put(np.ones(4, np.float32)))
    first.start()
    assert making.wait(60.0)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        is_forked.set()
        region.accumulate(np.ones(4, np.float32))
        os._exit(7)
    _, status = os.waitpid(child, 0)
    is_forked.set()
    first.join()
    assert os.waitstatus_to_exitcode(status) == 7
    assert region.get().tolist() == [1, 1, 1, 1]


def test_close_while_another_thread_maps_is_no_error_of_its_own(solo, monkeypatch):
    with solo_box(solo) as owner, solo_box(solo) as box:
        gone = owner.create("gone", shape=(4,))
        box.attach("gone").get()
        other = owner.create("other", shape=(4,))
        mine = box.attach("other")
        owner.free(gone)
        attach, closing = MappedRegion.attach, []

        def closed_meanwhile(*place):
            closing.append(threading.Thread(target=box.close))
            closing[0].start()
            closing[0].join(0.2)
            return attach(*place)

        monkeypatch.setattr(MappedRegion, "attach", closed_meanwhile)
        with contextlib.suppress(PeerLostError):
            mine.get()
        closing[0].join()
        monkeypatch.undo()
        assert other.get().tolist() == [0, 0, 0, 0]


def test_a_view_is_the_memory(solo, box):
    region = box.create("some", shape=(2, 2))
    with solo_box(solo) as other:
        other.attach("some").local()[1, 1] = 5
    assert region.get().tolist() == [[0, 0], [0, 5]]


def test_an_abandoned_path_ends_its_requests_and_begins_anew(solo, box, paths, held):
    """What a forked child does with what it inherited."""
    region = box.create("some", shape=(4,))
    own = slots(solo)
    with held(region):
        handle = region.put_nb(np.ones(4, np.float32))
        paths.abandon()
    with pytest.raises(PeerLostError):
        handle.wait()
    region.put(np.full(4, 2, np.float32))
    assert region.get().tolist() == [2, 2, 2, 2]
    assert own < slots(solo)
    handle.work.queue.writer.segment.unlink()

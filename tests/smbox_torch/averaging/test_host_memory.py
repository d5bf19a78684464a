from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from smbox.errors import ConfigError, SegmentError, SystemLimitError, WorkerLostError
from smbox.memory import process, segment
from smbox.memory.layout import PREFIX
from smbox.memory.segment import Segment
from smbox.testing.few_files import failing_open
from smbox_torch.averaging.host_memory import HOST_PREFIX, HostMemory, remove_leftovers
from smbox_torch.averaging.rendezvous import Rendezvous
from smbox_torch.world import World

LONG_S = 60.0

GATHER_AND_WAIT = """
import sys
from smbox_torch.averaging.host_memory import HostMemory
from smbox_torch.world import World
world = World(world_size=2, local_world_size=2, run_id=sys.argv[1])
HostMemory.join("orphan", world, 8, timeout_s=600)
"""


def worlds(ranks: int) -> list[World]:
    run_id = uuid.uuid4().hex
    return [
        World(
            rank=rank,
            local_rank=rank,
            world_size=ranks,
            local_world_size=ranks,
            run_id=run_id,
        )
        for rank in range(ranks)
    ]


def named(token: str) -> list[str]:
    return [name for name in segment.listing(HOST_PREFIX) if token in name]


def whole(token: str) -> list[str]:
    """Return the names of segments that can be joined."""
    return [name for name in named(token) if "building" not in name]


def join(world: World, nbytes: int = 100, *, layout: str = "", timeout_s: float = LONG_S):
    return HostMemory.join("t", world, nbytes, layout=layout, timeout_s=timeout_s)


def test_all_ranks_see_the_same_bytes_and_the_name_is_gone():
    three = worlds(3)
    with ThreadPoolExecutor(3) as pool:
        memories = list(pool.map(join, three))
    assert named(three[0].host_token) == []
    for rank, memory in enumerate(memories):
        memory.data[rank] = rank + 1
    assert [memory.data.tolist()[:4] for memory in memories] == [[1, 2, 3, 0]] * 3
    assert [len(memory.data) for memory in memories] == [100] * 3
    view = memories[0].data
    for memory in memories:
        memory.close()
        memory.close()
    assert view[2] == 3


def test_a_name_may_be_used_again_one_after_the_other():
    two = worlds(2)

    def twice(world: World) -> list[int]:
        found = []
        for number in (1, 2):
            memory = join(world)
            if world.is_group_root:
                memory.data[0] = number
                memory.rendezvous.raise_to(0, 1)
            else:
                memory.rendezvous.raise_to(0, 1)
                memory.rendezvous.wait(0, 1)
                found.append(int(memory.data[0]))
            memory.close()
        return found

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(twice, two)) == [[], [1, 2]]


@pytest.mark.parametrize("other", [{"nbytes": 99}, {"layout": "another model"}])
def test_all_ranks_learn_that_one_disagrees(other):
    three = worlds(3)
    with ThreadPoolExecutor(3) as pool:
        first = [pool.submit(join, three[0]), pool.submit(join, three[1], **other)]
        done, _ = wait(first, timeout=0.5)  # the memory stays for the last rank
        assert not done
        for joined in (*first, pool.submit(join, three[2])):
            assert isinstance(joined.exception(), ConfigError)
            assert "rank 1 and rank 0 do not mean the same" in str(joined.exception())
    assert named(three[0].host_token) == []


def test_without_the_native_library_no_rank_waits_for_others():
    done = subprocess.run(
        [sys.executable, "-c", GATHER_AND_WAIT, uuid.uuid4().hex],
        env=os.environ | {"SMBOX_NO_NATIVE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "NativeError: SMBOX_NO_NATIVE" in done.stderr


def test_a_rank_that_never_comes_is_named_and_nothing_is_left():
    two = worlds(2)
    with pytest.raises(WorkerLostError, match="rank 1 never came"):
        join(two[0], timeout_s=0.1)
    with pytest.raises(WorkerLostError, match="local rank 0"):
        join(two[1], timeout_s=0.1)
    assert named(two[0].host_token) == []


@pytest.mark.parametrize("struck", [1, 2])
def test_a_rank_that_is_interrupted_while_it_waits_has_left(monkeypatch, struck):
    """If its process lived on, the others waited for their timeout."""
    two, wait_for_others = worlds(2), Rendezvous.wait

    def interrupted(self, counter: int, value: int) -> None:
        if self.rank == 1 and value == struck:
            raise KeyboardInterrupt
        wait_for_others(self, counter, value)

    monkeypatch.setattr(Rendezvous, "wait", interrupted)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(join, two[0])
        with pytest.raises(KeyboardInterrupt):
            join(two[1])
        with pytest.raises(WorkerLostError, match="rank 1 has left"):
            other.result().rendezvous.wait(0, 1)


@pytest.fixture
def leftover():
    """The run id of a run whose root was killed while it gathered."""
    run_id = uuid.uuid4().hex
    token = World(world_size=2, local_world_size=2, run_id=run_id).host_token
    child = subprocess.Popen([sys.executable, "-c", GATHER_AND_WAIT, run_id])
    done = threading.Event()
    while not whole(token):
        assert child.poll() is None
        done.wait(0.01)
    child.kill()
    child.wait()  # from now on, any start on this host removes what is left
    return run_id


def test_what_a_dead_run_left_is_removed_by_the_next(leftover: str):
    join(World(run_id=uuid.uuid4().hex)).close()
    assert named(World(world_size=2, local_world_size=2, run_id=leftover).host_token) == []


def test_what_a_restarted_root_creates_while_another_run_looks_at_the_dead_one_stays(
    leftover: str, monkeypatch
):
    """The look at a dead root's segment ended with the removal of that of its successor."""
    two = [
        World(rank=rank, local_rank=rank, world_size=2, local_world_size=2, run_id=leftover)
        for rank in range(2)
    ]
    joining, is_alive = [], process.is_alive

    def files() -> set[int]:
        found = set()
        for name in whole(two[0].host_token):
            with contextlib.suppress(FileNotFoundError):
                found.add((segment.DIRECTORY / name).stat().st_ino)
        return found

    def restart() -> None:
        joining.append(pool.submit(HostMemory.join, "orphan", two[0], 8, timeout_s=LONG_S))

    def is_alive_and_restarted(pid: int, pid_started: int) -> bool:
        monkeypatch.undo()
        dead = files()
        restart()
        while not files() - dead:
            assert not joining[0].done()
        return is_alive(pid, pid_started)

    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(process, "is_alive", is_alive_and_restarted)
        remove_leftovers()
        if not joining:  # another test's group has removed the dead one's
            monkeypatch.undo()
            restart()
        HostMemory.join("orphan", two[1], 8, timeout_s=5.0).close()
        joining[0].result().close()


def test_a_member_does_not_join_or_map_the_memory_of_a_dead_root(leftover: str, monkeypatch):
    member = World(rank=1, local_rank=1, world_size=2, local_world_size=2, run_id=leftover)
    monkeypatch.setattr(Segment, "attach", None)
    with pytest.raises(WorkerLostError, match="never came"):
        HostMemory.join("orphan", member, 8, timeout_s=0.1)
    remove_leftovers()  # unless another test's group has
    assert named(member.host_token) == []


def test_a_root_that_died_before_its_header_was_whole_is_found_by_its_name():
    left = f"{HOST_PREFIX}building.t.0123.{2**22 + 1}.77"
    Segment.create(left, 4096).close()
    remove_leftovers()  # unless another test's group has
    assert left not in segment.listing(HOST_PREFIX)


def test_who_can_open_too_few_files_removes_no_memory_of_a_living_run():
    pid, pid_started = process.identity()
    name = f"{HOST_PREFIX}{uuid.uuid4().hex}.{pid}.{pid_started}"
    Segment.create(name, 4096)
    for nth in itertools.count():
        with failing_open(nth) as failure, contextlib.suppress(SystemLimitError):
            remove_leftovers()
        assert name in segment.listing(HOST_PREFIX)
        if not failure.has_struck:
            break
    segment.unlink(name)


def test_a_memory_node_may_have_any_name():
    """Not even one called "host" is taken for a group that died as it gathered."""
    of_a_node = f"{PREFIX}host.region.{uuid.uuid4().hex[:12]}"
    Segment.create(of_a_node, 4096).close()
    try:
        join(World(run_id=uuid.uuid4().hex)).close()
        assert of_a_node in segment.listing(PREFIX)
    finally:
        segment.unlink(of_a_node)


def test_what_others_left_is_theirs_to_remove(leftover: str, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    assert remove_leftovers() == []
    monkeypatch.undo()
    remove_leftovers()  # unless another test's group has
    assert named(World(world_size=2, local_world_size=2, run_id=leftover).host_token) == []


def test_two_living_groups_of_one_name_are_refused():
    two = worlds(2)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(join, two[0])
        while not whole(two[0].host_token):
            assert not first.done()
        with pytest.raises(SegmentError, match="different name"):
            join(two[0])
        join(two[1]).close()
        first.result().close()


def test_a_member_whose_root_gives_up_while_it_attaches_says_so(monkeypatch):
    root, member = worlds(2)
    with ThreadPoolExecutor(1) as pool:
        gathering = pool.submit(join, root, timeout_s=0.5)
        while not named(root.host_token):
            time.sleep(0.001)

        def attach_and_wait(name: str) -> Segment:
            found = attach(name)
            with pytest.raises(WorkerLostError, match="rank 1 never came"):
                gathering.result()
            return found

        attach = Segment.attach
        monkeypatch.setattr(Segment, "attach", attach_and_wait)
        with pytest.raises(WorkerLostError, match="given up by another rank"):
            join(member, timeout_s=0.1)

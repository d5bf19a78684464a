from __future__ import annotations

import threading

import pytest

from smbox.errors import RequestTimeoutError
from smbox.testing.interrupts import interrupted
from smbox.testing.model_box import ModelBox
from smbox_torch.workers import phase
from smbox_torch.workers.phase import FRESH, IN_USE, Phase, of_this_start


def test_one_worker_restores_fresh_memory_and_the_others_wait_for_it():
    box = ModelBox()
    first, second = Phase(box, "run"), Phase(box, "run")
    seen: list[bool] = []

    def restore() -> None:
        with second.restoring() as is_mine:
            seen.append(is_mine)

    with first.restoring() as is_mine:
        assert is_mine
        thread = threading.Thread(target=restore)
        thread.start()
        assert seen == []
    thread.join()
    assert seen == [False]


def test_a_state_of_the_worker_itself_restores_nothing_and_uses_nothing_up():
    box = ModelBox()
    mine, other = Phase(box, "run"), Phase(box, "run")
    with mine.restoring(mine.origin) as is_mine:
        assert not is_mine
    assert box.counter("run.phase").value == FRESH
    with other.restoring(mine.origin) as is_mine:
        assert is_mine
    with mine.restoring(mine.origin) as is_mine:  # waits for nobody
        assert not is_mine


def test_memory_in_use_is_not_restored():
    box = ModelBox()
    Phase(box, "run").use()
    with Phase(box, "run").restoring() as is_mine:
        assert not is_mine
    assert box.counter("run.phase").value == IN_USE


def test_a_restore_that_is_interrupted_at_any_line_as_it_begins_leaves_nobody_waiting():
    at, is_over = 0, False
    while not is_over:
        at += 1
        box = ModelBox()
        restoring = Phase(box, "run").restoring()
        is_over = not interrupted(at, restoring.__enter__, (phase.__file__,))
        assert is_over or box.counter("run.phase").value == FRESH, at
    assert at > 8


@pytest.mark.parametrize("is_restoring", [False, True])
def test_an_interrupt_inside_the_change_of_the_counter_frees_the_own_turn_only(
    is_restoring, monkeypatch
):
    """Without a launcher both workers have rank 0."""
    box = ModelBox()
    other, mine = Phase(box, "run"), Phase(box, "run")
    counter = mine._counter
    turn = other.restoring()
    if is_restoring:
        assert turn.__enter__()
    before = counter.value

    def swap(expected: int, new: int) -> bool:
        done = box.counter("run.phase").compare_and_swap(expected, new)
        if new < FRESH:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(counter, "compare_and_swap", swap)
    with pytest.raises(KeyboardInterrupt), mine.restoring():
        pass
    assert counter.value == before


@pytest.mark.parametrize("times", [1, 3])
def test_interrupts_before_the_change_that_ends_a_restore_leave_nobody_waiting(
    times: int, monkeypatch
):
    box, struck = ModelBox(), []
    mine = Phase(box, "run")

    def swap(expected: int, new: int) -> bool:
        if new == IN_USE and len(struck) < times:
            struck.append(new)
            raise KeyboardInterrupt
        return box.counter("run.phase").compare_and_swap(expected, new)

    monkeypatch.setattr(mine._counter, "compare_and_swap", swap)
    with pytest.raises(KeyboardInterrupt), mine.restoring() as is_mine:
        assert is_mine
    assert (box.counter("run.phase").value, struck) == (IN_USE, [IN_USE] * times)


def test_a_restore_that_fails_leaves_the_memory_unused():
    box = ModelBox()

    def fail() -> None:
        with Phase(box, "run").restoring():
            raise ValueError("a torn checkpoint")

    with pytest.raises(ValueError, match="torn"):
        fail()
    with Phase(box, "run").restoring() as is_mine:
        assert is_mine


def test_use_is_told_once():
    box = ModelBox()
    phase = Phase(box, "run")
    phase.use()
    phase.use()
    assert box.counter("run.phase").value == IN_USE


def test_a_restarted_run_meets_elsewhere():
    assert of_this_start("run.end", {}) == "run.end"
    assert of_this_start("run.end", {"TORCHELASTIC_RESTART_COUNT": "0"}) == "run.end"
    assert of_this_start("run.end", {"TORCHELASTIC_RESTART_COUNT": "2"}) == "run.end.2"


def test_another_launch_meets_elsewhere():
    env = {"RANK": "0", "WORLD_SIZE": "1"}
    names = {
        of_this_start("run.end", env | {"TORCHELASTIC_RUN_ID": launch})
        for launch in ("none", "one", "two")
    }
    assert len(names) == 3
    assert "run.end" in names


def test_a_worker_that_starts_again_by_itself_meets_the_others_where_they_are():
    own = {"SMBOX_RANK": "1", "SMBOX_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "5"}
    assert of_this_start("run.end", own | {"SMBOX_WORKER_RESTART_COUNT": "1"}) == "run.end"
    assert of_this_start("run.end", own | {"SMBOX_RESTART_COUNT": "1"}) == "run.end.1"


def test_a_worker_takes_over_from_itself_that_died_restoring():
    box = ModelBox()
    first, second = ({"SMBOX_RANK": rank, "SMBOX_WORLD_SIZE": "2"} for rank in "01")
    again = {"SMBOX_WORKER_RESTART_COUNT": "1"}
    dead = Phase(box, "run", second).restoring()
    assert dead.__enter__()  # and never left
    for env in (first, first | again, second):
        with (
            pytest.raises(RequestTimeoutError),
            Phase(box, "run", env).restoring() as is_mine,
        ):
            pass
    with Phase(box, "run", second | again).restoring() as is_mine:
        assert is_mine
    with Phase(box, "run", first).restoring() as is_mine:
        assert not is_mine


def test_the_next_start_takes_over_from_a_worker_that_died_restoring():
    box = ModelBox()
    dead = Phase(box, "run")
    with dead.restoring():
        pass
    box.counter("run.phase").add(-1 - IN_USE)  # as it stood inside: -1, of start 0
    starts = [Phase(box, "run", {"TORCHELASTIC_RESTART_COUNT": start}) for start in "133"]
    never_left = [start.restoring() for start in starts]
    assert never_left[0].__enter__()
    assert never_left[1].__enter__()
    with pytest.raises(RequestTimeoutError):
        never_left[2].__enter__()
    with pytest.raises(RequestTimeoutError, match=r"smbox rm run\.phase"):
        Phase(box, "run", {"TORCHELASTIC_RESTART_COUNT": "3"}).use()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(phase, "RESTORE_TIMEOUT_S", 0.5)

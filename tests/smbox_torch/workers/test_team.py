"""Who works in a run: what a user says, what a launcher says, and who is really there."""

from __future__ import annotations

import numpy as np
import pytest

import smbox
from smbox import Member
from smbox.errors import ConfigError
from smbox.member_record import Record
from smbox.roster import CAPACITY, View
from smbox.testing.model_box import ModelBox
from smbox_torch.workers.joining import check_workers, team_of
from smbox_torch.workers.team import FixedTeam, JoinedTeam

LAUNCHED = {"RANK": "2", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "a launch"}
STARTED = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "a launch"}


def test_a_number_a_launcher_or_a_member_say_how_many_workers_there_are():
    assert check_workers(3, {}) == 3
    assert check_workers(None, LAUNCHED) == 4
    assert check_workers(2, LAUNCHED) == 2


def test_nobody_says_it_is_an_error_that_names_the_cures():
    for call in (
        lambda: check_workers(None, {}),
        lambda: team_of(ModelBox(), "r", None, env={}),
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        for cure in ("smbox run", "workers=N", "smbox.join"):
            assert cure in str(caught.value)


def test_impossible_numbers_are_refused():
    assert check_workers(CAPACITY, {}) == CAPACITY
    with pytest.raises(ConfigError):
        check_workers(0, {})
    with pytest.raises(ConfigError, match=f"at most {CAPACITY} workers"):
        team_of(ModelBox(), "run", CAPACITY + 1, env={})
    with pytest.raises(ConfigError, match=r"WORLD_SIZE.*two"):
        check_workers(None, {"RANK": "0", "WORLD_SIZE": "two"})
    for rank in (-1, 2):
        with pytest.raises(ConfigError, match="rank"):
            team_of(ModelBox(), "run", 2, rank=rank, env={})


def test_a_team_on_another_memory_is_fixed():
    team = team_of(ModelBox(), "run", None, env=LAUNCHED)
    assert isinstance(team, FixedTeam)
    assert (team.rank, team.size, team.workers, team.begins_at) == (2, 4, 4, 0)
    assert team.present() == [0, 1, 2, 3]
    team.tell(5)
    team.leave()


@pytest.fixture
def box():
    with smbox.local("32MiB") as box:
        yield box


def test_a_launched_worker_joins_under_its_rank_and_finds_the_steps_of_the_dead(box):
    team = team_of(box, "run", None, env=LAUNCHED)
    assert isinstance(team, JoinedTeam)
    assert (team.rank, team.size, team.workers, team.member.expected) == (2, 4, 4, 4)
    team.tell(11)
    team.leave()
    assert team_of(box, "run", None, env=LAUNCHED).begins_at == 11
    another = LAUNCHED | {"RANK": "1", "TORCHELASTIC_RUN_ID": "another"}
    last = team_of(box, "run", 4, rank=3, env=another)
    assert (last.rank, last.begins_at) == (3, 0)


def test_a_number_that_is_not_the_launchers_gives_the_lowest_rank(box):
    team = team_of(box, "run", 2, env=LAUNCHED)
    assert (team.rank, team.size) == (0, 2)
    assert team_of(box, "run", 2, env=LAUNCHED).rank == 1


def test_a_member_of_the_users_is_not_left(box):
    with smbox.join(box, "run") as member:
        team = team_of(box, "run", member, env={})
        assert (team.rank, team.size, team.workers) == (0, 1, 1)
        team.tell(3)
        team.leave()
        assert (member.count, member.progress) == (1, 3)


def test_a_member_counts_the_steps_of_one_team_at_a_time(box):
    with smbox.join(box, "run") as member:
        first, second = (team_of(box, "run", member, env={}) for _ in range(2))
        first.count()
        with pytest.raises(ConfigError, match="belongs to another optimizer"):
            second.count()
        second.leave()
        assert member.is_counted
        first.leave()
        second.count()


def test_a_later_worker_of_a_rank_has_a_larger_generation(box):
    first = team_of(box, "run", 2, rank=1, env={})
    first.leave()
    second = team_of(box, "run", 2, rank=1, env={})
    assert second.generation > first.generation > 0


def test_a_member_with_another_rank_is_refused(box):
    with smbox.join(box, "run", expected=2) as member:
        with pytest.raises(ConfigError, match="another rank"):
            team_of(box, "run", member, rank=1, env={})
        assert team_of(box, "run", member, rank=0, env={}).rank == 0


def test_a_worker_that_left_just_before_its_end_has_left_and_not_died(box, monkeypatch):
    one, other = (team_of(box, "run", 2, rank=rank, env={}) for rank in range(2))
    assert one.lost() == {}
    ended = one.member.seen.records[1]

    def leave_and_end(record: Record) -> bool:
        other.leave()
        return record == ended

    monkeypatch.setattr(Record, "is_known_dead", leave_and_end)
    assert one.lost() == {1: "left"}
    one.leave()


def test_a_count_of_an_earlier_launch_is_not_that_of_a_worker_that_just_joins(box, monkeypatch):
    earlier = [smbox.join(box, "run", rank=rank, launch="earlier") for rank in range(2)]
    for each in earlier:
        each.progress = 1000
        each.leave()
    one, others, seen = team_of(box, "run", None, env=STARTED), [], Member.seen.fget
    assert one.without_earlier(np.array([1000, 1000])).tolist() == [0, 0]
    ranks = ["1"]

    def seen_before_another_joins(member: Member) -> View:
        found = seen(member)
        if ranks:
            others.append(team_of(box, "run", None, env=STARTED | {"RANK": ranks.pop()}))
            one.member.read()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Member, "seen", property(seen_before_another_joins))
        assert one.without_earlier(np.array([1000, 1000])).tolist() == [0, 0]
    for each in (one, *others):
        each.leave()

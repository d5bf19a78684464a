"""Rounds of one rank whose mean only records what it is told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from smbox.errors import WorkerLostError
from smbox_torch.averaging import gradient_rounds
from smbox_torch.averaging.equal_state import EqualState
from smbox_torch.averaging.gradient_rounds import GradientRounds


class Leader:
    """The mean of a rank whose loop did the most steps, alone."""

    nbytes, ranks, is_any_due, can_repeat, leads = 0, 1, False, True, True

    def __init__(self) -> None:
        self.dues: list[int] = []
        self.weights: list[float] = []
        self.told: list[int | None] = []
        self.error: BaseException | None = None

    def begin(self, weight: float, *, due: int) -> None:
        self.dues.append(due)
        self.weights.append(weight)

    def take(self, index: int) -> None:
        pass

    def finish(self) -> None:
        if self.error is not None:
            raise self.error

    def is_leader(self) -> bool:
        return self.leads

    def close(self, *, steps: int | None) -> None:
        self.told.append(steps)


def test_a_rank_whose_round_failed_does_not_leave_as_one_that_finished():
    weight, mean = torch.nn.Parameter(torch.ones(2)), Leader()
    for mean.error in (None, WorkerLostError("of another rank")):
        synced = GradientRounds([weight], mean, torch.optim.SGD([weight]))
        if mean.error is None:
            synced.finish()
        else:
            with pytest.raises(WorkerLostError):
                synced.finish()
        synced.close()
    assert mean.told == [0, None]


def test_a_rank_that_ended_a_round_after_an_interrupt_leaves_as_one_that_finished():
    weight, mean = torch.nn.Parameter(torch.ones(2)), Leader()
    synced = GradientRounds([weight], mean, torch.optim.SGD([weight]))
    mean.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        synced.finish()
    mean.error = None
    synced.finish()
    synced.close()
    assert mean.told == [0]


def test_a_round_lasts_from_its_first_gradient_and_is_awaited_from_the_end_of_backward(
    monkeypatch,
):
    weight, mean = torch.nn.Parameter(torch.ones(2)), Leader()
    synced = GradientRounds([weight], mean, torch.optim.SGD([weight]))
    clock = SimpleNamespace(perf_counter=iter([1.0, 3.0, 4.0]).__next__)
    monkeypatch.setattr(gradient_rounds, "time", clock)
    synced.finish()
    found = synced.recorder.snapshot()
    assert (found.exchange_ms, found.waited_ms) == (3000.0, 1000.0)
    synced.close()


def test_only_states_like_their_parameter_are_copied_after_the_loops():
    weight, mean = torch.nn.Parameter(torch.ones(2)), Leader()
    synced = GradientRounds([weight], mean, torch.optim.SGD([weight]))
    wrong = {"step": torch.tensor(3.0), "wide": torch.ones(2, dtype=torch.float64)}
    wrong["elsewhere"] = torch.ones(2, device="meta")
    with torch.no_grad():
        synced.agree({weight: {"momentum": torch.ones(2), "no tensor": 1, **wrong}})
    assert len(mean.dues) == 2  # the parameters, and the momentum
    synced.close()


@pytest.mark.parametrize("leads", [False, True])
def test_only_the_leader_counts_in_the_copies_and_no_gradient_remains(leads: bool):
    weight, other, mean = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(), Leader()
    mean.leads = leads
    synced = GradientRounds([other, weight], mean, torch.optim.SGD([other, weight]))
    with torch.no_grad():
        synced.agree({weight: {"momentum": torch.ones(2)}})  # the other never had a gradient
    assert mean.weights == [float(leads)] * 2
    assert weight.grad is other.grad is None
    synced.close()


@pytest.mark.parametrize("state", [{}, {"momentum": torch.ones(2)}])
def test_what_is_copied_after_the_loops_is_compared_in_the_next_round(state):
    weight, mean = torch.nn.Parameter(torch.ones(2)), Leader()
    synced = GradientRounds([weight], mean, torch.optim.SGD([weight]))
    synced.equal_state.agreed()
    with torch.no_grad():
        synced.agree({weight: state})
    synced.finish()
    assert [due & 1 for due in mean.dues] == [0] * (1 + len(state)) + [1]
    synced.close()


@pytest.mark.parametrize(
    ("setting", "before", "after", "is_noticed"),
    [
        ("lr", 0.1, 0.1 + 1e-9, False),
        ("lr", 0.1, 0.1001, True),
        ("lr", torch.tensor(0.1), torch.tensor(0.2), True),
        ("betas", (0.9, 0.99), (0.8, 0.99), True),
    ],
)
def test_a_round_tells_a_change_of_four_digits_of_a_setting(
    setting: str, before: object, after: object, is_noticed: bool
):
    weight, mean = torch.nn.Parameter(torch.ones(2)), Leader()
    adam = torch.optim.Adam([weight])
    synced = GradientRounds([weight], mean, adam)
    for adam.param_groups[0][setting] in (before, after):
        synced.finish()
    assert (mean.dues[0] != mean.dues[1]) is is_noticed
    synced.close()


def test_states_that_differ_in_the_order_of_their_tensors_are_equal():
    digests = set()
    for names in ("ab", "ba"):
        weight = torch.nn.Parameter(torch.ones(2))
        sgd = torch.optim.SGD([weight])
        sgd.state[weight] = {name: torch.tensor(float(ord(name))) for name in names}
        sgd.state[weight]["note"] = names  # only tensors are compared
        digests.add(EqualState(sgd, None).digest())
    assert len(digests) == 1

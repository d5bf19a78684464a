"""Rounds of one rank whose mean only records what it is told."""

from __future__ import annotations

import pytest
import torch

from smbox.errors import WorkerLostError
from smbox_torch.averaging.gradient_rounds import GradientRounds


class Leader:
    """The mean of a rank whose loop did the most steps, alone."""

    nbytes, is_any_due = 0, False

    def __init__(self) -> None:
        self.dues: list[int] = []
        self.told: list[int | None] = []
        self.error: Exception | None = None

    def begin(self, weight: float, *, due: int) -> None:
        self.dues.append(due)

    def take(self, index: int) -> None:
        pass

    def finish(self) -> None:
        if self.error is not None:
            raise self.error

    def is_leader(self) -> bool:
        return True

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


def test_only_states_like_their_parameter_are_copied_after_the_loops():
    weight, mean = torch.nn.Parameter(torch.ones(2)), Leader()
    synced = GradientRounds([weight], mean, torch.optim.SGD([weight]))
    wrong = {"step": torch.tensor(3.0), "wide": torch.ones(2, dtype=torch.float64)}
    with torch.no_grad():
        synced.agree({weight: {"momentum": torch.ones(2), "no tensor": 1, **wrong}})
    assert len(mean.dues) == 2  # the parameters, and the momentum
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

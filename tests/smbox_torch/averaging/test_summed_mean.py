from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from smbox.errors import ConfigError, StepMismatchError, WorkerLostError
from smbox_torch.averaging.gradient_rounds import GradientRounds
from smbox_torch.averaging.summed_mean import (
    FLAGS,
    IN_STEP,
    JOINED,
    STEPS,
    WEIGHT,
    SummedMean,
)


class Others:
    """Rank 0's part of sums in which all other ranks have a gradient of ones."""

    rank, size = 0, 3

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def table(self, row: torch.Tensor, *_: object) -> torch.Tensor:
        return torch.cat([row.unsqueeze(0), self.rows])

    def total(self, flats: Sequence[torch.Tensor], weight: float) -> None:
        for flat in [*flats] * len(self.rows):
            flat.add_(1.0)

    def nbytes(self, flats: Sequence[torch.Tensor]) -> int:
        return 0


def rows() -> torch.Tensor:
    found = torch.zeros(2, FLAGS + 1, dtype=torch.float64)
    found[:, WEIGHT] = 1.0
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_sixteen_bits_are_summed_in_thirty_two(dtype: torch.dtype):
    weight = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
    start = 256.0 if dtype is torch.bfloat16 else 2048.0  # the next number is 2 above
    mean = SummedMean([weight], [], Others(rows()))
    weight.grad = torch.tensor([start], dtype=dtype)
    mean.begin(1.0, due=0)
    mean.take(0)
    mean.finish()
    assert weight.grad.item() == torch.tensor((start + 2) / 3, dtype=dtype).item()


def test_a_rank_without_batches_is_not_named_for_the_step_that_another_is_not_in():
    found = rows()
    found[0, JOINED] = 1.0
    mean = SummedMean([torch.nn.Parameter(torch.zeros(1))], [], Others(found))
    with pytest.raises(StepMismatchError) as caught:
        mean.meet()
    assert caught.value.facts["ranks"] == [2]
    found[1, IN_STEP] = 1.0
    mean.meet()


def test_a_round_that_found_a_skipped_step_does_not_end_if_it_is_repeated():
    found = rows()
    found[1, STEPS] = 1.0
    mean = SummedMean([torch.nn.Parameter(torch.zeros(1))], [], Others(found))
    mean.begin(1.0, due=0)
    mean.take(0)
    for _ in range(2):
        with pytest.raises(StepMismatchError, match="rank 0 and 1 skipped"):
            mean.finish()


@pytest.mark.parametrize("part", ["table", "total"])
def test_an_exchange_that_was_interrupted_is_not_repeated(part: str, monkeypatch):
    """The other ranks may have its row and gradients, and may have gone on."""
    by, weight, calls = Others(rows()), torch.nn.Parameter(torch.zeros(1)), []
    rounds = GradientRounds([weight], SummedMean([weight], [], by), torch.optim.SGD([weight]))
    work = getattr(by, part)

    def interrupted(*operands: object) -> torch.Tensor | None:
        calls.append(work(*operands))
        if len(calls) == 1:
            raise KeyboardInterrupt
        return calls[-1]

    monkeypatch.setattr(by, part, interrupted)
    with pytest.raises(KeyboardInterrupt):
        rounds.finish()
    for _ in range(2):
        with pytest.raises(WorkerLostError, match="cannot repeat its part"):
            rounds.finish()
    assert len(calls) == 1


def test_buffers_of_another_device_are_refused():
    weight = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(ConfigError, match="buffers must be on"):
        SummedMean([weight], [torch.zeros(1, device="meta")], Others(rows()))

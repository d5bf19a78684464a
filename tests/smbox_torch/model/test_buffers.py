from __future__ import annotations

import pytest
import torch

from smbox_torch.model.buffers import float_buffers, named_counts, other_buffers


def test_buffers_of_batch_norm_are_taken_by_their_type():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    assert [tuple(b.shape) for b in float_buffers(model)] == [(3,), (3,)]
    assert [b.dtype for b in other_buffers(model)] == [torch.int64]


def test_buffers_without_a_mean_are_left_alone():
    model = torch.nn.BatchNorm1d(3)
    model.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
    model.running_var.fill_(torch.nan)  # of a worker that diverged: it takes the others' values
    assert [tuple(b.shape) for b in float_buffers(model)] == [(3,), (3,)]
    assert [tuple(b.shape) for b in other_buffers(model)] == [(), (3, 3)]


@pytest.mark.parametrize(
    "buffer",
    [
        torch.eye(3).to_sparse(),
        torch.eye(3, dtype=torch.int64).to_sparse(),
        torch.eye(3).to(torch.float8_e4m3fn),
    ],
)
def test_sparse_and_8_bit_buffers_are_left_alone(buffer: torch.Tensor):
    model = torch.nn.Module()
    model.register_buffer("own", buffer)
    assert (float_buffers(model), named_counts(model)) == ([], {})
    assert other_buffers(model) == [buffer]

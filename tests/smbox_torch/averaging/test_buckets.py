from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError
from smbox_torch.averaging import buckets
from smbox_torch.averaging.buckets import SharedRows, average, described, plan, shared_nbytes


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.zeros(shape, dtype=dtype) for shape in shapes]


def test_buckets_follow_the_reverse_order_and_their_size():
    cut = plan(tensors((16,), (16,), (16,), (64,)), 128)
    assert [[*bucket.members] for bucket in cut] == [[3], [2, 1], [0]]
    assert [bucket.limit - bucket.first for bucket in cut] == [256, 128, 64]


def test_every_parameter_has_a_place_of_its_own():
    mixed = [*tensors((3, 5), (7,)), *tensors((9,), (), dtype=torch.bfloat16), *tensors((2,))]
    cut = plan(mixed, 64)
    places = sorted(
        (first, first + mixed[index].nbytes, index)
        for bucket in cut
        for index, first in bucket.members.items()
    )
    assert sorted(index for *_, index in places) == list(range(5))
    assert all(limit <= first for (_, limit, _), (first, *_) in itertools.pairwise(places))
    assert {mixed[index].dtype for index in cut[0].members} == {cut[0].dtype}


def test_buckets_of_several_dtypes_follow_the_reverse_order_together():
    mixed = [tensors((3,), dtype=dtype)[0] for dtype in (torch.float32, torch.bfloat16) * 2]
    assert [[*bucket.members] for bucket in plan(mixed, 64)] == [[3], [2], [1], [0]]


def test_a_buffer_is_not_described_as_a_parameter():
    first, second = tensors((3,), (3,))
    assert described([first], [second], 64) != described([first, second], [], 64)


def test_dtypes_of_one_size_are_described_as_different():
    half, other = (tensors((3,), dtype=dtype) for dtype in (torch.float16, torch.bfloat16))
    assert described(half, [], 64) == described(tensors((3,), dtype=torch.float16), [], 64)
    assert described(half, [], 64) != described(other, [], 64)
    assert described([], half, 64) != described([], other, 64)


@pytest.mark.parametrize("members", [[], tensors((2,), dtype=torch.int64)])
def test_what_has_no_mean_is_refused(members):
    with pytest.raises(ConfigError):
        plan(members, 100)


def shared(parameters: list[torch.Tensor], ranks: int) -> SharedRows:
    cut = plan(parameters, 1 << 20)
    nbytes = shared_nbytes(cut, ranks, len(parameters), 8)
    rows = SharedRows(np.zeros(nbytes, np.uint8), cut, ranks, len(parameters))
    rows.weights[:] = memoryview(np.ones(ranks))
    return rows


def test_the_parts_of_all_ranks_make_the_mean_with_the_same_bits_everywhere():
    rows = shared(tensors((37,)), ranks=3)
    values = np.random.default_rng(0).standard_normal((3, 48)).astype(np.float32)
    for rank in range(3):
        rows.bucket(rank, 0).copy_(torch.from_numpy(values[rank]))
    for part in range(3):
        rows.reduce(0, part)
    np.testing.assert_allclose(rows.bucket(0, 0), values.mean(axis=0), rtol=1e-5, atol=1e-7)
    for rank in range(3):
        assert rows.bucket(rank, 0).numpy().tobytes() == rows.bucket(0, 0).numpy().tobytes()


def test_the_mean_of_equal_rows_is_that_row():
    rows = shared(tensors((37,)), ranks=3)
    values = torch.randn(48)
    for rank in range(3):
        rows.bucket(rank, 0).copy_(values)
    for part in range(3):
        rows.reduce(0, part)
    assert rows.bucket(2, 0).numpy().tobytes() == values.numpy().tobytes()


def test_a_part_of_many_blocks_is_averaged_whole(monkeypatch):
    monkeypatch.setattr(buckets, "BLOCK_NBYTES", 20)
    rows = shared(tensors((37,)), ranks=2)
    for rank in range(2):
        rows.bucket(rank, 0).copy_(torch.arange(48) * (2 * rank + 1))
    rows.reduce(0, 0)
    assert rows.bucket(0, 0)[24:].tolist() == list(range(24, 48))
    rows.reduce(0, 1)
    for rank in range(2):
        assert rows.bucket(rank, 0).tolist() == [2 * each for each in range(48)]


def test_a_rank_of_weight_zero_is_not_even_read():
    rows = shared(tensors((16,)), ranks=2)
    rows.weights[1] = 0.0
    rows.bucket(0, 0).fill_(3.0)
    rows.bucket(1, 0).fill_(float("nan"))
    for part in range(2):
        rows.reduce(0, part)
    for rank in range(2):
        assert rows.bucket(rank, 0).tolist() == [3.0] * 16


def test_weights_make_a_weighted_mean():
    rows = [(torch.tensor([2.0, 4.0]), 3.0), (torch.tensor([6.0, 0.0]), 1.0)]
    assert average(rows).tolist() == [3.0, 3.0]
    assert rows[0][0].tolist() == [3.0, 3.0]
    assert rows[1][0].tolist() == [6.0, 0.0]


def test_sixteen_bits_are_summed_in_thirty_two():
    big = torch.tensor([256.0], dtype=torch.bfloat16)
    one = torch.tensor([1.0], dtype=torch.bfloat16)
    mean = average([(big, 1.0), *[(one, 1.0)] * 7])
    assert mean.dtype == torch.float32
    assert mean.item() == (256 + 7) / 8


def test_areas_do_not_overlap():
    rows = shared(tensors((5,), (3,)), ranks=2)
    for rank in range(2):
        rows.bucket(rank, 0).fill_(rank + 1)
    for used in rows.used:
        used[:] = bytes([7, 7])
    rows.state.fill_(255)
    assert [rows.bucket(rank, 0).unique().tolist() for rank in range(2)] == [[1], [2]]
    assert rows.weights.tolist() == [1.0, 1.0]
    assert [used.tolist() for used in rows.used] == [[7, 7], [7, 7]]
    assert rows.state.nbytes == 8

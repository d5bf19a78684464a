from __future__ import annotations

import importlib.util
import itertools

import pytest
import torch

from smbox_torch.demo import digits

if importlib.util.find_spec("sklearn") is None:  # the import takes a second
    pytest.skip("the demo extra is not installed", allow_module_level=True)


def test_the_split_is_disjoint_and_the_same_every_time():
    train, held_out = digits.load()
    again, _ = digits.load()
    other, _ = digits.load(seed=1)
    assert (len(train), len(held_out)) == (1437, 360)
    assert torch.equal(train.y, again.y)
    assert not torch.equal(train.y, other.y)
    assert 0 <= float(train.x.min()) <= float(train.x.max()) <= 1
    assert train.x.shape[1:] == (1, 8, 8)


def made(size: int) -> digits.Digits:
    return digits.Digits(torch.arange(size).float().view(-1, 1, 1, 1), torch.arange(size))


def test_shards_are_disjoint_and_complete():
    shards = [made(10).shard(rank, 3).y.tolist() for rank in range(3)]
    assert sorted(itertools.chain(*shards)) == list(range(10))


def test_every_picture_comes_once_before_any_comes_again():
    data = made(6)
    seen = [y.tolist() for _, y in digits.batches(data, 4, 3, seed=1)]
    assert [len(each) for each in seen] == [4, 4, 4]
    joined = list(itertools.chain(*seen))
    assert sorted(joined[:6]) == sorted(joined[6:]) == list(range(6))
    assert seen == [y.tolist() for _, y in digits.batches(data, 4, 3, seed=1)]


def test_networks_of_one_seed_are_equal_and_disturb_no_generator():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    one, two = digits.network(), digits.network()
    assert torch.equal(one[0].weight, two[0].weight)
    assert torch.equal(before, torch.random.get_rng_state())


def test_accuracy_counts_what_is_right_and_goes_on_training():
    model = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.eye_(model.weight)
    data = digits.Digits(torch.eye(2), torch.tensor([0, 0]))
    assert digits.accuracy(model, data) == 0.5
    assert model.training

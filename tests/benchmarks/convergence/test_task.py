from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import task
import torch


def test_an_archive_is_decoded_once(archive: Path, cache: Path):
    train, validation = task.load(cache, 1.0)
    assert (len(train), len(validation), len(task.load_test(cache))) == (29, 3, 8)
    assert train.x.shape == (29, 32, 32, 3)
    assert train.x.dtype == torch.uint8
    assert sorted([*train.y.tolist(), *validation.y.tolist()]) == [0] * 16 + [1] * 16
    assert train.y.tolist() != sorted(train.y.tolist())
    archive.unlink()
    task.decode(archive, cache)


def test_torchvisions_own_set_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def read(root: Path, *, train: bool) -> SimpleNamespace:
        count = 6 if train else 2
        data = np.full((count, 32, 32, 3), count, np.uint8)
        return SimpleNamespace(data=data, targets=list(range(count)))

    for name in ("torchvision", "torchvision.datasets"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["torchvision.datasets"].CIFAR10 = read
    task.decode(tmp_path, tmp_path / "cache")
    train, validation = task.load(tmp_path / "cache", 1.0)
    assert (len(train), len(validation)) == (5, 1)
    assert sorted([*train.y.tolist(), *validation.y.tolist()]) == list(range(6))
    assert task.load_test(tmp_path / "cache").y.tolist() in ([0, 1], [1, 0])
    assert int(train.x.max()) == 6


def test_a_share_and_its_shards_divide_the_training_pictures(cache: Path):
    train, validation = task.load(cache, 0.5)
    assert (len(train), len(validation)) == (14, 3)
    shards = [train.shard(rank, 3) for rank in range(3)]
    assert [len(shard) for shard in shards] == [5, 5, 4]
    pixels = torch.cat([shard.x for shard in [*shards, validation]]).flatten(1)
    assert len(torch.unique(pixels, dim=0)) == 17


def test_batches_show_every_picture_before_any_again():
    pictures = task.Pictures(torch.zeros(6, 32, 32, 3, dtype=torch.uint8), torch.arange(6))
    found = [y.tolist() for _, y in task.batches(pictures, 4, 3, seed=1)]
    assert [len(each) for each in found] == [4, 4, 4]
    shown = [number for each in found for number in each]
    assert sorted(shown[:6]) == sorted(shown[6:]) == list(range(6))
    assert found != [y.tolist() for _, y in task.batches(pictures, 4, 3, seed=2)]


@pytest.mark.parametrize("name", task.NETWORKS)
def test_a_batch_is_scaled_and_fits_the_networks(name: str, cache: Path):
    if name == "resnet":
        pytest.importorskip("torchvision")
    train, validation = task.load(cache, 1.0)
    x, _ = next(task.batches(train, 29, 1, seed=0))
    assert x.shape == (29, 3, 32, 32)
    assert abs(float(x.mean())) < 0.2
    model = task.network(name, seed=3)
    assert model(x).shape == (29, 10)
    assert 0.0 <= task.accuracy(model, validation) <= 1.0


def test_networks_of_one_seed_are_equal():
    first, second, other = (task.network("convolutions", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first[0].weight, second[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)


class SaysOne(torch.nn.Module):
    was_training = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.was_training = self.training
        return torch.eye(10)[torch.ones(len(x), dtype=torch.int64)]


def test_accuracy_counts_what_is_right_in_evaluation_mode():
    pictures = task.Pictures(
        torch.zeros(5, 32, 32, 3, dtype=torch.uint8), torch.tensor([1, 1, 1, 0, 2])
    )
    model = SaysOne()
    assert task.accuracy(model, pictures) == 0.6
    assert not model.was_training
    assert model.training

"""The task of the comparison: CIFAR-10, a small network, and a ResNet with batch norm.

N pictures of a set, each ``u8[32, 32, 3]``, the layout that convolutions of one thread are
fastest with. They are decoded once into ``.npy`` files, which
every worker maps: the pages are shared, and a run begins at once. The last tenth of the
training pictures is the validation set: nobody trains on it.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

MEAN, SPREAD = 120.7, 64.0
"""Of all pixels of the training set, over the three colors."""

VALIDATION = 0.1
"""Share of the training pictures."""

EVALUATED_AT_ONCE = 500
PARTS = ("train", "test")

Sets = dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]
"""Pictures ``u8[N, 32, 32, 3]`` and their classes ``i64[N]``, by part."""


@dataclass(frozen=True)
class Pictures:
    """Pictures and what they show.

    Attributes:
        x: ``u8[N, 32, 32, 3]``.
        y: ``i64[N]``, the class.
    """

    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        return len(self.y)

    def shard(self, rank: int, world_size: int) -> Self:
        """Return every world_size-th picture, beginning at rank: the shards are disjoint."""
        return type(self)(self.x[rank::world_size], self.y[rank::world_size])

    def first(self, count: int) -> Self:
        """Return the first so many pictures; they are in no order."""
        return type(self)(self.x[:count], self.y[:count])


def decode(data: Path, cache: Path) -> None:
    """Decode the pictures into ``cache``, unless they are there.

    Args:
        data: a tar.gz that holds ``PART/CLASS/NAME.jpg`` for the parts train and test, or the
            folder of torchvision's own CIFAR10.
        cache: folder of the ``.npy`` files; it is made.
    """
    if is_decoded(cache):
        return
    if not data.exists():
        raise FileNotFoundError(f"no pictures at {data}, nor in {cache}: give --data")
    keep((_from_torchvision if data.is_dir() else _from_archive)(data), cache)


def is_decoded(cache: Path) -> bool:
    """Tell whether the folder holds all ``.npy`` files."""
    return all((cache / f"{part}-{what}.npy").is_file() for part in PARTS for what in "xy")


def keep(sets: Sets, cache: Path) -> None:
    """Write the parts train and test into ``cache``, in a random order, the same each time."""
    cache.mkdir(parents=True, exist_ok=True)
    for part, (x, y) in sets.items():
        order = np.random.default_rng(0).permutation(len(y))
        for what, values in (("x", x[order]), ("y", y[order])):
            beside = cache / f"{part}-{what}.{os.getpid()}.npy"
            np.save(beside, values)
            beside.rename(cache / f"{part}-{what}.npy")


def _from_archive(data: Path) -> Sets:
    from PIL import Image  # noqa: PLC0415 - an extra, needed once

    found: dict[str, list[tuple[str, NDArray[np.uint8]]]] = {part: [] for part in PARTS}
    with tarfile.open(data) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is None or not member.name.endswith(".jpg"):
                continue
            part, shown = Path(member.name).parts[-3:-1]
            pixels = np.asarray(Image.open(io.BytesIO(file.read())).convert("RGB"))
            found[part].append((shown, pixels))
    classes = sorted({shown for each in found.values() for shown, _ in each})
    return {
        part: (
            np.stack([pixels for _, pixels in each]),
            np.array([classes.index(shown) for shown, _ in each]),
        )
        for part, each in found.items()
    }


def _from_torchvision(data: Path) -> Sets:
    from torchvision.datasets import CIFAR10  # noqa: PLC0415 - not needed with the archive

    sets = {part: CIFAR10(data, train=part == "train") for part in PARTS}
    return {part: (each.data, np.array(each.targets)) for part, each in sets.items()}


def load(cache: Path, share: float) -> tuple[Pictures, Pictures]:
    """Map the decoded pictures, but not those of the test set.

    Args:
        cache: folder that :func:`decode` has filled.
        share: of the training set to use, above 0 and at most 1.

    Returns:
        Training and validation pictures; both are in a random order, the same each time.
    """
    whole = _mapped(cache, "train")
    kept = len(whole) - max(1, round(VALIDATION * len(whole)))
    validation = Pictures(whole.x[kept:], whole.y[kept:])
    return whole.first(max(1, round(share * kept))), validation


def load_test(cache: Path) -> Pictures:
    """Map the test pictures: once at the end of a final run, and nowhere else."""
    return _mapped(cache, "test")


def _mapped(cache: Path, part: str) -> Pictures:
    # "c": torch wants memory that it may write to
    x, y = (np.load(cache / f"{part}-{what}.npy", mmap_mode="c") for what in "xy")
    return Pictures(torch.from_numpy(x), torch.from_numpy(y))


def _convolutions() -> nn.Module:
    """Return three convolutions and a linear layer: 33 834 parameters, no batch norm."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 10))


def _resnet() -> nn.Module:
    """Return torchvision's smallest ResNet of basic blocks: 4 910 922 parameters.

    One block in each of the four stages. The width is torchvision's, 64 to 512 channels:
    ``BasicBlock`` refuses any other ``width_per_group``.
    """
    from torchvision.models.resnet import BasicBlock, ResNet  # noqa: PLC0415 - an extra

    return ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convolutions": _convolutions,
    "resnet": _resnet,
}


def network(name: str, *, seed: int) -> nn.Module:
    """Return a network of NETWORKS, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[name]()


def batches(
    pictures: Pictures, size: int, steps: int, *, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield so many batches; every picture comes once before any comes again.

    Args:
        pictures: to choose from.
        size: of a batch, B.
        steps: batches.
        seed: of the order.

    Yields:
        ``f32[B, 3, 32, 32]`` in channels-last order, of mean 0 and spread 1, and ``i64[B]``.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        while len(order) < size:
            order = torch.cat([order, torch.randperm(len(pictures), generator=generator)])
        chosen, order = order[:size], order[size:]
        yield _scaled(pictures.x[chosen]), pictures.y[chosen]


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 3, 1, 2).float().sub_(MEAN).div_(SPREAD)


@torch.no_grad()
def accuracy(model: nn.Module, pictures: Pictures) -> float:
    """Return the share of pictures named rightly; the model is left in training mode."""
    right = 0
    model.eval()
    for first in range(0, len(pictures), EVALUATED_AT_ONCE):
        chosen = slice(first, first + EVALUATED_AT_ONCE)
        found = model(_scaled(pictures.x[chosen])).argmax(dim=1)
        right += int((found == pictures.y[chosen]).sum())
    model.train()
    return right / len(pictures)

"""Pictures of 224 x 224 in three classes, made of photographs.

Without data: random crops of scikit-learn's two sample photographs; the classes are the upper
and the lower half of china.jpg, and flower.jpg. With data: pictures of an archive's first three
classes, PART/CLASS/NAME.jpg, enlarged.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

CLASSES = 3
SIZE = 224
CROP_MIN, CROP_MAX = 96, 200
"""Sides of a crop, in pixels, before it is enlarged."""


def load(count: int, data: Path | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures ``f32[count, 3, 224, 224]`` from -1 to 1, and classes ``i64[count]``."""
    made = _crops(count) if data is None else _archived(count, data)
    pixels = np.stack([np.asarray(each.resize((SIZE, SIZE))) for each in made])
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)
    return x.contiguous(), torch.arange(count) % CLASSES


def _crops(count: int) -> list[Image.Image]:
    china, flower = (Image.fromarray(pixels) for pixels in load_sample_images().images)
    width, height = china.size
    halves = [china.crop((0, at, width, at + height // 2)) for at in (0, height // 2)]
    sources = [*halves, flower]
    random = np.random.default_rng(0)
    found = []
    for number in range(count):
        source = sources[number % CLASSES]
        side = int(random.integers(CROP_MIN, CROP_MAX))
        left = int(random.integers(0, source.width - side))
        top = int(random.integers(0, source.height - side))
        found.append(source.crop((left, top, left + side, top + side)))
    return found


def _archived(count: int, data: Path) -> list[Image.Image]:
    """Return pictures of the first classes that the archive names, in turn."""
    found: dict[str, list[Image.Image]] = {}
    wanted = -(-count // CLASSES)
    with tarfile.open(data) as archive:
        for member in archive:
            if not member.name.endswith(".jpg"):
                continue
            mine = found.setdefault(Path(member.name).parts[-2], [])
            file = archive.extractfile(member)
            if len(mine) < wanted and file is not None:
                mine.append(Image.open(io.BytesIO(file.read())).convert("RGB"))
    classes = [mine for _, mine in sorted(found.items())][:CLASSES]
    if len(classes) < CLASSES or min(map(len, classes)) < wanted:
        raise ValueError(f"{data} has fewer than {CLASSES} classes of {wanted} pictures")
    return [classes[number % CLASSES][number // CLASSES] for number in range(count)]

"""Data sets of a few pictures and words, in the formats that the scripts read.

``run`` runs code in a process of its own: frameworks keep much per process.
"""

from __future__ import annotations

import importlib.util
import os
import random
import secrets
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

MARK = "SMBOXTEST_RAY"
CLASSES = ("airplane", "automobile", "bird")

BEGIN = """
import sys
import pytest
from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
"""


def pictures(folder: Path, *, train: int = 32, test: int = 12) -> Path:
    """CIFAR-10's pictures as torchvision's ImageFolder reads them: a colour for each class."""
    random_numbers = np.random.default_rng(1)
    for part, count in (("train", train), ("test", test)):
        for channel, name in enumerate(CLASSES):
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = random_numbers.integers(0, 120, (32, 32, 3), dtype=np.uint8)
                pixels[..., channel] += 120
                Image.fromarray(pixels).save(folder / part / name / f"{number:04}.png")
    return folder


def digits(folder: Path, *, train: int = 192, test: int = 48) -> Path:
    """MNIST's files as torchvision reads them: the bar of a digit is at its height."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    random_numbers = np.random.default_rng(2)
    for part, count in (("train", train), ("t10k", test)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = random_numbers.integers(0, 60, (count, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 + 2 * label : 4 + 2 * label] += 190
        header = struct.pack(">4i", 0x803, count, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = struct.pack(">2i", 0x801, count)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())
    return folder


def text(path: Path, *, sentences: int = 400) -> Path:
    """Sentences of few words, each of which says what comes next."""
    random_numbers = random.Random(3)
    subjects = ("the cat", "a dog", "the old bird", "my friend")
    verbs = ("sees", "hears", "finds")
    said = [
        f"{random_numbers.choice(subjects)} {random_numbers.choice(verbs)} the red house ."
        for _ in range(sentences)
    ]
    path.write_text("\n".join(said), encoding="utf-8")
    return path


def make(folder: Path, **counts: int) -> Path:
    """Make all data sets in a folder: cifar with ``counts`` of pictures, mnist, input.txt."""
    folder.mkdir(exist_ok=True)
    pictures(folder / "cifar", **counts)
    digits(folder / "mnist")
    text(folder / "input.txt")
    return folder


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the data sets."""
    return make(tmp_path_factory.mktemp("data"), train=8, test=4)


@pytest.fixture
def run(frameworks: str, tmp_path: Path) -> Callable[..., None]:
    """Run code in a new process; skip the test if a framework that it needs is missing."""

    def run(code: str, *needed: str, python: str = frameworks) -> None:
        for name in needed:
            if importlib.util.find_spec(name) is None:
                pytest.skip(f"needs {name}: pip install 'smbox[frameworks]'")
        done = subprocess.run(
            [python, "-c", BEGIN + code],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return run


@pytest.fixture(scope="module")
def ray_environment() -> Iterator[dict[str, str]]:
    """An environment for Ray, which is left without processes and files in the end."""
    folder = tempfile.mkdtemp(prefix="smbox-ray-", dir="/tmp")  # short: for unix sockets
    mark = secrets.token_hex(8)
    kept = {key: text for key, text in os.environ.items() if "SMBOX_" not in key}
    more = {MARK: mark, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": folder}
    try:
        yield kept | more | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    finally:
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == mark:
                    process.kill()
            except psutil.Error:
                continue
        shutil.rmtree(folder)

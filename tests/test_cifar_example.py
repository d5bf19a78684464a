"""Tests of examples/train.py with a small data set in the format of CIFAR-10."""

from __future__ import annotations

import hashlib
import pickle
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

TRAIN = Path(__file__).resolve().parent.parent / "examples" / "train.py"
PICTURES = 20


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write batches as CIFAR10 reads them, and patch the MD5 sums that it checks."""
    needed = "needs torchvision: pip install 'smbox[vision]'"
    CIFAR10 = pytest.importorskip("torchvision.datasets", reason=needed).CIFAR10
    random_numbers = np.random.default_rng(1)
    folder = tmp_path / CIFAR10.base_folder
    folder.mkdir()

    def written(name: str, content: dict) -> str:
        (folder / name).write_bytes(pickle.dumps(content))
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    def batch(name: str) -> list[str]:
        pixels = random_numbers.integers(0, 256, (PICTURES, 3072), dtype=np.uint8)
        return [
            name,
            written(name, {"data": pixels, "labels": [i % 10 for i in range(PICTURES)]}),
        ]

    for which in ("train_list", "test_list"):
        monkeypatch.setattr(
            CIFAR10, which, [batch(name) for name, _ in getattr(CIFAR10, which)]
        )
    meta = {**CIFAR10.meta, "md5": written("batches.meta", {"label_names": list("abcdefghij")})}
    monkeypatch.setattr(CIFAR10, "meta", meta)
    return tmp_path


def test_the_example_trains_on_it(
    cifar: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["train.py", "--cifar", str(cifar), "--epochs", "1"])
    names = runpy.run_path(str(TRAIN), run_name="__main__")
    assert capsys.readouterr().out.startswith("accuracy ")
    train, test = names["cifar"](str(cifar))
    assert (len(train), len(test)) == (5 * PICTURES, PICTURES)
    assert train[0][0].shape == (3, 32, 32)

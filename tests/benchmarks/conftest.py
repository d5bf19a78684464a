"""Benchmarks are scripts, no package: their folders go where Python looks for modules."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "convergence")]
torch.set_num_threads(1)

CLASSES = ("cat", "dog")


@pytest.fixture
def forking(preloaded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a benchmark starts from here begin with torch imported."""
    monkeypatch.setattr(sys, "executable", preloaded)


@pytest.fixture
def program(preloaded: str) -> Callable[..., str]:
    """``program(path, *words)``: what a program prints; it has to succeed.

    It and its processes begin with torch imported, unless ``python`` says otherwise. Lines that
    PyTorch 2.9 prints for Gloo are left out.
    """

    def run(
        path: str | Path, *words: object, python: str = preloaded, timeout_s: float = 280.0
    ) -> str:
        done = subprocess.run(
            [python, path, *map(str, words)],
            env={name: value for name, value in os.environ.items() if "SMBOX_" not in name},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        lines = done.stdout.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("[Gloo]"))

    return run


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A small set as the archive of JPEGs has it: 2 classes, 16 + 4 pictures of each."""
    path = tmp_path / "small.tar.gz"
    random = np.random.default_rng(0)
    with tarfile.open(path, "w:gz") as whole:
        for part, count in (("train", 16), ("test", 4)):
            for shown in CLASSES:
                for number in range(count):
                    pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                    file = io.BytesIO()
                    Image.fromarray(pixels).save(file, "JPEG")
                    info = tarfile.TarInfo(f"cifar/{part}/{shown}/{number:04}.jpg")
                    info.size = file.tell()
                    file.seek(0)
                    whole.addfile(info, file)
    return path


@pytest.fixture
def cache(archive: Path, tmp_path: Path) -> Path:
    """The small set, decoded."""
    import task

    task.decode(archive, tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def made() -> Callable[..., dict]:
    """``made(row, seed, accuracy)``: a result as sweep.py leaves it."""
    from catalog import ROWS
    from rows import Settings

    def result(row: str, seed: int, accuracy: float, **other) -> dict:
        counts = {"exchanges": 8, "nbytes": 4 << 20, "exchange_ms": 10.0, "hidden_ms": 2.5}
        none = dict.fromkeys(counts, 0)
        alone = ROWS[row].workers == 1
        return {
            "settings": Settings(ROWS[row], seed).as_json(),
            "cpu": "a cpu",
            "cores": 2,
            "torch": "2.0",
            "accuracy": accuracy,
            "loss": 0.5,
            "curve": [[0.5, 8.0, accuracy / 2], [1.0, 16.0, accuracy]],
            "error": "",
            "ended": 4,
            "samples": 50_000,
            "wall_s": 20.0,
            "took_s": 30.0,
            "cpu_s": 30.0,
            "node_cpu_s": 2.0,
            "staleness": {} if alone else {"0": 1, "3": 3},
            "stats": none if alone else counts,
            "group": counts if ROWS[row].kind == "hybrid" else none,
        } | other

    return result

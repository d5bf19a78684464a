"""How long each model computes: measured once on this machine, and kept with the results."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import result_files
import torch

from smbox_torch.planning import models

BATCH = 8
MEASURED = ("resnet50", "alexnet", "vgg16")
"""Models whose rows run in the laboratory, in this order."""

PREDICTED = ("vgg19", "resnet152")
"""Models of which the planner alone tells."""

FILE = "compute.json"
ROUNDS = 3


def times(folder: Path) -> dict[str, Any]:
    """Return what was measured, and measure first where nothing was.

    Args:
        folder: of the results.

    Returns:
        batch, cores, torch, and seconds: by model, of a forward and backward pass.
    """
    path = folder / FILE
    if not path.exists():
        print("measuring how long the models compute: some 3 minutes", flush=True)
        result_files.store(path, measure())
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def measure() -> dict[str, Any]:
    """Measure all models on all cores; see :func:`times`."""
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    names = (*MEASURED, *PREDICTED)
    seconds = {name: round(models.measure_compute_s(name, BATCH, ROUNDS), 3) for name in names}
    return {"batch": BATCH, "cores": cores, "torch": torch.__version__, "seconds": seconds}

"""Runs one row in the laboratory, and works out its figures."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lab
import torch

from server_or_ring.rows import Row, predicted
from server_or_ring.worker import QUIET_S
from smbox_torch.planning.file import FLOAT32

LAB = Path(lab.__file__).parent
WORKER = Path(__file__).with_name("worker.py")
COUNTED = ("in_bytes", "in_packets", "out_bytes", "out_packets")
PATIENCE_S = 240.0
PATIENCE = 6.0
"""A row has failed after PATIENCE_S and so many times what the planner says."""
TAIL = 3000


class RowFailedError(Exception):
    """A row did not end as it should; the message holds what was printed."""


def run(row: Row) -> dict[str, Any]:
    """Run a row.

    Returns:
        Its figures, ready for JSON; see :func:`figures`.

    Raises:
        RowFailedError: a worker failed, or the row took far longer than the planner says.
    """
    elements = sum(
        math.ceil(size / row.scale) for layer in row.layers() for size in layer.sizes
    )
    with tempfile.TemporaryDirectory(prefix="smbox-server-or-ring-") as name:
        folder = Path(name)
        (folder / "row.json").write_text(row.as_json())
        (folder / "lab.toml").write_text(row.laboratory(FLOAT32 * elements))
        _run(row, folder)
        reports = [
            json.loads((folder / f"{rank}.json").read_text()) for rank in range(row.workers)
        ]
        lines = (folder / "lab.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    return figures(row, elements, reports, samples)


def _run(row: Row, folder: Path) -> None:
    words = [sys.executable, str(LAB), "run", "--out", str(folder / "lab.jsonl")]
    words += ["--wait-s", str(row.wait_s), *(["--torchrun"] if row.way == "ddp" else [])]
    words += [str(folder / "lab.toml"), str(WORKER), str(folder / "row.json"), str(folder)]
    paths = [str(LAB.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    limit_s = PATIENCE_S + PATIENCE * row.timed * _foreseen_s(row)
    try:
        done = subprocess.run(
            words, env=env, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as error:  # the laboratory ends with its first process
        raise RowFailedError(f"it did not end within {limit_s:.0f} s") from error
    if done.returncode:
        raise RowFailedError((done.stdout + done.stderr)[-TAIL:])


def _foreseen_s(row: Row) -> float:
    """Return the planner's seconds of an iteration in the laboratory."""
    parameters = sum(sum(layer.sizes) for layer in row.layers())
    return predicted(row, parameters).iteration_s / row.scale


def figures(
    row: Row,
    elements: int,
    reports: Sequence[Mapping[str, float]],
    samples: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Work out a row's figures, of the whole model: scaled back where the model was scaled.

    Args:
        row: that ran.
        elements: of the model that was trained, after scaling.
        reports: of the workers: ``began_s`` and ``ended_s`` on the monotonic clock.
        samples: lines of the laboratory's record.

    Returns:
        ``row``; ``iteration_s``, ``images_per_s``, ``speed_up``, ``utilisation``; ``elements``;
        ``hosts``: by name bytes and packets of an iteration, times the scale; ``over_time``: as
        measured, by host lists of seconds since the beginning, bytes and packets in and out;
        ``cores``: busy on the machine; ``machine``.
    """
    began_s = min(each["began_s"] for each in reports)
    ended_s = max(each["ended_s"] for each in reports)
    seconds = ended_s - began_s
    iteration_s = seconds / row.timed * row.scale
    hosts = list(dict.fromkeys(sample["host"] for sample in samples))
    mine = {host: [each for each in samples if each["host"] == host] for host in hosts}
    window = (began_s - QUIET_S / 2, ended_s + QUIET_S)  # a sample may be late
    share = row.scale / row.timed
    return {
        "row": asdict(row),
        "elements": elements,
        "iteration_s": iteration_s,
        "images_per_s": row.batch * row.workers / iteration_s,
        "speed_up": row.workers * row.compute_s / iteration_s,
        "utilisation": row.compute_s / iteration_s,
        "hosts": {
            host: {name: share * between(mine[host], name, *window) for name in COUNTED}
            for host in hosts
        },
        "over_time": {
            host: [
                [round(each["clock_s"] - began_s, 2), *(each[name] for name in COUNTED)]
                for each in mine[host]
                if window[0] - QUIET_S / 2 <= each["clock_s"] <= window[1] + QUIET_S
            ]
            for host in hosts
        },
        "cores": sum(between(mine[host], "cpu_s", *window) for host in hosts)
        / (window[1] - window[0]),
        "machine": {"cores": len(os.sched_getaffinity(0)), "torch": torch.__version__},
    }


def between(
    samples: Sequence[Mapping[str, Any]], name: str, first_s: float, limit_s: float
) -> float:
    """Return how much a host used between two moments; within a sample it is taken as even.

    Args:
        samples: of one host, each with what it used since the one before.
        name: of the field.
        first_s: on the clock of the samples.
        limit_s: the same.
    """
    total = 0.0
    for before, each in itertools.pairwise(samples):
        begin, end = before["clock_s"], each["clock_s"]
        overlap = min(end, limit_s) - max(begin, first_s)
        if overlap > 0:
            total += each[name] * overlap / (end - begin)
    return total

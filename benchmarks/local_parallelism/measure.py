"""Train AlexNet and VGG16 on one machine by one process, several, or a pipeline.

python benchmarks/local_parallelism/measure.py [--only 'alexnet-*'] [--data cifar10.tar.gz]
python benchmarks/local_parallelism/measure.py --page

A finished row stays in OUT/ROW.json, by default in ``results`` beside this file, and is not
repeated. Rows run one after the other, each in processes of its own beside a memory node.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where result_files.py is

import command_line
import report
import result_files
import torch
from estimator import Estimator
from pending_runs import PendingRuns
from plan import BATCH, BATCHES, ROWS, Row
from result_files import Result

import smbox

OUT = Path(__file__).with_name("results")
WORKER = Path(__file__).with_name("work.py")
EACH_S = 20.0
"""Of a row; for the estimate."""
TIMEOUT_S = 900.0
SAID_CHARACTERS = 4000


class RowFailedError(Exception):
    """A process of a row failed; the message holds what it printed."""


def measured(row: Row, data: Path | None, *, is_tiny: bool) -> dict[str, Any]:
    """Run one row, and return its result.

    Raises:
        RowFailedError: a process failed, or the time is over; all are ended.
    """
    with smbox.local(memory="512MiB") as box, contextlib.ExitStack() as files:
        outputs = [files.enter_context(tempfile.TemporaryFile()) for _ in range(row.processes)]
        workers = [
            subprocess.Popen(
                _command(row, data, is_tiny=is_tiny),
                env=_env(row, rank, box.address),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            for rank, output in enumerate(outputs)
        ]
        try:
            _watch(workers)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        said = []
        for output in outputs:
            output.seek(0)
            said.append(output.read().decode(errors="replace"))
    if any(worker.returncode for worker in workers):
        raise RowFailedError("\n".join(each[-SAID_CHARACTERS:] for each in said))
    return _result(row, data, [json.loads(each.splitlines()[-1]) for each in said])


def _watch(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Return when all have ended, or one has failed, or the time is over."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while any(worker.poll() is None for worker in workers):
        if any(worker.returncode for worker in workers) or time.monotonic() > deadline_s:
            return
        time.sleep(0.1)


def _command(row: Row, data: Path | None, *, is_tiny: bool) -> list[str]:
    sizes = json.dumps({"batch": row.batch, "batches": row.batches})
    more = (["--data", str(data)] if data else []) + (["--tiny"] if is_tiny else [])
    return [sys.executable, str(WORKER), row.name, "--sizes", sizes, *more]


def _env(row: Row, rank: int, address: str) -> dict[str, str]:
    """Return a process's environment: torchrun's variables, and where the memory is."""
    told = {
        "RANK": rank,
        "WORLD_SIZE": row.processes,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": row.processes,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _port(address),
        "TORCHELASTIC_RUN_ID": f"{row.name}-{os.getpid()}",
        "OMP_NUM_THREADS": row.threads,
        "SMBOX_ADDRESS": address,
    }
    base = {name: value for name, value in os.environ.items() if "SMBOX_" not in name}
    return base | {name: str(value) for name, value in told.items()}


def _port(address: str) -> int:
    """Return the memory node's port: it only tells this run from others of the host."""
    return int(address.rpartition(":")[2])


def _result(row: Row, data: Path | None, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    took_s = max(each["ended_s"] for each in found) - min(each["began_s"] for each in found)
    cpu_s = sum(each["cpu_s"] for each in found)
    return {
        "row": row.name,
        "batch": row.batch,
        "batches": row.batches,
        "data": data.name if data else "scikit-learn's sample photographs",
        "machine": {
            "host": socket.gethostname(),
            "processor": platform.processor() or platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "torch": torch.__version__,
        },
        "images_per_s": row.timed / took_s,
        "cpu_s_per_image": cpu_s / row.timed,
        "pss_mib": sum(each["pss_mib"] for each in found),
        "rss_peak_mib": sum(each["rss_peak_mib"] for each in found),
        "loss": found[-1]["loss"],
        "processes": found,
    }


def _read(words: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line.parser(__doc__, "only", "page", "docs", "dry_run", out=OUT)
    parser.add_argument("--data", type=Path, help="tar.gz of PART/CLASS/NAME.jpg")
    for model in BATCH:
        parser.add_argument(f"--{model}-batch", type=int, default=BATCH[model])
        parser.add_argument(f"--{model}-batches", type=int, default=BATCHES[model])
    parser.add_argument("--tiny", action="store_true", help="a small network: for a test")
    read = parser.parse_args(words)
    read.only = command_line.selected(parser, read, ROWS)
    return read


def _rows(read: argparse.Namespace) -> list[Row]:
    return [
        row.sized(getattr(read, f"{row.model}_batch"), getattr(read, f"{row.model}_batches"))
        for row in (ROWS[name] for name in read.only)
    ]


def _shown(_: Row, result: Result) -> str:
    return (
        f"{result['images_per_s']:8.2f} images/s"
        f" {result['cpu_s_per_image']:8.3f} CPU s/image {result['pss_mib']:8.0f} MiB"
    )


def main(words: Sequence[str] | None = None) -> None:
    """Run the rows that are missing, or write the page."""
    read = _read(words)
    if read.page:
        found = result_files.load(read.out, ROWS.values())
        report.write({row.name: result for row, result in found}, read.docs)
        return
    estimator = Estimator(lambda _: EACH_S, alike=lambda row: row)
    missing = PendingRuns(_rows(read), read.out, estimator)
    missing.report()
    if not read.dry_run:
        missing.run(lambda row, _: measured(row, read.data, is_tiny=read.tiny), _shown)


if __name__ == "__main__":
    main()

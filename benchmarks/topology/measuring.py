"""Runs one row in the laboratory: four hosts on two islands, a worker and a node on each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from lab import counters, hosts, nodes, spec
from lab.counters import Use
from result_files import Result

from smbox.cli.bench.command import cpu_name
from topology.rows import Settings

ISLANDS: Final = ("west", "east")
EACH: Final = 2
"""Hosts of an island."""
STOP_S: Final = 60.0


def laboratory(settings: Settings) -> spec.Spec:
    """Describe the hosts and islands."""
    words = [f"keys = true\nrate_mbit = {settings.within_mbit}"]
    for name in ISLANDS:
        words.append(f'[[island]]\nname = "{name}"\nrate_mbit = {settings.between_mbit}')
        words.append(f'[[host]]\nname = "{name}"\nisland = "{name}"\ncount = {EACH}')
        words.append('workers = 1\nmemory = "256MiB"')
    return spec.read("\n".join(words).encode())


def run(settings: Settings) -> Result:
    """Run a row; inside an enclosure.

    Returns:
        settings; images_per_s of all workers; step_s; slow_nbytes, both ways, that a step sent
        over the link of an island; compute_s of a step alone; of "auto" groups, center, cuts
        with their predictions, and table.
    """
    described = laboratory(settings)
    with (
        hosts.standing(described) as stand,
        nodes.serving(stand, has_keys=described.keys) as told,
        counters.Counters(stand) as counts,
        ExitStack() as stack,
    ):
        run_id = uuid.uuid4().hex
        workers = [
            _worker(host, rank, len(stand), settings, told | {"SMBOX_RUN_ID": run_id})
            for rank, host in enumerate(stand)
        ]
        for worker in workers:
            stack.callback(_end, worker)
        shown = [_line(worker) for worker in workers]
        before = counts.read_islands(described.islands)
        _tell(workers)
        seconds = max(float(_line(worker)["seconds"]) for worker in workers)
        after = counts.read_islands(described.islands)
        _tell(workers)
        for worker in workers:
            worker.wait(STOP_S)
    images = settings.steps * settings.batch * len(workers)
    slow = _passed(before, after)
    found = {"groups", "center", "cuts", "table", "nbytes"} & shown[0].keys()
    if any(each.get("groups") != shown[0].get("groups") for each in shown):
        raise RuntimeError(f"the workers disagree: {[each['groups'] for each in shown]}")
    return {
        "settings": asdict(settings),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "images_per_s": images / seconds,
        "step_s": seconds / settings.steps,
        "slow_nbytes": slow / settings.steps,
        "compute_s": max(each["compute_s"] for each in shown),
        "ended": time.strftime("%Y-%m-%d"),
    } | {name: shown[0][name] for name in sorted(found)}


def _passed(before: dict[str, Use], after: dict[str, Use]) -> int:
    """Return the bytes that passed the link of the first island, both ways.

    What leaves one island arrives at the other, so the other island's link has carried the
    same bytes.
    """
    first, last = before[ISLANDS[0]], after[ISLANDS[0]]
    return last.in_bytes + last.out_bytes - first.in_bytes - first.out_bytes


def _worker(
    host: hosts.Host, rank: int, world_size: int, settings: Settings, told: dict[str, str]
) -> subprocess.Popen[str]:
    place: dict[str, object] = {"RANK": rank, "WORLD_SIZE": world_size}
    place |= {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    place |= {"GROUP_RANK": rank, "GROUP_WORLD_SIZE": world_size}
    env = {name: value for name, value in os.environ.items() if not name.startswith("SMBOX_")}
    env |= {f"SMBOX_{name}": str(value) for name, value in place.items()} | told
    env["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).resolve().parents[1]), env.get("PYTHONPATH", "")]
    )
    env["OMP_NUM_THREADS"] = "1"
    return subprocess.Popen(
        [
            *host.enter(),
            *(sys.executable, "-m", "topology.training", json.dumps(asdict(settings))),
        ],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def _line(worker: subprocess.Popen[str]) -> dict[str, Any]:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError("a worker failed; its words are above")
    found: dict[str, Any] = json.loads(line)
    return found


def _tell(workers: Sequence[subprocess.Popen[str]]) -> None:
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")


def _end(worker: subprocess.Popen[str]) -> None:
    worker.kill()
    worker.communicate()

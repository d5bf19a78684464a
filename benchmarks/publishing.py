"""Weights from one publisher to many readers: smbox's pulls, files, gloo and redis, in one run.

python benchmarks/publishing.py [--mib 256] [--readers 8] [--rounds 15] [--json]
    [--transport auto]

Publisher and readers are processes of this host with one thread each. The ways take turns,
round by round, so that whatever else the machine does hits them alike. A round lasts from the
first process's start until the last reader has all weights in memory of its own; for the limit,
``np.copyto``, every reader copies the same mapped memory at once. redis takes part where both
its server and its Python client are installed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import distributed, nn

import smbox
from smbox_torch import Publisher, Subscriber

MIB = 1 << 20
LIMIT = "np.copyto"
GOAL = 0.6
SKIPPED = 2
"""Rounds before those that count: pages are touched, connections made."""

PAUSE_S = 0.0005
TIMEOUT_S = 300.0
PUBLISHER = 0
"""Its rank; readers have the others."""

Way = Callable[[int], None]
"""Moves the weights of a round, at the end of the rank that it was made for."""


def weights(nbytes: int) -> nn.ParameterList:
    """Return parameters of 4 MiB each, or one smaller one."""
    each = min(nbytes, 4 * MIB) // 4
    return nn.ParameterList(torch.zeros(each) for _ in range(nbytes // 4 // each))


def copyto(rank: int, box: smbox.Box, nbytes: int) -> Way:
    """Copy mapped memory, with nothing that says whether it is whole."""
    source = box.create("source", nbytes, "uint8", exist_ok=True).local()
    target = np.zeros(nbytes, np.uint8)

    def copy(_: int) -> None:
        if rank != PUBLISHER:
            np.copyto(target, source)

    return copy


def pull(rank: int, box: smbox.Box, nbytes: int, name: str, *, is_into: bool) -> Way:
    """Publish, and pull into the subscriber's memory, or into a module."""
    model = weights(nbytes)
    if rank == PUBLISHER:
        publisher = Publisher(box, name, model)

        def publish(number: int) -> None:
            _fill(model, number)
            publisher.publish()

        return publish
    subscriber = Subscriber(box, name)

    def read(number: int) -> None:
        into = model if is_into else None
        version = subscriber.pull(into, newer_than=subscriber.version, timeout_s=TIMEOUT_S)
        last = list(subscriber.state.values())[-1]
        assert version == number + 1
        assert last[-1] == number

    return read


def file(rank: int, folder: Path, nbytes: int) -> Way:
    """Save to a file of /dev/shm under another name, rename it; load by mmap into a module."""
    model = weights(nbytes)

    def save(number: int) -> None:
        _fill(model, number)
        (folder / f"{number - 1}.pt").unlink(missing_ok=True)
        torch.save(model.state_dict(), folder / "part")
        (folder / "part").rename(folder / f"{number}.pt")

    def load(number: int) -> None:
        path = folder / f"{number}.pt"
        while not path.exists():
            time.sleep(PAUSE_S)
        model.load_state_dict(torch.load(path, mmap=True, weights_only=True))

    return save if rank == PUBLISHER else load


def broadcast(nbytes: int) -> Way:
    """Broadcast one tensor by gloo."""
    flat = torch.zeros(nbytes // 4)

    def run(_: int) -> None:
        distributed.broadcast(flat, PUBLISHER)

    return run


def redis(rank: int, folder: Path, nbytes: int, readers: int) -> Way:
    """Set one value, tell each reader through a list of its own, get it."""
    client = importlib.import_module("redis").Redis(unix_socket_path=str(folder / "redis"))
    data = np.zeros(nbytes, np.uint8)

    def give(_: int) -> None:
        client.set("weights", memoryview(data))
        for reader in range(1, readers + 1):
            client.lpush(f"go-{reader}", 1)

    def take(_: int) -> None:
        client.blpop([f"go-{rank}"], timeout=TIMEOUT_S)
        np.copyto(data, np.frombuffer(client.get("weights"), np.uint8))

    return give if rank == PUBLISHER else take


def _fill(model: nn.ParameterList, number: int) -> None:
    with torch.no_grad():
        model[-1][-1:] = number


def _has_redis() -> bool:
    return bool(importlib.util.find_spec("redis") and shutil.which("redis-server"))


def _rank(rank: int, folder: Path, address: str, told: argparse.Namespace) -> None:
    """Do all rounds of one process and leave the times of its ways in ``folder/RANK.json``."""
    torch.set_num_threads(1)
    nbytes, readers = round(told.mib * MIB), told.readers
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", store, rank=rank, world_size=1 + readers)
    with (
        smbox.connect(address, timeout_s=TIMEOUT_S) as near,
        smbox.connect(address, transport=told.transport, timeout_s=TIMEOUT_S) as box,
    ):
        ways = {
            LIMIT: copyto(rank, near, nbytes),
            "pull()": pull(rank, box, nbytes, "plain", is_into=False),
            "pull(into=module)": pull(rank, box, nbytes, "into", is_into=True),
            "torch.save, torch.load(mmap)": file(rank, folder, nbytes),
            "gloo broadcast": broadcast(nbytes),
        }
        if _has_redis():
            ways["redis"] = redis(rank, folder, nbytes, readers)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for number in range(SKIPPED + told.rounds):
            for name, move in ways.items():
                distributed.barrier()
                began_s = time.monotonic()
                move(number)
                times[name].append((began_s, time.monotonic()))
        (folder / f"{rank}.json").write_text(json.dumps(times))
        distributed.barrier()
    os._exit(0)  # Gloo's threads now and then abort a process that ends in order


def measure(told: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all ways; one row each, as ``row`` makes them."""
    context = multiprocessing.get_context("spawn")
    memory = round(5 * told.mib + 512)
    with (
        tempfile.TemporaryDirectory(prefix="smbox-publishing-", dir="/dev/shm") as name,
        smbox.local(f"{memory}MiB", timeout_s=TIMEOUT_S) as box,
    ):
        folder = Path(name)
        server = _redis_server(folder)
        try:
            members = [
                context.Process(target=_rank, args=(rank, folder, box.address, told))
                for rank in range(1 + told.readers)
            ]
            for member in members:
                member.start()
            for member in members:
                member.join()
        finally:
            if server is not None:
                server.kill()
                server.wait()
        if any(member.exitcode for member in members):
            raise RuntimeError("a process failed; its words are above")
        times = [
            json.loads((folder / f"{rank}.json").read_text())
            for rank in range(1 + told.readers)
        ]
    return [row(way, [each[way] for each in times], told) for way in times[0]]


def _redis_server(folder: Path) -> subprocess.Popen[bytes] | None:
    if not _has_redis():
        return None
    words = ["--unixsocket", str(folder / "redis"), "--port", "0", "--save", ""]
    server = subprocess.Popen(["redis-server", *words], stdout=subprocess.DEVNULL)
    while not (folder / "redis").exists():
        if server.poll() is not None:
            raise RuntimeError("redis-server did not start")
        time.sleep(PAUSE_S)
    return server


def row(
    way: str, times: Sequence[Sequence[tuple[float, float]]], told: argparse.Namespace
) -> dict[str, Any]:
    """Return a way's figures: from the first start of a rank to the end of the last reader.

    Args:
        way: its name.
        times: start and end in seconds, by rank and round.
        told: the command line.
    """
    rounds = list(zip(*times, strict=True))[SKIPPED:]
    taken_ms = [
        1000.0 * (max(end for _, end in ranks[1:]) - min(begin for begin, _ in ranks))
        for ranks in rounds
    ]
    return {
        "way": way,
        "readers": told.readers,
        "mib": told.mib,
        "transport": told.transport,
        "median_ms": statistics.median(taken_ms),
        "best_ms": min(taken_ms),
        "worst_ms": max(taken_ms),
    }


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Lay out the rows, each way's rate beside the limit's."""
    limit_ms = next(each["median_ms"] for each in rows if each["way"] == LIMIT)
    shown = Table(
        title=f"{rows[0]['mib']:g} MiB to {rows[0]['readers']} readers, "
        f"{os.cpu_count()} cores, transport {rows[0]['transport']}"
    )
    for column in ("way", "median ms", "best", "worst", "GB/s of all", f"rate / {LIMIT}"):
        shown.add_column(column, justify="left" if column == "way" else "right")
    for each in rows:
        rate = each["readers"] * each["mib"] * MIB / each["median_ms"] / 1e6
        figures = (f"{each[name]:.1f}" for name in ("median_ms", "best_ms", "worst_ms"))
        ratio = limit_ms / each["median_ms"]
        shown.add_row(each["way"], *figures, f"{rate:.2f}", f"{ratio:.2f}")
    shown.caption = f"goal of pull(): {GOAL}"
    return shown


def main(words: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = command_line.parser(__doc__, "json")
    parser.add_argument("--mib", type=float, default=256.0, help="size of the weights")
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--transport", default="auto", choices=("auto", "shm", "tcp"))
    told = parser.parse_args(words)
    rows = measure(told)
    print(json.dumps(rows)) if told.json else Console().print(table(rows))


if __name__ == "__main__":
    main()

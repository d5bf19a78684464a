"""What encryption costs: the same calls over tcp to a node with keys and to one without.

python benchmarks/encryption.py [--mib 100] [--rounds 15] [--calls 2000] [--json]

Both nodes run at once on this host and take turns, call by call; medians. CPU seconds are
those of client and node together, per 10^9 bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import command_line
import numpy as np
from rich.console import Console
from rich.table import Table

import smbox
from smbox import keys
from smbox.cli.bench.measure import Clocks, cpu_seconds, interleave

CLIENT: Final = "bench"
SMALL_NBYTES: Final = 4096
BLOCK: Final = 20
"""Small calls of one turn."""
MOVING_RATE: Final = 0.5
WAYS: Final = ("plain", "keys")


@contextmanager
def memory_node(mib: int, security: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Start a memory node; yields its address and process id."""
    words = [sys.executable, "-P", "-m", "memnode", "--bind", "tcp://127.0.0.1:0", "--json"]
    words += ["--memory", f"{2 * mib + 128}MiB", "--parent-pid", str(os.getpid()), *security]
    node = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        line = node.stdout.readline() if node.stdout else ""
        if not line:
            raise smbox.ConnectError("the memory node does not start; its words are above")
        yield json.loads(line)["address"], node.pid
    finally:
        node.terminate()
        node.communicate(timeout=30)


def verbs(region: smbox.Region, mine: Any) -> dict[str, Callable[[], object]]:
    """Return what is timed, by name, each with a whole region."""
    return {
        "put": lambda: region.put(mine),
        "get": lambda: region.get(out=mine),
        "accumulate": lambda: region.accumulate(mine),
        "elastic": lambda: region.elastic(mine, MOVING_RATE),
    }


def block(call: Callable[[], object]) -> Callable[[], None]:
    """Return BLOCK calls in a row."""

    def calls() -> None:
        for _ in range(BLOCK):
            call()

    return calls


def measured(told: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all verbs, long and small.

    Returns:
        A row per verb and size: verb, nbytes, seconds and cpu_s of a call for each of WAYS.
    """
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="smbox-keys-")))
        keys.make_node_key(folder)
        key = keys.add_client(folder, keys.Authorised(CLIENT, keys.Role.ADMIN))
        nodes = {
            "plain": opened.enter_context(memory_node(told.mib, ())),
            "keys": opened.enter_context(memory_node(told.mib, ("--keys", str(folder)))),
        }
        boxes = {
            way: opened.enter_context(
                smbox.connect(
                    address,
                    transport="tcp",
                    timeout_s=120.0,
                    **({"key": str(key)} if way == "keys" else {}),
                )
            )
            for way, (address, _) in nodes.items()
        }
        pids = [os.getpid(), *(pid for _, pid in nodes.values())]
        clocks = Clocks(time.perf_counter, lambda: cpu_seconds(pids))
        rows = []
        for nbytes in (SMALL_NBYTES, told.mib << 20):
            is_small = nbytes == SMALL_NBYTES
            mine = np.zeros(nbytes // 4, np.float32)
            calls = {
                way: verbs(box.create(f"x{nbytes}", mine.shape, "float32", init=0.0), mine)
                for way, box in boxes.items()
            }
            for verb in calls["plain"]:
                turns = {way: calls[way][verb] for way in WAYS}
                if is_small:
                    turns = {way: block(call) for way, call in turns.items()}
                rounds = max(2, told.calls // BLOCK) if is_small else told.rounds
                timings = interleave(turns, rounds=rounds, clocks=clocks)
                each = BLOCK if is_small else 1
                row: dict[str, Any] = {"verb": verb, "nbytes": nbytes}
                for way, timing in timings.items():
                    row[f"{way}_s"] = timing.seconds / each
                    row[f"{way}_cpu_s"] = timing.cpu_s / each
                rows.append(row)
        return rows


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Lay the rows out: microseconds of small calls, 10^9 bytes/s of long ones."""
    head = (
        "verb",
        "size",
        "without keys",
        "with keys",
        "times as long",
        "CPU s/GB",
        "with keys",
    )
    laid = Table(*head)
    for row in rows:
        nbytes, plain_s, keys_s = row["nbytes"], row["plain_s"], row["keys_s"]
        if nbytes == SMALL_NBYTES:
            size, shown, cpu = (
                "4 KiB",
                [f"{s * 1e6:.0f} us" for s in (plain_s, keys_s)],
                ["", ""],
            )
        else:
            size = f"{nbytes >> 20} MiB"
            shown = [f"{nbytes / s / 1e9:.2f} GB/s" for s in (plain_s, keys_s)]
            cpu = [f"{row[f'{way}_cpu_s'] * 1e9 / nbytes:.2f}" for way in WAYS]
        laid.add_row(row["verb"], size, *shown, f"{keys_s / plain_s:.2f}", *cpu)
    return laid


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print the table, or JSON."""
    parser = command_line.parser(__doc__, "json")
    parser.add_argument("--mib", type=int, default=100, help="of a long call")
    parser.add_argument("--rounds", type=int, default=15, help="of long calls")
    parser.add_argument("--calls", type=int, default=2000, help="small ones of each verb")
    told = parser.parse_args(words)
    rows = measured(told)
    if told.json:
        print(json.dumps(rows, indent=1))
    else:
        Console().print(table(rows))


if __name__ == "__main__":
    main()

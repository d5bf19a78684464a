"""Four clients and one striped region: how much faster are two and four memory nodes?

python benchmarks/striped_nodes.py [--nodes 1,2,4] [--clients 4] [--rate-mbit 1000]
    [--mib 32] [--seconds 4] [--repeats 3] [--no-keys] [--json]

Each memory node is a host of the laboratory (docs/lab.md) whose link is shaped; the clients
are hosts with unlimited links, so that the nodes' links are what can fill. All clients put,
then all get, the whole region over and over for a time; the figure is the sum of their rates
(payload, 10^6 bytes/s), where of a verb that lasts beyond the end the part before it counts.
Repeats take turns over the numbers of nodes, and the median counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import command_line
from lab import counters, enclosure, hosts, nodes, spec
from rich.console import Console
from rich.table import Table

from smbox_torch.launching.interrupts import terminable

GOALS: Final = {1: 1.0, 2: 1.9, 4: 3.7}
VERBS: Final = ("put", "get")
START_S: Final = 1.0
"""After the last client is ready, so that all begin together."""

CLIENT: Final = """
import sys, time
import numpy as np
import smbox
mib, seconds = int(sys.argv[1]), float(sys.argv[2])
with smbox.connect(transport="tcp", timeout_s=120.0) as box:
    region = box.create("x", mib << 20, "uint8", layout="striped", exist_ok=True)
    data = np.zeros(region.nbytes, np.uint8)
    region.put(data)
    print("ready", flush=True)
    for verb in (lambda: region.put(data), lambda: region.get(data)):
        begin_s = float(sys.stdin.readline())
        time.sleep(max(0.0, begin_s - time.monotonic()))
        end_s, now_s, done = begin_s + seconds, time.monotonic(), 0.0
        while now_s < end_s:
            verb()
            before_s, now_s = now_s, time.monotonic()
            done += min(1.0, (end_s - before_s) / (now_s - before_s))
        print(done * region.nbytes / seconds, flush=True)
"""


def laboratory(count: int, told: argparse.Namespace) -> spec.Spec:
    """Describe so many memory nodes, and the clients."""
    memory = f"{2 * told.mib + 256}MiB"
    node = f'[[host]]\nname = "node"\ncount = {count}\nmemory = "{memory}"\n'
    client = f'[[host]]\nname = "client"\ncount = {told.clients}\n'
    keys = "false" if told.no_keys else "true"
    return spec.read(f"keys = {keys}\n{node}rate_mbit = {told.rate_mbit}\n{client}".encode())


def measure(count: int, told: argparse.Namespace) -> dict[str, Any]:
    """Measure once with so many nodes.

    Returns:
        nodes, put and get in 10^6 bytes/s, and put_cores and get_cores: processor seconds a
        second of all hosts.
    """
    described = laboratory(count, told)
    with (
        hosts.standing(described) as stand,
        nodes.serving(stand, has_keys=described.keys) as env,
        counters.Counters(stand) as counts,
    ):
        words = [sys.executable, "-c", CLIENT, str(told.mib), str(told.seconds)]
        clients = [
            subprocess.Popen(
                [*host.enter(), *words],
                env=os.environ | env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            for host in stand
            if not host.spec.memory
        ]
        for client in clients:
            if _line(client) != "ready":
                raise RuntimeError("a client failed; its words are above")
        found: dict[str, Any] = {"nodes": count}
        for verb in VERBS:
            found |= _all_do(verb, clients, counts)
        for client in clients:
            client.communicate()
    return found


def _all_do(
    verb: str, clients: Sequence[subprocess.Popen[str]], counts: counters.Counters
) -> dict[str, float]:
    begin_s = time.monotonic() + START_S
    before, before_s = _cpu_s(counts), time.monotonic()
    for client in clients:
        assert client.stdin is not None
        client.stdin.write(f"{begin_s}\n")
    rate = sum(float(_line(client)) for client in clients)
    used = _cpu_s(counts) - before
    return {verb: rate / 1e6, f"{verb}_cores": used / (time.monotonic() - before_s - START_S)}


def _cpu_s(counts: counters.Counters) -> float:
    return sum(use.cpu_s for use in counts.read().values())


def _line(client: subprocess.Popen[str]) -> str:
    assert client.stdout is not None
    return client.stdout.readline().strip()


def rows(measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the median of each figure for each number of nodes, and ratios to the first."""
    found: list[dict[str, Any]] = []
    for count in dict.fromkeys(each["nodes"] for each in measured):
        runs = [each for each in measured if each["nodes"] == count]
        row = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        first = found[0] if found else row
        found.append(row | {f"{verb}_ratio": row[verb] / first[verb] for verb in VERBS})
    return found


def table(found: Sequence[dict[str, Any]], told: argparse.Namespace) -> Table:
    """Lay out a row for each number of nodes."""
    keys = "nothing encrypted" if told.no_keys else "with keys"
    rate = f"{told.rate_mbit:g} Mbit/s" if told.rate_mbit else "unlimited"
    shown = Table(
        title=f"{told.clients} clients, {told.mib} MiB striped, each node's link"
        f" {rate}, {keys}; no computation"
    )
    for name in ("nodes", "put MB/s", "ratio", "get MB/s", "ratio", "goal"):
        shown.add_column(name, justify="right")
    for name in ("put: cores in use", "get: cores in use"):
        shown.add_column(name, justify="right")
    for row in found:
        goal = GOALS.get(row["nodes"])
        rates = ((f"{row[verb]:.1f}", f"{row[f'{verb}_ratio']:.2f}") for verb in VERBS)
        shown.add_row(
            str(row["nodes"]),
            *(cell for both in rates for cell in both),
            f"{goal:g}" if goal else "-",
            *(f"{row[f'{verb}_cores']:.2f}" for verb in VERBS),
        )
    return shown


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for."""
    parser = command_line.parser(__doc__, "json")
    parser.add_argument(
        "--nodes", type=command_line.numbers, default="1,2,4", help="numbers, with commas"
    )
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rate-mbit", type=float, default=1000.0, help="0: unlimited")
    parser.add_argument("--mib", type=int, default=32, help="size of the region")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-keys", action="store_true", help="nothing is encrypted")
    told = parser.parse_args(words)
    if not enclosure.is_inside():
        return enclosure.run([sys.executable, *sys.argv])
    with terminable():
        found = rows(
            [measure(count, told) for _ in range(told.repeats) for count in told.nodes]
        )
    print(json.dumps(found)) if told.json else Console(width=120).print(table(found, told))
    return 0


if __name__ == "__main__":
    sys.exit(main())

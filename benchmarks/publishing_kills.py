"""Torn reads of published weights, looked for while publisher and node are killed (kill -9).

python benchmarks/publishing_kills.py [--mib 100] [--kills 20] [--json]

One publisher publishes as fast as it can, by turns on mapped memory and over tcp. It is killed
in the middle of a publication and started again; every third time the node is killed, too, and
its owner starts it again. Two readers, one on each transport, pull every version that they can
get, and look at every element: all of a version are its number. It ends with an error if one is
not, or if versions do not rise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

import psutil
import torch

import smbox
from smbox_torch import Publisher, Subscriber

MIB = 1 << 20
NAME = "weights"
LEASE_S = 1.0
TIMEOUT_S = 60.0
PULL_S = 5.0  # longer than a restart of the node
STALL_S = 120.0
TRANSPORTS = ("shm", "tcp")
PUBLISHED_BEFORE_KILL = 3


def weights(mib: float) -> dict[str, torch.Tensor]:
    """Return tensors of 4 MiB each, or one smaller one, and a number in an integer."""
    nbytes = round(mib * MIB)
    each = min(nbytes, 4 * MIB) // 4
    tensors = {f"layer.{index}": torch.zeros(each) for index in range(nbytes // 4 // each)}
    return tensors | {"version": torch.tensor(0)}


def publish(address: str, transport: str, mib: float, parent: Connection) -> None:
    """Publish until killed; tell the parent before each publication and after it."""
    torch.set_num_threads(1)
    state = weights(mib)
    with smbox.connect(address, transport=transport, timeout_s=TIMEOUT_S) as box:
        subscriber, version = Subscriber(box, NAME), 0
        with contextlib.suppress(smbox.RequestTimeoutError):  # the first life: none yet
            version = subscriber.pull(timeout_s=0.0, names=["version"])
        with Publisher(box, NAME, state, lease_s=LEASE_S) as publisher:
            while True:
                for tensor in state.values():
                    tensor.fill_(version + 1)
                parent.send("begin")
                assert publisher.publish() == version + 1
                version += 1
                parent.send("end")


def read(address: str, transport: str, mib: float, stop: Event, parent: Connection) -> None:
    """Pull until told to stop, then the last version; send counts to the parent."""
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    target, version = weights(mib), 0
    with smbox.connect(address, transport=transport, timeout_s=TIMEOUT_S) as box:
        subscriber = Subscriber(box, NAME)
        while not stop.is_set():
            try:
                found = subscriber.pull(into=target, newer_than=version, timeout_s=PULL_S)
            except (smbox.StaleVersionError, smbox.RequestTimeoutError) as error:
                counts[type(error).__name__] += 1
                found = version
            else:
                counts["pulls"] += 1
                counts["not newer"] += found <= version
            counts["mixtures"] += not is_of_version(target, found)
            version = found
        last = subscriber.pull(into=target)
        counts["mixtures"] += not is_of_version(target, last)
    parent.send(dict(counts) | {"transport": transport, "last": last})


def is_of_version(state: dict[str, torch.Tensor], version: int) -> bool:
    """Tell whether all elements are the version's number."""
    return all(bool((tensor == version).all()) for tensor in state.values())


def kill_again_and_again(address: str, mib: float, kills: int) -> None:
    """Run publishers, each until it is killed in the middle of a publication."""
    context = multiprocessing.get_context("spawn")
    for life in range(kills):
        parent, child = context.Pipe(duplex=False)
        words = (address, TRANSPORTS[life % 2], mib, child)
        publisher = context.Process(target=publish, args=words)
        publisher.start()
        child.close()
        try:
            for _ in range(PUBLISHED_BEFORE_KILL):
                _expect(parent, "begin")
                _expect(parent, "end")
            _expect(parent, "begin")
            if life % 3 == 2:
                _kill_node()
        finally:
            publisher.kill()
            publisher.join()
            parent.close()


def _expect(parent: Connection, word: str) -> None:
    if not parent.poll(STALL_S):
        raise RuntimeError("the publisher stands still")
    assert parent.recv() == word


def _kill_node() -> None:
    """Kill the memory node of this process."""
    for child in psutil.Process().children():
        if "memnode" in child.cmdline():
            os.kill(child.pid, signal.SIGKILL)


def run(mib: float, kills: int) -> list[dict[str, Any]]:
    """Return what each reader counted.

    Raises:
        RuntimeError: a reader met parts of two versions, or no newer version, or nothing.
    """
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    with smbox.local(f"{round(4 * mib + 256)}MiB", timeout_s=TIMEOUT_S) as box:
        pipes = [context.Pipe(duplex=False) for _ in TRANSPORTS]
        readers = [
            context.Process(target=read, args=(box.address, transport, mib, stop, child))
            for transport, (_, child) in zip(TRANSPORTS, pipes, strict=True)
        ]
        for reader in readers:
            reader.start()
        try:
            kill_again_and_again(box.address, mib, kills)
            stop.set()
            counts = [parent.recv() for parent, _ in pipes if parent.poll(STALL_S)]
        finally:
            stop.set()
            for reader in readers:
                reader.join(STALL_S)
                reader.kill()
                reader.join()
    if len(counts) < len(TRANSPORTS):
        raise RuntimeError("a reader has said nothing; its words are above")
    for each in counts:
        if each["mixtures"] or each["not newer"] or each["last"] != counts[0]["last"]:
            raise RuntimeError(f"a reader has not met one newer version after another: {each}")
    return counts


def main(words: Sequence[str] | None = None) -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=float, default=100.0, help="size of the weights")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="counts as JSON")
    told = parser.parse_args(words)
    counts = run(told.mib, told.kills)
    if told.json:
        print(json.dumps(counts))
        return
    for each in counts:
        figures = ", ".join(f"{name} {value}" for name, value in each.items())
        print(f"{told.mib:g} MiB, {told.kills} kills: {figures}")


if __name__ == "__main__":
    main()

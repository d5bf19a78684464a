"""Memory nodes as one address space, and workers of several hosts, as threads."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import torch

import smbox
from smbox_torch.world import World

torch.set_num_threads(1)

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def address(preloaded: str) -> Iterator[str]:
    """Of two memory nodes with the ids 0 and 1, for all tests of a file."""
    words = ["--nodes", "2", "--bind", "tcp://127.0.0.1:0", "--memory", "128MiB", "--json"]
    nodes = subprocess.Popen(
        [preloaded, "-m", "memnode", "--name", f"topology-{uuid.uuid4().hex[:8]}", *words],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert nodes.stdout is not None
        told = json.loads(nodes.stdout.readline())
        yield ",".join(told["addresses"])
    finally:
        nodes.terminate()
        nodes.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def box(address: str) -> Iterator[smbox.Box]:
    with smbox.connect(address, transport="tcp", timeout_s=TIMEOUT_S) as box:
        yield box


Work = Callable[[World, smbox.Box], Any]


@pytest.fixture
def run_hosts(
    address: str, worlds: Callable[[int, int], list[World]]
) -> Callable[[int, int, Work], list[Any]]:
    """``run_hosts(hosts, each, work)``: what ``work(world, box)`` of all workers returned."""

    def run(hosts: int, each: int, work: Work) -> list[Any]:
        members = worlds(hosts, each)
        with ExitStack() as stack, ThreadPoolExecutor(len(members)) as pool:
            boxes = [
                stack.enter_context(
                    smbox.connect(address, transport="tcp", timeout_s=TIMEOUT_S)
                )
                for _ in members
            ]
            begun = [pool.submit(work, *pair) for pair in zip(members, boxes, strict=True)]
            return [each.result(timeout=3 * TIMEOUT_S) for each in begun]

    return run

"""The contract of a box, over one node and several, on regions of one node and striped."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest

import memnode.node
from smbox.config import ClientConfig
from smbox.many.box import ManyBox
from smbox.many.striping import Node
from smbox.memory.node_memory import NodeMemory
from smbox.paths.pair import PathPair
from smbox.testing.contract import CHECKS
from smbox.testing.inproc import InprocHub
from smbox.testing.inproc_box import handle
from smbox.testing.many_box import StripingBox, inproc_many

pytestmark = pytest.mark.usefixtures("quick_starts")

MEMORY_NBYTES = 128 << 20
TIMEOUT_S = 60.0
CONFIG = ClientConfig("inproc://many", timeout_s=TIMEOUT_S)

OF_ONE_NODE = {
    "check_accumulate_from": "slices at other offsets lie on other nodes: refused",
    "check_dot_bits": "slices at other offsets lie on other nodes: refused",
    "check_dot_beside_writers": "each part has stripes of its own",
    "check_rows_beside_a_writer": "each part has stripes of its own",
    "check_accumulate_sizes": "each part has stripes, and so versions, of its own",
    "check_version_wait": "a change of the whole is one version for each part",
    "check_local_view": "a view is of one part",
    "check_raw_addresses": "a raw range is of one part",
    "check_snapshots": "a snapshot is of one part",
    "check_snapshots_among_writers": "a snapshot is of one part",
}
"""Checks that a striped region cannot pass, and why; tests/smbox/many has its own of each."""

BETWEEN_REGIONS = {
    "check_accumulate_from",
    "check_accumulate_from_what_does_not_fit",
    "check_dot",
    "check_dot_beside_writers",
    "check_dot_bits",
    "check_dot_of_what_does_not_fit",
}
"""Checks of two regions at one node: of two names, chance would have to put them there."""

SINGLE = [check for check in CHECKS if check.__name__ not in BETWEEN_REGIONS]
STRIPED = [check for check in CHECKS if check.__name__ not in OF_ONE_NODE]


@contextlib.contextmanager
def nodes_here(count, kind):
    """Run nodes inside their clients' calls; yield a box over all."""
    with contextlib.ExitStack() as stack:
        transports = {}
        for node_id in range(count):
            name = f"contract-{secrets.token_hex(4)}"
            memory = NodeMemory.open(name, MEMORY_NBYTES, node_id)
            stack.callback(memory.close, keep=False)
            node = memnode.node.Node(memory, now_s=time.monotonic())
            stack.callback(node.close)
            transports[node_id] = InprocHub(partial(handle, node)).connect
        yield stack.enter_context(inproc_many(transports, CONFIG, kind))


@pytest.fixture(scope="module", params=[1, 3])
def single(request):
    with nodes_here(request.param, ManyBox) as box:
        yield box


@contextlib.contextmanager
def mapped_nodes(count):
    """Run nodes in child processes; yield a striping box that maps their memory."""
    command = [sys.executable, "-m", "memnode", "--json", "--nodes", str(count)]
    command += ["--name", f"contract-{secrets.token_hex(4)}", "--bind", "tcp://127.0.0.1:0"]
    command += ["--memory", str(MEMORY_NBYTES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            addresses = json.loads(process.stdout.readline())["addresses"]
            config = ClientConfig(transport="shm", timeout_s=TIMEOUT_S)
            paths = [PathPair(replace(config, address=address)) for address in addresses]
            with StripingBox([Node(pair, index) for index, pair in enumerate(paths)]) as box:
                yield box
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


@pytest.fixture(scope="module", params=[1, 3, "2 mapped"])
def striped(request):
    is_mapped = request.param == "2 mapped"
    made = mapped_nodes(2) if is_mapped else nodes_here(request.param, StripingBox)
    with made as box:
        assert box.transport == ("shm" if is_mapped else "inproc")
        yield box


@pytest.mark.shares
@pytest.mark.parametrize("check", SINGLE, ids=lambda check: check.__name__)
def test_the_contract_holds_over_nodes(single, check):
    check(single)


@pytest.mark.shares
@pytest.mark.parametrize("check", STRIPED, ids=lambda check: check.__name__)
def test_the_contract_holds_on_striped_regions(striped, check):
    check(striped)


def test_the_checks_left_out_exist():
    assert BETWEEN_REGIONS | set(OF_ONE_NODE) <= {check.__name__ for check in CHECKS}

"""A node's memory for one test, and regions in it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest

from smbox import dtypes
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion
from smbox.memory.node_memory import NodeMemory
from smbox.memory.region_header import RegionSpec
from smbox.testing.regions import build

MIB = 1 << 20


@pytest.fixture
def memory() -> Iterator[NodeMemory]:
    memory = NodeMemory.open(f"t{secrets.token_hex(4)}", 64 * MIB)
    yield memory
    memory.close(keep=False)


@pytest.fixture
def make(memory: NodeMemory) -> Callable[..., MappedRegion]:
    def make(data: np.ndarray, name: str = "r", **options: int) -> MappedRegion:
        spec = RegionSpec(name, dtypes.of(data.dtype), data.shape, **options)
        region = build(memory.name, spec, memory.superblock.take_address(spec.nbytes))
        region.array()[...] = data
        memory.regions[region.address] = region
        return region

    return make


@pytest.fixture
def other(memory: NodeMemory) -> Iterator[LockFile]:
    """A separate open file of the memory's lock file, as another process has it."""
    locks = LockFile(memory.name)
    yield locks
    locks.close()


@pytest.fixture
def pair(memory: NodeMemory) -> Iterator[tuple[LockFile, LockFile]]:
    """Two open files of the lock file: two holders of locks."""
    with closing(LockFile(memory.name)) as one, closing(LockFile(memory.name)) as two:
        yield one, two


@pytest.fixture
def restart(memory):
    """Open the memory again, as a node does after a kill."""
    opened = []

    def restart() -> NodeMemory:
        memory.close(keep=True)
        opened.append(NodeMemory.open(memory.name, 64 << 20))
        return opened[-1]

    yield restart
    for again in opened:
        again.close(keep=True)
    memory.__init__(memory.name, type(memory.superblock).own(memory.name, 64 << 20))

"""SIGKILL at each line of the commit procedure, for each kind of change.

Afterwards only two memories are allowed: as before, or with the change complete. Whoever
comes next recovers; a kill at each line of that recovery changes nothing of this.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import numpy as np
import pytest

from smbox import dtypes
from smbox.memory import (
    accel,
    commit as commit_module,
    kernels,
    recovery,
    sweeping,
    update as update_module,
)
from smbox.memory.building import build
from smbox.memory.change import Change, Receipt
from smbox.memory.channels import RingFile
from smbox.memory.commit import commit
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import Stripe, slot_name
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion, Piece
from smbox.memory.node_memory import NodeMemory
from smbox.memory.optimizers import OptimizerCode
from smbox.memory.reading import read_piece
from smbox.memory.region_header import RegionSpec
from smbox.memory.segment import listing
from smbox.memory.sweeping import recover_slot
from smbox.memory.update import Update, commit_update
from smbox.testing.crash_points import killed_at

FILES = {
    module.__file__ for module in (commit_module, update_module, recovery, sweeping, kernels)
}
COUNT = 3000
BEGIN = np.linspace(-3, 3, COUNT, dtype=np.float32)
SOURCE = np.linspace(5, -1, COUNT, dtype=np.float32)
CHANGES = {
    "put": Change(KernelCode.REPLACE, SOURCE),
    "accumulate": Change(KernelCode.SUM, SOURCE, 0.5),
    "minimum": Change(KernelCode.MIN, SOURCE),
    "elastic": Change(KernelCode.ELASTIC, SOURCE, 0.25),
}


@pytest.fixture
def memory(monkeypatch) -> Iterator[NodeMemory]:
    """Commits run in Python here, so that each line of them can be killed."""
    monkeypatch.setattr(accel, "journaled", kernels.journaled)
    memory = NodeMemory.open(f"c{secrets.token_hex(4)}", 64 << 20)
    yield memory
    memory.close(keep=False)


@pytest.fixture
def region(memory) -> MappedRegion:
    spec = RegionSpec("r", dtypes.by_name("float32"), (COUNT,))
    region = build(memory.name, spec, memory.superblock.take_address(spec.nbytes))
    memory.add(region)
    return region


def after(change: Change) -> np.ndarray:
    data = BEGIN.copy()
    scale = kernels.scale_of(change.kernel, dtypes.by_name("float32"), change.scale)
    kernels.run_kernel(change.kernel, data, change.source, scale)
    return data


def restore(region: MappedRegion) -> None:
    region.array()[...] = BEGIN
    region.table[0, Stripe.COUNT] = 0


PIECE = Piece(0, 0, BEGIN.nbytes)


@pytest.mark.parametrize("op", CHANGES)
def test_a_local_client_killed_anywhere(memory, region, op):
    change, done = CHANGES[op], after(CHANGES[op])
    line, seen = 1, set()
    while True:
        restore(region)
        killed = killed_at(
            line, lambda: commit(Writer.create(memory.name), region, PIECE, change), FILES
        )
        assert memory.sweep_slots() == 1
        happened = region.version() == 1
        assert np.array_equal(region.array(), done if happened else BEGIN)
        assert region.table[0, Stripe.SEQ] % 2 == 0
        seen.add(happened)
        if not killed:
            break
        line += 1
    assert seen == {True, False}
    assert line > 40


@pytest.mark.parametrize("op", ["accumulate", "elastic"])
def test_the_lane_killed_anywhere(memory, region, op):
    """Its number is applied exactly if the change is there; then it has its answer, too."""
    change, done = CHANGES[op], after(CHANGES[op])
    row = memory.channels.claim(99, 0)
    line = number = 1
    while True:
        restore(region)
        row.applied = number - 1

        def run(number: int = number) -> None:
            ring = RingFile.open(memory.name, row.index) if op == "elastic" else None
            commit(
                Writer.create(memory.name), region, PIECE, change, Receipt(row, number, ring)
            )

        killed = killed_at(line, run, FILES)
        assert memory.sweep_slots() == 1
        happened = row.applied == number
        assert happened == (region.version() == 1)
        assert np.array_equal(region.array(), done if happened else BEGIN)
        if happened and op == "elastic":
            answer = RingFile.open(memory.name, row.index).answers(number)
            assert np.array_equal(answer.view(np.float32), BEGIN)
        if not killed:
            assert happened
            break
        line += 1
        number += 1


def test_recovery_killed_anywhere(memory, region):
    """A commit is killed half way; then its recovery, at each of its lines, again and again."""
    change, done = CHANGES["elastic"], after(CHANGES["elastic"])
    for half_way in (30, 35, 40, 45, 50):
        restore(region)
        assert killed_at(
            half_way, lambda: commit(Writer.create(memory.name), region, PIECE, change), FILES
        )
        (slot,) = _dead_slots(memory)
        line = 1
        while killed_at(
            line,
            lambda slot=slot: recover_slot(memory.name, slot, LockFile(memory.name)),
            FILES,
        ):
            line += 1
        assert np.array_equal(region.array(), done if region.version() else BEGIN)
        assert region.table[0, Stripe.SEQ] % 2 == 0


def _dead_slots(memory: NodeMemory) -> list[int]:
    ids = [int(name[-16:], 16) for name in listing(slot_name(memory.name, 0)[:-16])]
    return [slot for slot in ids if slot != memory.writer.slot_id]


def test_the_next_writer_recovers_without_the_node(memory, region):
    """A stripe left open is closed by whoever wants to change it next."""
    change = CHANGES["accumulate"]
    line = 1
    while True:
        restore(region)
        killed = killed_at(
            line, lambda: commit(Writer.create(memory.name), region, PIECE, change), FILES
        )
        commit(memory.writer, region, PIECE, Change(KernelCode.SUM, np.ones(COUNT, np.float32)))
        base = after(change) if region.version() == 2 else BEGIN
        assert np.array_equal(region.array(), base + np.float32(1))
        memory.sweep_slots()
        if not killed:
            break
        line += 1


UPDATE = Update(OptimizerCode.MOMENTUM, SOURCE, (0.5, 0.9))


@pytest.mark.parametrize("finder", ["sweep", "parameters", "state"])
def test_an_optimizers_step_killed_anywhere(memory, region, finder):
    """Parameters and state step together, whichever of the two is looked at first."""
    spec = RegionSpec("momentum", region.spec.dtype, (COUNT,))
    state = build(memory.name, spec, memory.superblock.take_address(spec.nbytes))
    memory.add(state)
    line, seen, killed = 1, set(), True
    while killed:
        restore(region)
        restore(state)
        killed = killed_at(
            line,
            lambda: commit_update(Writer.create(memory.name), region, [state], PIECE, UPDATE),
            FILES,
        )
        out = np.empty(BEGIN.nbytes, np.uint8)
        if finder != "sweep":
            looked_at = region if finder == "parameters" else state
            read_piece(looked_at, PIECE, out, memory.writer.locks)
        assert memory.sweep_slots() == 1
        happened = region.version() == 1
        assert state.version() == region.version()
        moved = np.float32(0.9) * BEGIN + SOURCE
        assert np.array_equal(state.array(), moved if happened else BEGIN)
        stepped = BEGIN - np.float32(0.5) * moved
        assert np.array_equal(region.array(), stepped if happened else BEGIN)
        assert region.table[0, Stripe.SEQ] % 2 == state.table[0, Stripe.SEQ] % 2 == 0
        seen.add(happened)
        line += 1
    assert seen == {True, False}

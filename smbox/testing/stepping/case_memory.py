"""The memory of a case: creation, packed orders, and comparison after a crash."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import numpy as np

from smbox import dtypes
from smbox.memory import journal, orders
from smbox.memory.channels import Answers
from smbox.memory.commit import run_orders
from smbox.memory.journal import Writer
from smbox.memory.kernels import KERNELS, KernelCode
from smbox.memory.layout import RegionHeader, Slot, SlotState, Stripe, name_of
from smbox.memory.mapped import MappedRegion
from smbox.memory.node_memory import NodeMemory
from smbox.memory.orders import Block, Result
from smbox.memory.region_header import RegionSpec
from smbox.memory.segment import Segment, listing
from smbox.memory.superblock import unlink_all
from smbox.testing.kernels import scale_bytes
from smbox.testing.regions import build
from smbox.testing.stepping import small_memory
from smbox.testing.stepping.cases import Case, Order, State, pieces_of
from smbox.testing.stepping.small_memory import MEMORY_NBYTES

STRIPES_MAX: Final = 16
CLIENT: Final = (b"c" * 16, 0)
"""Client id and number of the channel of a case."""


@contextmanager
def open_case(case: Case) -> Iterator[str]:
    """Create the regions of a case and its channel; yield the node's name."""
    node = f"step{secrets.token_hex(4)}"
    memory = NodeMemory.open(node, MEMORY_NBYTES)
    try:
        for index, contents in enumerate(case.regions):
            spec = RegionSpec(f"r{index}", dtypes.of(contents.dtype), contents.shape)
            address = memory.superblock.take_address(spec.nbytes)
            region = build(node, spec, address)
            region.array()[...] = contents
            memory.regions[address] = region
        if case.has_channel:
            row = memory.channels.claim(*CLIENT)
            if case.answer_nbytes:
                Answers(row).block_for(case.answer_nbytes)
        memory.close(keep=True)
        yield node
    finally:
        unlink_all(node)


class Call(NamedTuple):
    """A case's orders, packed for one native call.

    Attributes:
        writer: runs the call.
        block: the orders.
        first: index of the first order that is not done.
        limit: number of the orders.
        regions: of each order from ``first`` on.
        kept: objects that the orders point to.
    """

    writer: Writer
    block: Block
    first: int
    limit: int
    regions: list[tuple[MappedRegion, ...]]
    kept: list[object]

    def run(self) -> None:
        """Make the native call."""
        begin = self.block.ref_at(self.first * orders.ORDER_NBYTES)
        self.writer.short(self.writer.ref, begin, self.limit - self.first)

    def finish(self) -> None:
        """Run the orders to their end, after a writer that may have died with locks."""
        run_orders(self.writer, self.block, self.regions, MEMORY_NBYTES, self.first)

    def check(self) -> None:
        """Raise AssertionError unless all orders are done."""
        for index in range(self.first, self.limit):
            outcome = orders.order_outcome(self.block, index)
            assert outcome[1] == Result.DONE, f"order {index} ended with {outcome}"


def prepare(case: Case, memory: NodeMemory, done: int = 0) -> Call:
    """Pack the orders of a case that remain after ``done`` commits."""
    regions = _regions(memory)
    left = list(pieces_of(case))[done:]
    block = Block(len(case.orders) * orders.ORDER_NBYTES)
    channel, kept = _channel(case, memory)
    number = 1
    for index, order in enumerate(case.orders):
        begins = [piece.first for piece in left if piece.order == index]
        source = order.source.view(np.uint8)
        parameters = np.zeros(4)
        parameters[: len(order.parameters)] = order.parameters
        kept += [source, parameters, regions]
        orders.write_order(
            block.bytes,
            index * orders.ORDER_NBYTES,
            order.kernel,
            _operand(case, order),
            order.output,
            orders.extents_of([regions[region].block for region in order.regions]),
            order.first,
            order.limit or regions[order.regions[0]].nbytes,
            orders.address_of(source),
            source.nbytes,
            scale_bytes(order.scale),
            orders.address_of(parameters) if order.parameters else 0,
            0,
            channel,
            number,
            begins[0] if begins else order.first,
        )
        number += sum(piece.order == index for piece in pieces_of(case))
    writer = small_memory.small_writer(memory)
    first = left[0].order if left else len(case.orders)
    named = [tuple(regions[place] for place in order.regions) for order in case.orders[first:]]
    return Call(writer, block, first, len(case.orders), named, kept)


def _operand(case: Case, order: Order) -> int:
    """Return the dtype code of an order's source; of a whole kernel, the region's."""
    is_whole = order.kernel in KERNELS and KERNELS[KernelCode(order.kernel)].is_whole
    region = case.regions[order.regions[0]]
    return dtypes.of(region.dtype if is_whole else order.source.dtype).code


def _channel(case: Case, memory: NodeMemory) -> tuple[int, list[object]]:
    if not case.has_channel:
        return 0, []
    row = memory.channels.find(*CLIENT)
    assert row is not None
    if not case.answer_nbytes:
        block = row.block()
        return block.address, [block, row]
    answers = Answers(row)
    block = answers.block_for(case.answer_nbytes)
    return block.address, [block, answers]


def _regions(memory: NodeMemory) -> list[MappedRegion]:
    return sorted(memory.regions.values(), key=lambda region: region.address)


def commits_in(slot: bytes) -> int:
    """Return the number of commits that happened, as a writer's slot counts them."""
    return int(np.frombuffer(slot, np.uint64, Slot.WORDS)[Slot.STATE]) >> SlotState.BITS


def is_open(contents: dict[str, bytes]) -> bool:
    """Return whether a stripe of any region is open."""
    regions = [data for name, data in contents.items() if ".region." in name]
    return any(word & Stripe.OPEN for data in regions for word in _sequences(data))


def _sequences(region: bytes) -> list[int]:
    """Return the sequence words of the first stripes of a region's segment."""
    count = STRIPES_MAX * Stripe.WORDS
    words = np.frombuffer(region, np.uint64, count, RegionHeader.NBYTES)
    found: list[int] = words[Stripe.SEQUENCE :: Stripe.WORDS].tolist()
    return found


def examine(case: Case, states: list[State], node: str, commits: int) -> None:
    """Recover a memory as a starting node does, and compare all of it with numpy.

    Args:
        case: of the memory.
        states: from ``replay``.
        node: name of the memory, which is removed.
        commits: number of commits that have happened.

    Raises:
        AssertionError: the memory is not exactly that after these commits, or the other
            commits fail.
    """
    memory = NodeMemory.open(node, MEMORY_NBYTES)
    try:
        compare(case, states[commits], memory, commits)
        assert journal.slot_ids(node) == [memory.writer.slot_id], "a dead slot is left"
        rest = prepare(case, memory, commits)
        rest.finish()
        rest.check()
        compare(case, states[-1], memory, len(states) - 1)
        locks = memory.superblock.locks
        for region in memory.regions.values():
            free = [region.try_lock(stripe, locks) for stripe in range(region.stripe_count)]
            assert all(free), f"stripes that nobody can lock: {free}"
    finally:
        memory.close(keep=False)


def compare(case: Case, state: State, memory: NodeMemory, commits: int) -> None:
    """Raise AssertionError unless data, counts, applied number and answers equal a state's."""
    for index, region in enumerate(_regions(memory)):
        found = region.array()
        assert found.tobytes() == state.data[index].tobytes(), (
            f"region {index} is {found} and not {state.data[index]} after {commits} commits"
        )
        stripes = len(state.commits[index])
        sequences = _sequences(region.segment.bytes.tobytes())[:stripes]
        assert not any(word & Stripe.OPEN for word in sequences), "a stripe is open"
        counts = [word >> Stripe.COMMITS_SHIFT for word in sequences]
        assert counts == state.commits[index], f"region {index} counts {counts}"
    if not case.has_channel:
        return
    row = memory.channels.find(*CLIENT)
    assert row is not None
    assert row.applied == commits, f"applied is {row.applied} after {commits} commits"
    answers = Answers(row)
    for number, wanted in enumerate(state.answers, 1):
        answer = answers.find(number) if wanted is not None else None
        found_bytes = None if answer is None else answer.tobytes()
        assert found_bytes == wanted, f"the answer of number {number} is wrong"


def slot_of(contents: dict[str, bytes]) -> bytes:
    """Return the slot of the only writer."""
    (slot,) = (data for name, data in contents.items() if ".slot." in name)
    return slot


def attach_region(node: str, index: int) -> MappedRegion:
    """Map a region of a memory whose node does not run, by its index in the case."""
    names = sorted(listing(name_of(node, "region.")))
    return MappedRegion(node, Segment.attach(names[index]))

"""Messages between stages, without stages: headers, and which tensors fit into a slot."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from smbox.errors import RegionFreedError, WorkerLostError
from smbox_torch.pipeline.ring import HEADER_NBYTES, Header, Reader, TensorSpec, Writer
from smbox_torch.pipeline.stage_exit import StageExit

SPEC = TensorSpec((4, 3), "float32")


@pytest.mark.parametrize("loss", [0.1, 1e300, -math.inf])
def test_a_header_says_the_same_after_its_way(loss):
    header = Header(7, True, 2, 3, 1 << 40, False, loss)
    assert Header.of(header.words()) == header
    assert Header.of(header.words()).loss == loss  # the same number at every stage


@pytest.mark.parametrize(
    ("tensor", "fits"),
    [
        (torch.zeros(4, 3), True),
        (torch.zeros(1, 3), True),
        (torch.zeros(5, 3), False),
        (torch.zeros(4, 2), False),
        (torch.zeros(12), False),
        (torch.zeros(4, 3, dtype=torch.float64), False),
        (torch.zeros(4, 3).to_sparse(), False),
        ([[0.0] * 3] * 4, False),
    ],
)
def test_a_tensor_has_at_most_the_rows_that_were_agreed_on(tensor, fits):
    assert SPEC.matches(tensor) is fits


@pytest.mark.parametrize(("rows", "units"), [(0, 1), (5, 2), (6, 3)])
def test_a_slot_has_room_for_header_and_elements(rows, units):
    assert TensorSpec((rows, 3), "float32").slot_nbytes == units * HEADER_NBYTES


class Freed:
    """The stages as stage 1 sees them, when stage 0 has freed the ring between both."""

    stage = 1

    def wait_for_counter(self, *_):
        raise RegionFreedError("freed")

    def lost_error(self, peer, otherwise):
        return WorkerLostError("lost", peer=peer, otherwise=otherwise)


class FreedCounter:
    @property
    def value(self):
        raise RegionFreedError("freed")


@pytest.fixture
def reader():
    box = SimpleNamespace(
        create=lambda name, nbytes, _: SimpleNamespace(name=name, nbytes=nbytes),
        counter=lambda _: FreedCounter(),
    )
    return Reader(box, "ring", SPEC, 2, Freed(), 0)


def test_a_reader_whose_ring_was_freed_was_counted_as_dead(reader):
    with pytest.raises(WorkerLostError) as lost:
        reader.peek()
    assert lost.value.facts == {"peer": 0, "otherwise": StageExit(1, "died")}


def test_a_writer_whose_rings_were_freed_without_a_report_lost_a_reader_that_left(reader):
    box = SimpleNamespace(counter=lambda _: None)
    ring = SimpleNamespace(name="ring", nbytes=0)  # full
    with pytest.raises(WorkerLostError) as lost:
        Writer(box, ring, Freed(), reader).send(Header(0, True, 0, 0, 0, True), None)
    assert lost.value.facts == {"peer": 0, "otherwise": StageExit(0, "left")}

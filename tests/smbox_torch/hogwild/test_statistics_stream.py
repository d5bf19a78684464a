from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from smbox.testing.model_box import ModelBox
from smbox_torch.hogwild.statistics_stream import StatisticsStream
from smbox_torch.model.buffers import float_buffers
from smbox_torch.model.flat import FlatParameters
from smbox_torch.optimizer.batch_counts import BatchCounts
from smbox_torch.optimizer.center import Center

RATE = 0.45


class Member:
    """A worker with one batch norm, streamed by hand."""

    def __init__(self, box: ModelBox) -> None:
        self.norm = nn.BatchNorm1d(3, affine=False)
        flat = FlatParameters(float_buffers(self.norm))
        self.center = Center(box, "run.buffers", flat)
        self.stream = StatisticsStream(self.center, BatchCounts(box, "run", self.norm))

    def forward(self, mean: float) -> None:
        """What a batch norm does to its statistics, without its rounding."""
        with torch.no_grad():
            self.norm.running_mean.fill_(mean)
            self.norm.num_batches_tracked.add_(1)


def test_who_ran_a_forward_is_averaged_and_who_did_not_takes_the_average():
    box = ModelBox()
    one, other = Member(box), Member(box)
    one.forward(2.0)
    one.stream.stream(RATE)
    shared = box.attach("run.buffers.float32").get()
    assert shared[:3].tolist() == pytest.approx([2 * RATE] * 3)
    assert one.norm.running_mean.tolist() == pytest.approx([2 - 2 * RATE] * 3)
    other.stream.stream(RATE)
    other.stream.stream(RATE)
    assert other.norm.running_mean.tolist() == shared[:3].tolist()
    assert box.attach("run.buffers.float32").get().tolist() == shared.tolist()
    assert other.norm.running_var.tolist() == [1, 1, 1]


def test_counts_are_the_most_that_anybody_counted_and_never_fall():
    box = ModelBox()
    one, other = Member(box), Member(box)
    for _ in range(3):
        one.forward(0.0)
    other.forward(0.0)
    for member in (one, other):
        member.stream.hand_over()
        member.stream.stream(RATE)
    other.stream.hand_over()
    assert other.norm.num_batches_tracked.item() == 3
    other.forward(0.0)
    other.stream.hand_over()
    other.stream.stream(RATE)
    assert box.attach("run.counts").get().tolist() == [4]


def test_the_bytes_are_those_that_travelled():
    one = Member(ModelBox())
    assert one.stream.stream(RATE) == 6 * 4 + 2 * 8
    one.forward(1.0)
    assert one.stream.stream(RATE) == 2 * 6 * 4 + 2 * 8


def test_a_model_without_buffers_streams_nothing():
    box = ModelBox()
    stream = StatisticsStream(None, BatchCounts(box, "run", nn.Linear(2, 1)))
    stream.hand_over()
    assert stream.stream(RATE) == 0
    assert box.regions() == []


class OnDevice:
    """A buffer of a device, and its copy in the host's memory."""

    def __init__(self) -> None:
        self.host, self.own = np.zeros(1, np.float32), 0.0

    def load(self) -> None:
        self.host[:] = self.own

    def store(self) -> None:
        self.own = float(self.host[0])


def test_a_device_is_read_before_it_is_written():
    """At most every second forward is overwritten by an average, and by no older value."""
    box, buffer = ModelBox(), OnDevice()
    region = box.create("run", shape=1)
    stream = StatisticsStream([(buffer, region)], BatchCounts(box, "run", None))
    found = []
    for streams in (1, 1, 1, 0, 1, 1):
        for _ in range(streams):
            stream.stream(0.5)
        buffer.own += 8.0  # a forward
        stream.hand_over()
        found.append(buffer.own)
    # read, the average of 8 and 0, read, read again, the average of 20 and 4, read
    assert found == [8.0, 4.0, 12.0, 20.0, 12.0, 20.0]


def test_statistics_that_are_nan_take_the_average_and_spoil_none():
    box = ModelBox()
    one, other = Member(box), Member(box)
    one.norm.running_mean.fill_(torch.nan)
    late = StatisticsStream(one.center, BatchCounts(box, "run", None))
    late.stream(RATE)
    other.stream.stream(RATE)
    assert one.norm.running_mean.tolist() == other.norm.running_mean.tolist() == [0, 0, 0]

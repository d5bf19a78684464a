from __future__ import annotations

from memnode.channel import Channel
from smbox.memory.layout import ring_name
from smbox.memory.segment import listing
from smbox.wire.codec import Request
from smbox.wire.ops import Op


class Abandoned:
    def __init__(self):
        self.request = Request(Op.GET)
        self.count = 0

    def advance(self):
        return None

    def abandon(self):
        self.count += 1


def opened(bench):
    return Channel(bench.name, (0, b"a"), 1, bench.memory.channels.claim(1, 0))


def test_only_what_answers_needs_a_ring(bench):
    channel = opened(bench)
    ring = ring_name(bench.name, channel.row.index)
    assert channel.receipt(1, answers=False).ring is None
    assert listing(ring) == []
    receipt = channel.receipt(2, answers=True)
    assert receipt.ring is not None
    assert listing(ring) == [ring]
    assert channel.receipt(3, answers=True).ring is receipt.ring
    channel.close()


def test_an_answer_is_what_the_ring_keeps(bench):
    channel = opened(bench)
    assert channel.answers(5) is None
    channel.close()


def test_closing_abandons_what_is_queued(bench):
    channel = opened(bench)
    tasks = [Abandoned(), Abandoned()]
    channel.queue.extend(tasks)
    channel.close()
    assert [task.count for task in tasks] == [1, 1]
    assert not channel.queue

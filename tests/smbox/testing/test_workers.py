from __future__ import annotations

import numpy as np
import pytest

from smbox.testing.quadratic import LR, gradient, start
from smbox.testing.workers import replay, run, sgd


def test_the_loop_alone_is_sgd():
    x = start()
    run(sgd(x, gradient(0), steps=6, lr=LR))
    y = start()
    for t in range(6):
        y = y - np.float32(LR) * gradient(0)(y, t)
    np.testing.assert_array_equal(x, y)


def test_what_an_algorithm_adds_comes_around_its_step():
    events = []

    def note(word):
        def exchange(t):
            events.append((word, t))
            yield

        return exchange

    worker = sgd(
        start(),
        lambda x, t: events.append(("gradient", t)) or x,
        steps=2,
        lr=LR,
        before=note("before"),
        after=note("after"),
        step=lambda x, g, lr: events.append(("step", lr)),
    )
    assert len(list(worker)) == 4
    assert events == [
        event
        for t in range(2)
        for event in (("gradient", t), ("before", t), ("step", LR), ("after", t))
    ]


def test_the_order_decides_and_must_be_whole():
    def found(order: str) -> list[str]:
        said: list[str] = []

        def exchange(name: str):
            def say(_t: int):
                yield
                said.append(name)

            return say

        replay(
            {
                name: sgd(start(), gradient(0), steps=3, lr=LR, after=exchange(name))
                for name in "ab"
            },
            order,
        )
        return said

    assert found("aaabbb") == list("aaabbb")
    assert found("abbaba") == list("abbaba")
    with pytest.raises(AssertionError, match=r"lacks operations of \['b'\]"):
        found("aaabb")
    with pytest.raises(AssertionError, match="too many operations of a"):
        found("aaaabb")

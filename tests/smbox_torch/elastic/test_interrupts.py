"""An interrupt at every line of an overlapped exchange, and in the end of an optimizer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from smbox import Box, Region
from smbox.testing.interrupts import interrupted
from smbox.testing.model_box import ModelBox
from smbox.testing.model_region import ModelRegion
from smbox_torch import EAMSGD, EASGD, SEASGD, completion
from smbox_torch.elastic import (
    center_add,
    eamsgd,
    easgd,
    overlap,
    seasgd,
    unfused,
    update_thread,
)
from smbox_torch.optimizer import joined, wrapped

TRACED = tuple(module.__file__ for module in (easgd, overlap, update_thread, completion))
TRACED_ADD = tuple(
    module.__file__ for module in (seasgd, center_add, unfused, update_thread, completion)
)
RATE = 0.5


def made(
    kind: type[EASGD | SEASGD] = EASGD,
    box: Box | ModelBox | None = None,
    name: str = "run",
    *,
    overlap: bool = True,
) -> tuple[Any, torch.Tensor, Callable[[], None], Any]:
    """A worker whose x grows by 1 in each step, a function that steps, and its memory."""
    box, x = ModelBox() if box is None else box, torch.nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([x], lr=1.0)
    one = kind(sgd, box, name, workers=1, moving_rate=RATE, overlap=overlap)

    def step() -> None:
        x.grad = -torch.ones(1)
        one.step()

    return one, x, step, box


def update_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if "-update" in each.name}


@pytest.mark.parametrize(
    ("kind", "is_hidden", "files"),
    [(EASGD, True, TRACED), (SEASGD, True, TRACED_ADD), (SEASGD, False, TRACED_ADD)],
)
def test_a_move_is_not_subtracted_twice_and_the_steps_go_on(
    kind: type[EASGD | SEASGD], is_hidden: bool, files: tuple[str, ...]
):
    at, is_over = 0, False
    while not is_over:
        at += 1
        one, x, step, box = made(kind, overlap=is_hidden)
        step()
        is_over = not interrupted(at, step, files)
        for _ in range(3):
            step()
        one.close()
        missing = x.item() + box.attach("run.float32").get().item() - one.steps
        assert missing in {0.0, RATE}, at  # RATE: the center has moved, and x has not
    assert missing == 0.0
    assert at > 30


@pytest.mark.parametrize("kind", [EASGD, SEASGD])
def test_an_interrupt_ends_the_wait_for_the_exchange_in_flight(kind, monkeypatch):
    before = update_threads()  # of other tests
    one, _, _, _ = made(kind)
    gate, is_over, verb = threading.Event(), [], "elastic" if kind is EASGD else "accumulate"
    work = getattr(ModelRegion, verb)

    def held(*operands, **options) -> None:
        gate.wait(5.0)
        is_over.append(True)
        work(*operands, **options)

    monkeypatch.setattr(ModelRegion, verb, held)
    one.exchange()

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(completion.Completion, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            one.close(exchange=False)
    assert not is_over
    gate.set()
    one.close(exchange=False)
    assert is_over
    assert update_threads() <= before


def test_a_close_that_was_interrupted_at_any_line_can_be_repeated(open_box, monkeypatch):
    monkeypatch.setattr(Region, "is_local", False)  # so that exchanges are on a thread
    files = tuple(module.__file__ for module in (joined, wrapped, easgd))
    box, at, is_over = open_box(), 0, False
    before = update_threads()  # of other tests
    while not is_over:
        at += 1
        one, x, step, _ = made(box=box, name=f"run{at}")
        step()
        is_over = not interrupted(at, one.close, files)
        one.close()
        assert one.member.members() == [], at
        assert x.item() + box.attach(f"run{at}.float32").get().item() == one.steps, at
        assert update_threads() <= before, at
    assert at > 10


def test_x_of_eamsgd_stays_after_an_interrupt_at_any_line_between_x_and_y():
    at, is_over = 0, False
    while not is_over:
        at += 1
        y = torch.nn.Parameter(torch.zeros(1))
        sgd = torch.optim.SGD([y], lr=1.0)
        settings = {"workers": 1, "period": 1000, "moving_rate": 1e-30, "momentum": 0.5}
        one = EAMSGD(sgd, ModelBox(), "run", **settings)
        for _ in range(2):
            y.grad = -torch.ones(1)
            one.step()
        before = y.item()
        is_over = not interrupted(at, one.exchange, (eamsgd.__file__,))
        y.grad = None
        one.step()
        assert y.item() == before, at
        one.close(exchange=False)
    assert at > 15

"""Tests of ServerDownpour after a step or a push that failed or timed out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from smbox import Handle
from smbox.errors import OutOfMemoryError, RequestTimeoutError
from smbox.testing.model_box import ModelBox
from smbox_torch.downpour.server_downpour import ServerDownpour


class Late(Handle[None]):
    """The handle of a step that timed out; the node says later what it has applied."""

    said = "unknown"

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self.ranges = ranges

    def outcome(self, timeout_s: float | None = None) -> str:
        return self.said

    def ranges_done(self) -> list[tuple[int, int]]:
        return self.ranges


class FailingBox(ModelBox):
    """A memory on which the second region's step number ``at`` raises ``error``.

    Before, it has the elements from ``first`` to ``limit``.
    """

    def __init__(self, at: int, error: Exception, first: int = 0, limit: int = 0) -> None:
        super().__init__()
        self.left, self.error, self.part = at, error, slice(first, limit)
        self.regions_seen = 0

    def optimizer(self, region, name, **parameters):
        inner = super().optimizer(region, name, **parameters)
        self.regions_seen += 1
        return inner if self.regions_seen == 1 else self.Failing(self, inner)

    class Failing:
        def __init__(self, box, inner) -> None:
            self.box, self.inner, self.states = box, inner, inner.states

        def step(self, gradient, *, lr=None):
            self.box.left -= 1
            if self.box.left:
                return self.inner.step(gradient, lr=lr)
            applied = np.zeros_like(gradient)
            applied[self.box.part] = gradient[self.box.part]
            self.inner.step(applied, lr=lr)
            raise self.box.error


def two_dtypes(box: ModelBox) -> tuple[ServerDownpour, Callable[[], None]]:
    """Return an optimizer of two regions and its step, which moves each element by -1."""
    members = [
        torch.nn.Parameter(torch.zeros(4, dtype=d)) for d in (torch.float32, torch.float64)
    ]
    opt = ServerDownpour(
        torch.optim.SGD(members, lr=1.0),
        box,
        "run",
        server="momentum",
        settings={"momentum": 0.0},
        workers=1,
    )

    def step() -> None:
        opt.zero_grad()
        sum(member.sum() for member in members).backward()
        opt.step()

    return opt, step


def centers(box: ModelBox) -> list[list[float]]:
    return [box.attach(f"run.{dtype}").get().tolist() for dtype in ("float32", "float64")]


@pytest.mark.parametrize(
    ("outcome", "first", "limit"), [("none", 0, 0), ("partial", 1, 3), ("all", 0, 4)]
)
def test_a_step_that_timed_out_is_repeated_as_far_as_it_was_not_applied(outcome, first, limit):
    error = RequestTimeoutError("late")
    error.handle = Late([(8 * first, 8 * limit)] if outcome == "partial" else [])
    box = FailingBox(2, error, first, limit)
    opt, step = two_dtypes(box)
    step()
    with pytest.raises(RequestTimeoutError, match="late"):
        step()
    for ask in (step, opt.state_dict):
        with pytest.raises(RequestTimeoutError, match="earlier step"):
            ask()
    assert opt.steps == 2
    error.handle.said = outcome
    step()
    assert centers(box) == [[-3.0] * 4] * 2


def test_a_run_continues_from_a_checkpoint_if_the_node_does_not_say_what_it_has():
    error = RequestTimeoutError("late")
    error.handle = Late([])
    box = FailingBox(2, error)
    opt, step = two_dtypes(box)
    step()
    saved = opt.state_dict()
    with pytest.raises(RequestTimeoutError, match="late"):
        step()
    opt.load_state_dict(saved, force=True)
    step()
    assert centers(box) == [[-2.0] * 4] * 2


def test_a_step_that_failed_is_repeated_for_the_regions_that_lack_it():
    box = FailingBox(2, OutOfMemoryError("full"))
    _, step = two_dtypes(box)
    step()
    with pytest.raises(OutOfMemoryError):
        step()
    step()
    assert centers(box) == [[-3.0] * 4] * 2


def test_a_fetch_that_timed_out_repeats_no_step_of_others(monkeypatch):
    box = ModelBox()
    opt, step = two_dtypes(box)
    step()
    for dtype in ("float32", "float64"):
        box.attach(f"run.{dtype}").accumulate(np.full(4, -20.0, dtype))

    def late(out: np.ndarray) -> None:
        raise RequestTimeoutError("late")

    with monkeypatch.context() as patch:
        patch.setattr(opt.center.regions[1], "get", late)
        with pytest.raises(RequestTimeoutError, match="late"):
            step()
    step()
    assert centers(box) == [[-23.0] * 4] * 2


def test_a_gradient_whose_step_is_interrupted_counts_once(monkeypatch):
    box, x = ModelBox(), torch.nn.Parameter(torch.zeros(1))
    sgd, plain = torch.optim.SGD([x], lr=1.0), {"momentum": 0.0}
    one = ServerDownpour(sgd, box, "run", server="momentum", settings=plain, workers=1)
    step = sgd.step

    def interrupt() -> None:
        step()
        raise KeyboardInterrupt

    x.grad = -torch.ones(1)
    with monkeypatch.context() as patch:
        patch.setattr(sgd, "step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            one.step()
    one.step()
    assert (box.attach("run.float32").get().item(), x.item()) == (2.0, 2.0)

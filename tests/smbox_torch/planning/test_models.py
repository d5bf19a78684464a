"""Torchvision's models for the planner: which are accepted, counted and measured, and how."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from smbox.errors import ConfigError
from smbox_torch.planning import models


def test_parameters_are_counted_without_memory_unless_the_model_computes_with_them(
    monkeypatch: pytest.MonkeyPatch,
):
    made: list[str] = []

    def make(name: str, device: str) -> torch.nn.Module:
        made.append(device)
        if name == "computes" and device == "meta":
            raise NotImplementedError
        return torch.nn.Linear(2, 3)

    monkeypatch.setattr(models, "make", make)
    assert [models.count_parameters(name) for name in ("plain", "computes")] == [9, 9]
    assert made == ["meta", "meta", "cpu"]


class Checked(torch.nn.Module):
    """Finds out in each pass whether it is as in a training step, and ends with ``wrap``."""

    def __init__(self, wrap: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.wrap, self.layer = wrap, torch.nn.Linear(3, 1000)

    def forward(self, images: torch.Tensor) -> object:
        assert self.training
        assert self.layer.weight.grad is None
        return self.wrap(self.layer(images.mean((2, 3))))


def test_each_measured_pass_is_a_training_step_with_one_output(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(models, "make", lambda *_: Checked(lambda found: found).eval())
    assert models.measure_compute_s("one", 2, rounds=2) > 0.0
    monkeypatch.setattr(models, "make", lambda *_: Checked(lambda found: (found, found)))
    with pytest.raises(ConfigError, match="several outputs"):
        models.measure_compute_s("several", 2, rounds=1)

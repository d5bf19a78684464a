"""Torchvision's models for the planner: number of parameters and compute time."""

from __future__ import annotations

from typing import Any, Final

import torch

from smbox.errors import ConfigError
from smbox_torch.planning.compute_time import median_s

__all__ = ["count_parameters", "make", "measure_compute_s"]

IMAGE: Final = (3, 224, 224)
CLASSES: Final = 1000
ROUNDS: Final = 5


def make(name: str, device: str) -> torch.nn.Module:
    """Return a torchvision model without trained weights.

    Args:
        name: torchvision's name of the model, for example "resnet50".
        device: "meta" for shapes without memory.

    Raises:
        ConfigError: torchvision is missing or has no such model.
    """
    try:
        from torchvision import models  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise ConfigError(
            "a model's name needs torchvision: pip install 'smbox[vision]', or give the number"
            " of parameters instead"
        ) from error
    if name not in models.list_models(module=models):  # only classification models
        raise ConfigError("torchvision has no such model that classifies images", name=name)
    builder: Any = models.get_model_builder(name)
    with torch.device(device):
        model: torch.nn.Module = builder(weights=None)
    return model


def count_parameters(name: str) -> int:
    """Return the number of parameters of a torchvision model.

    Raises:
        ConfigError: see :func:`make`.
    """
    try:
        model = make(name, "meta")
    except NotImplementedError:  # the constructor computes with weights, as RegNet's does
        model = make(name, "cpu")
    return sum(parameter.numel() for parameter in model.parameters())


def measure_compute_s(name: str, batch: int, rounds: int = ROUNDS) -> float:
    """Measure the forward and backward pass of a batch on this machine's processor.

    Args:
        name: torchvision's name of the model.
        batch: number of images of 224 x 224 pixels.
        rounds: number of measured rounds; the median is returned.

    Raises:
        ConfigError: see :func:`make`; or the model has several outputs in training, does not
            accept such images, or needs too much memory.
    """
    model = make(name, "cpu").train()
    loss = torch.nn.CrossEntropyLoss()

    def compute() -> None:
        model.zero_grad()
        found = model(images)
        if not isinstance(found, torch.Tensor):
            raise ConfigError(
                "measure compute_s yourself: the model has several outputs", name=name
            )
        loss(found, labels).backward()

    try:
        images = torch.randn(batch, *IMAGE)
        labels = torch.randint(0, CLASSES, (batch,))
        return median_s(compute, rounds)
    except RuntimeError as error:  # torch's only class for it
        raise ConfigError(
            "this model cannot be measured with this batch here: give compute_s instead",
            name=name,
            batch=batch,
            why=str(error),
        ) from error

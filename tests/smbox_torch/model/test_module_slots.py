from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from smbox.errors import ConfigError
from smbox_torch.model.module_slots import ModuleSlots


def replace_parameter(model: torch.nn.Sequential) -> None:
    model[0].weight = torch.nn.Parameter(torch.zeros(2, 2))


def replace_buffer(model: torch.nn.Sequential) -> None:
    model[1].running_mean = torch.zeros(2)


def replace_module_of_buffers(model: torch.nn.Sequential) -> None:
    model[1] = torch.nn.BatchNorm1d(2, affine=False)


@pytest.mark.parametrize(
    "replace", [replace_parameter, replace_buffer, replace_module_of_buffers]
)
def test_what_was_replaced_is_found(replace: Callable[[torch.nn.Sequential], None]):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2, affine=False))
    slots = ModuleSlots(model, [*model.parameters(), *model.buffers()])
    slots.check()
    replace(model)
    with pytest.raises(ConfigError, match="was replaced"):
        slots.check()

"""The tensors of a model that Hogwild's workers share: parameters, statistics, batch counts.

Statistics are floating-point buffers, such as batch norm's running mean and variance. Counts
are integer buffers, such as its ``num_batches_tracked``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch

from smbox.box import Box
from smbox.dtypes import TABLE
from smbox.errors import ConfigError
from smbox_torch.adapter import dtype_name
from smbox_torch.hogwild.state import share
from smbox_torch.model.buffers import count_buffers, float_buffers
from smbox_torch.model.flat import unique

__all__ = ["ModelTensors", "tensors_of"]


@dataclass(frozen=True)
class ModelTensors:
    """One model's tensors, or shared views or copies of them in the same order.

    Attributes:
        parameters: of the optimizer's groups, tied ones once.
        statistics: floating-point buffers that can be averaged.
        counts: integer buffers.
    """

    parameters: list[torch.Tensor]
    statistics: list[torch.Tensor]
    counts: list[torch.Tensor]

    @property
    def every(self) -> list[torch.Tensor]:
        """All of them: parameters, statistics, counts."""
        return [*self.parameters, *self.statistics, *self.counts]

    def copies(self) -> Self:
        """Return copies of all of them."""
        parameters, statistics, counts = (
            [tensor.detach().clone() for tensor in each]
            for each in (self.parameters, self.statistics, self.counts)
        )
        return type(self)(parameters, statistics, counts)

    def views(self, box: Box, name: str, copies: int = 1) -> list[Self]:
        """Return ``copies`` sets of shared tensors like these; see ``state.share``.

        Parameters lie in the regions ``NAME.DTYPE``, buffers in ``NAME.buffers.DTYPE``.
        """
        parameters = share(box, name, self.parameters * copies)
        buffers = share(box, f"{name}.buffers", [*self.statistics, *self.counts] * copies)
        middle, limit = len(self.statistics), len(self.statistics) + len(self.counts)
        found = []
        for copy in range(copies):
            first = len(self.parameters) * copy
            own = buffers[limit * copy : limit * (copy + 1)]
            found.append(
                type(self)(
                    parameters[first : first + len(self.parameters)], own[:middle], own[middle:]
                )
            )
        return found

    def become(self, views: ModelTensors) -> None:
        """Make these tensors views of the shared memory."""
        for tensor, view in zip(self.every, views.every, strict=True):
            tensor.data = view


def tensors_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> ModelTensors:
    """Return the tensors to share.

    Args:
        optimizer: gives the parameters.
        model: provides statistics and counts; None: only parameters are shared.

    Raises:
        ConfigError: a tensor is not on the CPU, or a parameter has a dtype that regions do not
            support.
    """
    parameters = unique(p for group in optimizer.param_groups for p in group["params"])
    _check_on_cpu(parameters)
    strange = sorted({dtype_name(p.dtype) for p in parameters} - {each.name for each in TABLE})
    if strange:
        raise ConfigError(
            "regions do not support the dtype of a parameter: leave it out of the optimizer",
            dtypes=strange,
        )
    if model is None:
        return ModelTensors(parameters, [], [])
    _check_on_cpu(model.buffers())
    return ModelTensors(parameters, float_buffers(model), count_buffers(model))


def _check_on_cpu(tensors: Iterable[torch.Tensor]) -> None:
    devices = sorted({str(tensor.device) for tensor in tensors} - {"cpu"})
    if devices:
        raise ConfigError(
            "Hogwild's model is mapped memory: keep it on the CPU", devices=devices
        )

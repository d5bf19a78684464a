"""Which role a rank has in HybridSGD: the root of its group, or another member."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Unpack

import torch

from smbox.errors import ConfigError
from smbox_torch.boxes import BoxLike
from smbox_torch.checks import flag, whole
from smbox_torch.elastic.center_add import check_increment
from smbox_torch.elastic.stability import check_moving_rate
from smbox_torch.hybrid.member import HybridMember
from smbox_torch.hybrid.root import HybridRoot
from smbox_torch.hybrid.seasgd import SeasgdRoot
from smbox_torch.optimizer.options import BoxOptions

__all__ = ["ExchangeName", "ExchangeSettings", "create_role"]

ExchangeName = Literal["elastic", "seasgd"]
ROOTS: dict[str, type[HybridRoot]] = {"elastic": HybridRoot, "seasgd": SeasgdRoot}


@dataclass(frozen=True)
class ExchangeSettings:
    """The settings of a group's exchanges with the center; see HybridSGD.

    Raises:
        ConfigError: the exchange or the period is invalid, or the exchange has no increment.
        TypeError: period, moving_rate, overlap or increment has a wrong type.
    """

    exchange: ExchangeName
    period: int
    moving_rate: float | None
    overlap: bool
    increment: str | None

    def __post_init__(self) -> None:
        whole("period", self.period)
        check_moving_rate(self.moving_rate)
        flag("overlap", self.overlap)
        check_increment(self.increment)
        if self.exchange not in [*ROOTS]:
            raise ConfigError(f"exchange is one of {', '.join(ROOTS)}", got=self.exchange)
        if self.increment is not None and not self.steps_first:
            raise ConfigError(
                "only exchange='seasgd' has an increment", increment=self.increment
            )

    @property
    def algorithm(self) -> str:
        """The name of the algorithm in a saved state."""
        return ROOTS[self.exchange].__name__

    @property
    def counts_groups(self) -> bool:
        """Whether the moving rate depends on the number of groups."""
        return self.exchange == "seasgd" and self.moving_rate is None

    @property
    def steps_first(self) -> bool:
        """Whether an exchange follows the step in which it is due."""
        return self.exchange == "seasgd"

    @property
    def is_hidden(self) -> bool:
        """Whether the exchange runs while gradients are computed."""
        return self.overlap and not self.steps_first


def create_role(
    optimizer: torch.optim.Optimizer,
    box: BoxLike | None,
    name: str,
    settings: ExchangeSettings,
    address: torch.Tensor | None,
    **options: Unpack[BoxOptions],
) -> HybridRoot | HybridMember:
    """Create the role of this rank.

    Args:
        optimizer: the inner optimizer.
        box: the box of this rank, or None.
        name: name of the run.
        settings: settings of the root's exchanges.
        address: tensor that receives the address of the root's box; None on the root.
        options: model, center_dtype, wire, workers (the number of groups) and rank (the number
            of this group).

    Raises:
        ConfigError: a root without a box.
    """
    if address is not None:
        return HybridMember(optimizer, box, name, address, settings.algorithm, **options)
    if box is None:
        raise ConfigError("the root of a group needs a box")
    if not settings.steps_first:
        return HybridRoot(
            optimizer,
            box,
            name,
            period=settings.period,
            moving_rate=settings.moving_rate,
            **options,
        )
    return SeasgdRoot(
        optimizer,
        box,
        name,
        period=settings.period,
        moving_rate=settings.moving_rate,
        overlap=settings.overlap,
        increment=settings.increment,
        **options,
    )

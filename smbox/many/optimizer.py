"""StripedOptimizer: an optimizer whose state lies with the parts of a striped region."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from smbox.array import source_array
from smbox.errors import ConfigError, PeerLostError, SmboxError
from smbox.handle import Handle
from smbox.many.region import StripedRegion
from smbox.many.striping import NO_MEMORY
from smbox.many.work import ManyWork, Share
from smbox.optimizer import Optimizer
from smbox.paths.requests import nothing


class StripedOptimizer(Optimizer):
    """A server-side optimizer on a striped region: one optimizer for each part; thread-safe.

    A step changes the parameters and state of a stripe together, as on one node. The state of
    a part is on its node, under the part's name; free it before the region, for a new region
    of the same name has other parts.

    Attributes:
        region: the parameters.
        states: the state, each as a striped region, by name.

    Args:
        region: a whole striped region of floats, of consistency "stripe".
        name: as in Optimizer.
        given: its parameters by name.

    Raises:
        ConfigError: name, parameters or region make no sense; nothing was created.
        SmboxError: a node refused its state, or is lost; it is named.
    """

    def __init__(self, region: StripedRegion, name: str, given: dict[str, float]) -> None:
        if region.shape != region.info.shape:
            raise ConfigError(
                "an optimizer steps a whole region of floats, of consistency 'stripe'",
                region=region.name,
            )
        self.region = region
        self._striped = region
        self._each: list[Optimizer] = []
        for part in region.placed:
            with part.node.named():
                self._each.append(part.node.box.optimizer(part.region, name, **given))
        self.states = {state: self._whole(state) for state in self._each[0].states}

    def step(
        self, gradient: Any, *, lr: float | None = None, timeout_s: float | None = None
    ) -> None:
        """Take one step along ``gradient``; see ``Optimizer.step``."""
        self._handle(gradient, lr).finish(timeout_s)

    def step_nb(self, gradient: Any, *, lr: float | None = None) -> Handle[None]:
        """Begin a ``step``; the gradient is untouchable until it is done."""
        return self._handle(gradient, lr).begin()

    def free(self) -> None:
        """Free the state, for all workers; the parameters stay."""
        first_error: SmboxError | None = None
        for part, optimizer in zip(self._striped.placed, self._each, strict=True):
            try:
                with part.node.named(), suppress(PeerLostError):
                    optimizer.free()
            except SmboxError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def _handle(self, gradient: Any, lr: float | None) -> Handle[None]:
        region = self._striped
        array = source_array(gradient, region.dtype, region.shape, may_be_narrower=True)
        shares = [
            Share(part.node, part.offset, partial(optimizer.step_nb, part.of(array), lr=lr))
            for part, optimizer in zip(region.placed, self._each, strict=True)
        ]
        timeout_s = region.striping.paths.timeout_s
        return Handle("step", ManyWork(shares), nothing, timeout_s)

    def _whole(self, state: str) -> StripedRegion:
        """Return the parts' state of this name as one region."""
        striping = self._striped.striping
        parts = tuple(
            replace(part, region=optimizer.states[state])
            for part, optimizer in zip(striping.parts, self._each, strict=True)
        )
        first = parts[0].region.info
        info = replace(
            striping.info, name=first.name, address=first.address, node_uuid=NO_MEMORY
        )
        return StripedRegion(replace(striping, info=info, parts=parts, head=None))

    def __repr__(self) -> str:
        return f"StripedOptimizer({self.region.name!r})"

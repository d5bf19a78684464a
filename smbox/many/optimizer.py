"""StripedOptimizer: an optimizer whose state lies with the parts of a striped region."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from smbox.many.creating import free_parts
from smbox.many.paths import ManyPaths
from smbox.many.striping import StripedInfo
from smbox.optimizer import Optimizer, create_state
from smbox.region import Region


class StripedOptimizer(Optimizer):
    """A server-side optimizer on a striped region; thread-safe.

    A step changes the parameters and state of a stripe together, as on one node. The state of
    a part is on its node, under the part's name; free it before the region, for a new region
    of the same name has other parts.

    Attributes:
        region: the parameters.
        states: the state, each as a striped region, by name.

    Args:
        paths: to all nodes, shared with the box.
        region: a whole striped region of floats, of consistency "stripe".
        name: as in Optimizer.
        given: its parameters by name.

    Raises:
        ConfigError: name, parameters or region make no sense; nothing was created.
        SmboxError: a node refused its state, or is lost; it is named.
    """

    def __init__(
        self, paths: ManyPaths, region: Region, name: str, given: dict[str, float]
    ) -> None:
        self._nodes = paths.nodes
        super().__init__(paths, region, name, given)

    def free(self) -> None:
        """Free the state, for all workers; the parameters stay."""
        states = (state.info for state in self.states.values())
        parts = (state.parts for state in states if isinstance(state, StripedInfo))
        free_parts(self._nodes, chain.from_iterable(parts))

    def _state(self, name: str, value: float) -> Region:
        whole = self.region.info
        assert isinstance(whole, StripedInfo)
        made = []
        for part in whole.parts:
            node = self._nodes[part.address.node]
            with node.named():
                made.append(create_state(node.paths, part, name, value))
        first = made[0]
        parts = replace(
            whole, name=first.name, address=first.address, parts=tuple(made), head=None
        )
        return Region(self._paths, parts)

    def __repr__(self) -> str:
        return f"StripedOptimizer({self.region.name!r})"

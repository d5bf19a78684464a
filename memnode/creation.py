"""CREATE: a region is made a slice at a time, and others are served meanwhile.

Making a large region takes longer than its client waits before it sends the CREATE again: that
copy goes on with it. Where none comes, a region with a name is made all the same.
"""

from __future__ import annotations

import contextlib
import logging
import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from memnode.registry import Registry
from smbox import dtypes
from smbox.dtypes import DType
from smbox.errors import ConfigError
from smbox.memory.channels import ChannelKey
from smbox.memory.kernels import BarrierWord
from smbox.memory.layout import STRIPE_NBYTES, RegionKind
from smbox.memory.mapped import Building, MappedRegion
from smbox.memory.region_header import RegionSpec, check_consistency, check_limits
from smbox.wire.messages import Create

UNCLAIMED_S: Final = 5.0
"""How long a region that is to have no name is made on for a CREATE that is not sent again."""

KINDS: Final = frozenset({RegionKind.ARRAY, RegionKind.COUNTER, RegionKind.BARRIER})

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Build:
    """A region in the making.

    Attributes:
        building: its memory.
        create: what was asked for.
        owner: the channel that asked.
        limit_s: until when a region without a name is made on, once its channel has lost the
            connection; until then its CREATE is run again and again.
    """

    building: Building
    create: Create
    owner: ChannelKey
    limit_s: float = math.inf


class Builds:
    """The regions in the making, of which each belongs to one CREATE.

    Attributes:
        under_way: all of them.

    Args:
        registry: where they will be found.
    """

    def __init__(self, registry: Registry) -> None:
        self.under_way: list[Build] = []
        self._registry = registry

    def resume(self, create: Create, owner: ChannelKey) -> Build | None:
        """Return what this CREATE, or an earlier copy that was cut off, has begun."""
        for build in self.under_way:
            is_ours = build.owner == owner or build.limit_s < math.inf
            if is_ours and build.create.token == create.token:
                build.owner, build.limit_s = owner, math.inf
                return build
        return None

    def refuse(self, create: Create, owner: ChannelKey) -> None:
        """Give up what this CREATE has begun, if it has begun: it is not run again."""
        build = self.resume(create, owner)
        if build is not None:
            self._give_up(build)

    def has_like(self, spec: RegionSpec) -> bool:
        """Tell whether a region of this name, or for a copy of this CREATE, is being made."""
        for build in self.under_way:
            own = build.building.spec
            if spec.token and own.token == spec.token:
                return True
            if build.create.publish and (own.kind, own.name) == (spec.kind, spec.name):
                return True
        return False

    def begin(self, spec: RegionSpec, create: Create, owner: ChannelKey) -> Build:
        """Begin to make a region.

        Raises:
            LimitError: no more regions.
            OutOfMemoryError: no room.
        """
        build = Build(self._registry.begin(spec, create.init), create, owner)
        self.under_way.append(build)
        return build

    def step(self, build: Build) -> MappedRegion | None:
        """Do one slice of the work; return the region once it is whole.

        Raises:
            OutOfMemoryError: somebody else took the room; nothing is left.
            SmboxError: as ``Registry.existing``: another region was published under this name
                meanwhile; nothing is left.
        """
        create, spec = build.create, build.building.spec
        try:
            if not build.building.step():
                return None
            if create.publish:
                winner = self._registry.existing(spec, exist_ok=create.exist_ok)
                if winner is not None:
                    self._give_up(build)
                    return winner
            region = self._registry.finish(
                build.building, build.owner, publish=create.publish, scratch=create.scratch
            )
        except BaseException:
            self._give_up(build)
            raise
        self.under_way.remove(build)
        return region

    def detach(self, owner: ChannelKey, *, now_s: float) -> None:
        """Make the builds of a channel go on by themselves: it has lost its connection."""
        for build in self.under_way:
            if build.owner == owner and build.limit_s == math.inf:
                build.limit_s = now_s + UNCLAIMED_S

    def step_detached(self, *, now_s: float) -> None:
        """Do a slice of each detached one; what nobody will find is given up."""
        for build in [each for each in self.under_way if each.limit_s < math.inf]:
            if not build.create.publish and now_s >= build.limit_s:
                self._give_up(build)
                continue
            try:
                region = self.step(build)
                if region is not None and not build.create.publish:
                    self._registry.free(region.address)
            except Exception as error:  # noqa: BLE001 -- nobody is there to be told
                _LOG.info("a region that was begun is given up: %s", error)

    def release(self, owner: ChannelKey | None = None) -> None:
        """Give up what a channel began that is gone; None: what all have begun."""
        for build in self.under_way.copy():
            if owner is None or build.owner == owner:
                self._give_up(build)

    def _give_up(self, build: Build) -> None:
        self.under_way.remove(build)
        build.building.abandon()


def spec_of(create: Create) -> RegionSpec:
    """Return what a CREATE asks for.

    Raises:
        ConfigError: no such element type, kind or consistency, or a counter or barrier of
            another layout.
        LimitError: the name or the size is beyond every limit.
    """
    spec = RegionSpec(
        name=create.name,
        dtype=dtypes.by_name(create.dtype),
        shape=tuple(create.shape),
        kind=create.kind,
        consistency=create.consistency,
        token=int.from_bytes(create.token, "little"),
    )
    check_limits(spec)
    check_consistency(spec)
    if spec.kind not in KINDS:
        raise ConfigError("no such kind of region", kind=spec.kind)
    if spec.kind == RegionKind.COUNTER and (spec.dtype.name, spec.size) != ("int64", 1):
        raise ConfigError("a counter is one int64", dtype=spec.dtype.name, shape=spec.shape)
    if spec.kind == RegionKind.BARRIER and (
        spec.dtype.name != "uint64"
        or spec.size <= BarrierWord.MEMBERS
        or spec.nbytes > STRIPE_NBYTES
    ):
        raise ConfigError(
            "a barrier is uint64: generation, arrived, parties, members",
            dtype=spec.dtype.name,
            shape=spec.shape,
        )
    return spec


def check_init(dtype: DType, init: float | None) -> None:
    """Check that ``init`` is a value that elements of ``dtype`` can hold.

    Raises:
        ConfigError: it is not; floats may be rounded, whole numbers may not.
    """
    if init is None or dtype.kind == "float":
        return
    with contextlib.suppress(ValueError, OverflowError):  # of NaN, and of what is too large
        if np.asarray(int(init), dtype.numpy) == init:
            return
    raise ConfigError("init is no value of this type", init=init, dtype=dtype.name)

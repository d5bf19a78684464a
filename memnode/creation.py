"""Creation of regions in slices, between which the node serves other requests.

Creating a large region takes longer than its client waits before it reconnects and repeats the
CREATE. The repeated CREATE continues the build; until it arrives, the node does.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection

import numpy as np
from msgspec import Struct

from memnode.registry import Registry
from smbox import dtypes
from smbox.dtypes import DType
from smbox.errors import ConfigError
from smbox.memory.channels import ChannelKey
from smbox.memory.kernels import BarrierWord
from smbox.memory.layout import STRIPE_NBYTES, RegionKind
from smbox.memory.mapped import Building, MappedRegion
from smbox.memory.node_memory import NodeMemory
from smbox.memory.region_header import RegionSpec, check_consistency, check_limits
from smbox.wire.messages import Create

_LOG = logging.getLogger(__name__)


class Build(Struct, eq=False):
    """A region that is being created.

    Attributes:
        building: its memory.
        create: the request.
        owner: the channel of the request.
    """

    building: Building
    create: Create
    owner: ChannelKey


class Builds:
    """The regions that are being created, each for one CREATE.

    Attributes:
        in_progress: all builds, by channel and token of their CREATE.

    Args:
        memory: that holds them.
        registry: of the completed regions.
    """

    def __init__(self, memory: NodeMemory, registry: Registry) -> None:
        self.in_progress: dict[tuple[ChannelKey, bytes], Build] = {}
        self._memory = memory
        self._registry = registry

    def conflicts(self, spec: RegionSpec) -> bool:
        """Return whether a region is being created that is to be published under this name."""
        creates = [build.create for build in self.in_progress.values() if build.create.publish]
        return (spec.kind, spec.name) in [(create.kind, create.name) for create in creates]

    def begin(self, spec: RegionSpec, create: Create, owner: ChannelKey) -> Build:
        """Begin to create a region; raises as ``NodeMemory.begin``."""
        build = Build(self._memory.begin(spec, create.init), create, owner)
        self.in_progress[owner, create.token] = build
        return build

    def step(self, build: Build) -> MappedRegion | None:
        """Do one slice of the work; return the region when it is complete, else None.

        If another region was published under its name meanwhile, the build is abandoned: its
        CREATE, which is run again, finds that region.

        Raises:
            OutOfMemoryError: another process took the memory; the caller releases the build.
        """
        create = build.create
        if create.publish and self._registry.find(create.kind, create.name) is not None:
            self._abandon(build)
            return None
        if not build.building.step():
            return None
        region = self._registry.finish(build.building, build.owner, publish=create.publish)
        del self.in_progress[build.owner, create.token]
        return region

    def step_others(self, parked: Collection[tuple[ChannelKey, bytes]]) -> None:
        """Do a slice of each build whose CREATE is not parked: its client asks no more for it.

        Another CREATE of its channel may be parked, and wait for it.
        """
        for build in [each for key, each in self.in_progress.items() if key not in parked]:
            try:
                self.step(build)
            except Exception as error:  # noqa: BLE001 -- no client waits for it
                _LOG.info("abandoned the build of a region: %s", error)
                self.release(build.owner, build.create.token)

    def release(self, owner: ChannelKey | None = None, token: bytes | None = None) -> None:
        """Abandon the builds of a channel, or of its CREATE with this token; None: of all."""
        for build in list(self.in_progress.values()):
            if owner in {None, build.owner} and token in {None, build.create.token}:
                self._abandon(build)

    def _abandon(self, build: Build) -> None:
        del self.in_progress[build.owner, build.create.token]
        build.building.abandon()


def spec_of(create: Create) -> RegionSpec:
    """Return the region that a CREATE asks for, checked.

    Raises:
        ConfigError: unknown element type, kind or consistency, a wrong layout of a counter or
            barrier, or a wrong initial value.
        LimitError: the name or the size exceeds a limit.
    """
    spec = RegionSpec(
        name=create.name,
        dtype=dtypes.by_name(create.dtype),
        shape=tuple(create.shape),
        kind=create.kind,
        consistency=create.consistency,
        token=create.token,
    )
    check_limits(spec)
    check_consistency(spec)
    if spec.kind not in RegionKind.NAMES:
        raise ConfigError("unknown kind of region", kind=spec.kind)
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
    check_init(spec.dtype, create.init)
    return spec


def check_init(dtype: DType, init: float | None) -> None:
    """Check that elements of ``dtype`` can have the value ``init``.

    Floats may be rounded, whole numbers may not.

    Raises:
        ConfigError: they cannot.
    """
    if init is None or dtype.kind == "float":
        return
    with contextlib.suppress(ValueError, OverflowError):  # NaN, or out of range
        if np.asarray(int(init)).astype(dtype.numpy) == init:
            return
    raise ConfigError("init is not a value of this type", init=init, dtype=dtype.name)

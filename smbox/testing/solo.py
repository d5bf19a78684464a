"""A memory without a server: this process owns the memory and does the node's work.

For tests of clients on mapped memory: no socket, no second process, no waiting.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

from smbox.address import GlobalAddress
from smbox.box import Box
from smbox.config import ClientConfig
from smbox.errors import (
    AddressRangeError,
    LayoutMismatchError,
    RegionExistsError,
    RegionFreedError,
    RegionNotFoundError,
)
from smbox.memory.layout import RegionState
from smbox.memory.mapped import MappedRegion
from smbox.memory.node_memory import NodeMemory
from smbox.memory.region_header import RegionSpec
from smbox.paths.control import ControlPath
from smbox.paths.local import LocalPath
from smbox.paths.opening import OpenPaths
from smbox.paths.pair import PathPair
from smbox.paths.requests import CreateRequest, NodeInfo, RegionInfo

MEMORY_NBYTES = 256 * 1024 * 1024
TIMEOUT_S = 30.0


class SoloControl:
    """A ControlPath on memory that this process owns.

    Args:
        memory: the node's memory.
    """

    def __init__(self, memory: NodeMemory) -> None:
        self.memory = memory
        self.address = f"inproc://{memory.name}"
        self._mutex = threading.Lock()
        self._created: dict[bytes, int] = {}  # addresses by token
        superblock = memory.superblock
        self.node = NodeInfo(
            memory.name, superblock.uuid, superblock.node_id, superblock.incarnation
        )

    def create(
        self,
        request: CreateRequest,
        timeout_s: float,  # noqa: ARG002
        token: bytes,
        *,
        restarts: bool = False,  # noqa: ARG002
    ) -> RegionInfo:
        """Create a region; see ControlPath."""
        with self._mutex:
            found = self._find(request.name, request.kind)
            if found is not None:
                _check_agreed(found, request, exist_ok=request.exist_ok)
                return self._info(found)
            spec = RegionSpec(
                request.name, request.dtype, request.shape, request.kind, request.consistency
            )
            building = self.memory.begin(spec, request.init)
            while not building.step():
                pass
            state = RegionState.LIVE if request.publish else RegionState.BUILDING
            region = building.finish(state)
            self.memory.regions[region.address] = region
            self._created[token] = region.address
            return self._info(region)

    def publish(self, info: RegionInfo, timeout_s: float) -> None:  # noqa: ARG002
        """Make a region visible, or free it if the name is taken; see ControlPath."""
        with self._mutex:
            ours = self._at(info.address)
            found = self._find(info.name, info.kind)
            if found is None:
                ours.state = RegionState.LIVE
                return
            self.memory.free(ours)
            raise RegionExistsError("another was faster", name=info.name)

    def find(self, name: str, kind: int, timeout_s: float) -> RegionInfo:  # noqa: ARG002
        """Find a region; see ControlPath."""
        with self._mutex:
            found = self._find(name, kind)
        if found is None:
            raise RegionNotFoundError("no such region", name=name)
        return self._info(found)

    def attach(self, name: str, kind: int, deadline_s: float) -> RegionInfo:
        """Find a region; wait for it; see ControlPath."""
        while True:
            try:
                return self.find(name, kind, 0.0)
            except RegionNotFoundError:
                if time.monotonic() >= deadline_s:
                    raise
            time.sleep(1e-3)

    def locate(self, address: int, timeout_s: float) -> RegionInfo:  # noqa: ARG002
        """Find the region that holds an address; see ControlPath."""
        with self._mutex:
            for region in self.memory.regions.values():
                if region.address <= address < region.address + max(1, region.nbytes):
                    return self._info(region)
        raise AddressRangeError("no region holds this address", address=address)

    def free(self, address: int, timeout_s: float) -> None:  # noqa: ARG002
        """Free a region; see ControlPath."""
        with self._mutex:
            self.memory.free(self._at(address))

    def begin_free(self, address: int) -> None:
        """Free a region; see ControlPath."""
        self.free(address, 0.0)

    def end_free(self, call: None, timeout_s: float) -> None:
        """Do nothing: the region is free; see ControlPath."""

    def discard(self, token: bytes, *, published: bool = False) -> None:
        """Free the region that was created with a token; see ControlPath."""
        region = self.memory.regions.get(self._created.pop(token, -1))
        if region is None:
            return  # it was not created, or is free
        if published or region.state == RegionState.BUILDING:
            self.memory.free(region)

    def regions(self, timeout_s: float) -> list[RegionInfo]:  # noqa: ARG002
        """List the live regions; see ControlPath."""
        with self._mutex:
            regions = sorted(self.memory.regions.values(), key=lambda region: region.address)
            return [
                self._info(region) for region in regions if region.state == RegionState.LIVE
            ]

    def stats(self, timeout_s: float) -> dict[str, Any]:  # noqa: ARG002
        """Return the bytes in use."""
        return {"memory_used_nbytes": self.memory.used_nbytes()}

    def say_bye(self) -> None:
        """Do nothing: there is no node."""

    def close(self) -> None:
        """Do nothing: ``solo_boxes`` owns the memory."""

    def abandon(self) -> None:
        """Do nothing."""

    def _at(self, address: int) -> MappedRegion:
        region = self.memory.regions.get(int(address))
        if region is None:
            raise RegionFreedError("no region begins here", address=address)
        return region

    def _find(self, name: str, kind: int) -> MappedRegion | None:
        for region in self.memory.regions.values():
            spec = region.spec
            if (spec.name, spec.kind, region.state) == (name, kind, RegionState.LIVE):
                return region
        return None

    def _info(self, region: MappedRegion) -> RegionInfo:
        spec = region.spec
        return RegionInfo(
            spec.name,
            spec.dtype,
            spec.shape,
            spec.kind,
            spec.consistency,
            address=GlobalAddress(region.address),
            node_uuid=self.node.uuid,
        )


def _check_agreed(found: MappedRegion, request: CreateRequest, *, exist_ok: bool) -> None:
    if not exist_ok:
        raise RegionExistsError("the name is taken", name=request.name)
    if (found.spec.dtype, found.spec.shape) != (request.dtype, request.shape):
        raise LayoutMismatchError("the region exists with another layout", name=request.name)


class SoloOpener:
    """Opens the paths to a memory of this process.

    Args:
        control: control path of all boxes; each box gets its own local path.
    """

    def __init__(self, control: SoloControl) -> None:
        self.control = control

    def __call__(self, config: ClientConfig) -> OpenPaths:  # noqa: ARG002 - an opener's form
        """Open a local path."""
        data = LocalPath(self.control.node)
        control = cast("ControlPath", self.control)  # a test compares their methods
        return OpenPaths(control, data, "this process owns the memory")


@contextlib.contextmanager
def solo_boxes(memory_nbytes: int = MEMORY_NBYTES) -> Iterator[SoloOpener]:
    """Create a memory for the block; ``solo_box(opener)`` returns boxes on it."""
    name = f"solo-{secrets.token_hex(6)}"
    memory = NodeMemory.open(name, memory_nbytes)
    try:
        yield SoloOpener(SoloControl(memory))
    finally:
        memory.close(keep=False)


def solo_box(opener: SoloOpener, timeout_s: float = TIMEOUT_S) -> Box:
    """Return a box on the memory."""
    config = ClientConfig(address=opener.control.address, timeout_s=timeout_s)
    return Box(PathPair(config, opener))

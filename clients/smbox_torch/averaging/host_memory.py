"""Memory that the ranks of one host share for one run, without a memory node.

Local rank 0 makes the segment; the others find it by name and token. Once all are there its
name is removed, so that whatever happens later nothing stays in /dev/shm: the memory goes
with the last process. Only a run that dies while it gathers leaves a name behind; the next
one to gather on the host, whatever its name, finds and removes it.

    page 0    Header words
    page 1    a row of rendezvous words per rank
    then      the data, from a page boundary
"""

from __future__ import annotations

import hashlib
import os
import time
import zlib
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError, SegmentError, WorkerLostError
from smbox.memory import process, segment
from smbox.memory.layout import PAGE_NBYTES, WORD_NBYTES, align
from smbox.memory.segment import Segment
from smbox_torch.averaging.rendezvous import ROW_WORDS, Rendezvous
from smbox_torch.world import World

HOST_PREFIX: Final = "smbox-host."
"""No memory node has names like these: its own begin with ``smbox.`` and its name."""
DIGEST_LENGTH: Final = 12
BUILDING: Final = ".building"
POLL_S: Final = 2e-3
GATHERED: Final = 3  # the last of a row's counters; the others are the user's


class Header:
    """Words of the first page."""

    MAGIC_VALUE: Final = 0x54534F4858424D53  # "SMBXHOST"
    MAGIC: Final = 0
    PID: Final = 1
    STARTED: Final = 2
    RANKS: Final = 3
    NBYTES: Final = 4
    DIGEST: Final = 5  # of what the ranks mean to put there
    WORDS: Final = 6


class HostMemory:
    """One rank's mapping of the memory it shares with the other ranks of its host.

    Args:
        mapped: the segment.
        rendezvous: of the ranks; its counters 0 to 2 are free for use.
        data: ``u8[nbytes]``, zeros at first.
    """

    def __init__(
        self, mapped: Segment, rendezvous: Rendezvous, data: NDArray[np.uint8]
    ) -> None:
        self._segment = mapped
        self._is_closed = False
        self.rendezvous = rendezvous
        self.data = data

    @classmethod
    def join(
        cls, name: str, world: World, nbytes: int, *, layout: str = "", timeout_s: float
    ) -> Self:
        """Share ``nbytes`` with the other ranks of this host; returns when all are there.

        Args:
            name: what the memory is for, any text; a run may use a name again, one after the
                other.
            world: who this process is.
            nbytes: of data; the same on every rank.
            layout: what the data means, in words; the same on every rank.
            timeout_s: until a rank that does not come is given up, in seconds.

        Raises:
            ConfigError: the ranks disagree about size or layout; nothing is left.
            WorkerLostError: a rank died or never came; nothing is left.
            OutOfMemoryError: /dev/shm has no room; nothing is left.
        """
        wanted = _header(world, nbytes, layout)
        full_name = _full_name(name, world)
        mapped = (
            _make(full_name, wanted) if world.is_group_root else _find(full_name, timeout_s)
        )
        try:
            return cls._gather(mapped, wanted, world, timeout_s)
        finally:
            if world.is_group_root:
                mapped.unlink()

    @classmethod
    def _gather(
        cls, mapped: Segment, wanted: NDArray[np.uint64], world: World, timeout_s: float
    ) -> Self:
        """Meet the others; no rank returns before the root has removed the name."""
        ranks = world.local_world_size
        first_rank = world.rank_of(0)
        rows = mapped.words(PAGE_NBYTES, ranks * ROW_WORDS).reshape(ranks, ROW_WORDS)
        rendezvous = Rendezvous(
            rows, world.local_rank, timeout_s=timeout_s, first_rank=first_rank
        )
        rendezvous.enter()
        made = mapped.words(0, Header.WORDS)
        if (made[Header.RANKS :] != wanted[Header.RANKS :]).any():
            rendezvous.leave()
            raise ConfigError(
                f"rank {world.rank} and rank {first_rank} do not mean the same shared memory:"
                " give all ranks the same model and the same arguments",
                here=wanted[Header.RANKS :].tolist(),
                there=made[Header.RANKS :].tolist(),
            )
        rendezvous.raise_to(GATHERED, 1)
        rendezvous.wait(GATHERED, 1)
        if world.is_group_root:
            mapped.unlink()
        rendezvous.raise_to(GATHERED, 2)
        rendezvous.wait(GATHERED, 2)
        at_byte = _data_at(ranks)
        return cls(
            mapped, rendezvous, mapped.bytes[at_byte : at_byte + int(made[Header.NBYTES])]
        )

    def close(self, *, steps: int | None = None) -> None:
        """Leave the group and drop the mapping; views of the data stay valid.

        Args:
            steps: that this rank did, if its loop ended as it should.
        """
        if not self._is_closed:
            self._is_closed = True
            self.rendezvous.leave(steps=steps)
        self.data = np.empty(0, np.uint8)
        self._segment.close()


def _full_name(name: str, world: World) -> str:
    """Name the segment: what a user calls it may hold a "/", which no segment's name can."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{HOST_PREFIX}{digest}.{world.host_token}"


def remove_leftovers() -> list[str]:
    """Unlink what dead runs of this user left while they gathered; returns the names."""
    removed = []
    for name in segment.listing(HOST_PREFIX):
        if _is_ours(name) and not process.is_alive(*_creator(name)):
            segment.unlink(name)
            removed.append(name)
    return removed


def _is_ours(name: str) -> bool:
    """Tell whether this user made the segment; only then may it be read and removed."""
    try:
        owner = (segment.DIRECTORY / name).stat().st_uid
    except FileNotFoundError:  # its own run has just removed it
        return False
    return owner == os.geteuid()


def _header(world: World, nbytes: int, layout: str) -> NDArray[np.uint64]:
    words = np.zeros(Header.WORDS, np.uint64)
    words[Header.MAGIC] = Header.MAGIC_VALUE
    words[Header.PID], words[Header.STARTED] = process.identity()
    words[Header.RANKS] = world.local_world_size
    words[Header.NBYTES] = nbytes
    words[Header.DIGEST] = zlib.crc32(layout.encode())
    return words


def _data_at(ranks: int) -> int:
    return align(PAGE_NBYTES + ranks * ROW_WORDS * WORD_NBYTES)


def _make(name: str, header: NDArray[np.uint64]) -> Segment:
    """Create the segment under its builder's name and rename it when its header is whole."""
    remove_leftovers()
    if name in segment.listing(name):
        raise SegmentError(
            "a group of this name is being gathered by a living process: give each group its"
            " own name",
            segment=name,
        )
    pid, pid_started = process.identity()
    nbytes = _data_at(int(header[Header.RANKS])) + int(header[Header.NBYTES])
    made = Segment.create(f"{name}{BUILDING}.{pid}.{pid_started}", align(nbytes))
    made.words(0, Header.WORDS)[:] = header
    made.rename(name)
    return made


def _find(name: str, timeout_s: float) -> Segment:
    """Attach to what local rank 0 has made, or will; a dead maker's segment is not it."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if process.is_alive(*_creator(name)):
            return Segment.attach(name)
        time.sleep(POLL_S)
    raise WorkerLostError(
        "local rank 0 of this host never came", rank=0, name=name, timeout_s=timeout_s
    )


def _creator(name: str) -> tuple[int, int]:
    """Return pid and start time of who made the segment, or zeros where none is told."""
    if BUILDING in name:
        pid, pid_started = name.rpartition(BUILDING)[2].split(".")[1:]
        return int(pid), int(pid_started)
    try:
        with Segment.attach(name) as found:
            words = found.words(0, Header.WORDS)
            return int(words[Header.PID]), int(words[Header.STARTED])
    except SegmentError:
        return 0, 0

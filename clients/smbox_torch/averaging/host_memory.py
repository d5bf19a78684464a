"""Memory that the ranks of one host share for one run, without a memory node.

Local rank 0 creates the segment; the others find it by name and token. Once all ranks have
attached, the name is removed. So nothing stays in /dev/shm: the memory is freed with the last
process. Only a run that dies before that leaves a name behind; the next run on the host that
creates such a segment, under any name, removes it. A name ends with its creator's pid and start
time, so no living process can create memory under the name of a dead one meanwhile.

    page 0    Header words
    page 1    a row of rendezvous words per rank
    then      the data, from a page boundary
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import zlib
from contextlib import suppress
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError, SegmentError, WorkerLostError
from smbox.memory import process, segment
from smbox.memory.layout import PAGE_NBYTES, WORD_NBYTES, align
from smbox.memory.segment import Segment
from smbox.native import library
from smbox_torch.averaging.rendezvous import ROW_WORDS, Rendezvous, Word
from smbox_torch.world import World

HOST_PREFIX: Final = "smbox-host."
"""Memory nodes do not use such names: theirs begin with ``smbox.`` and the node's name."""
DIGEST_LENGTH: Final = 12
BUILDING: Final = "building."
_CREATOR: Final = re.compile(r"\.(\d+)\.(\d+)$")
POLL_S: Final = 2e-3
GATHERED: Final = ROW_WORDS - Word.COUNTERS - 1
"""The last of a row's counters; the others are free for the user."""


class Header:
    """Words of the first page."""

    MAGIC_VALUE: Final = 0x54534F4858424D53  # "SMBXHOST"
    MAGIC: Final = 0
    DIFFERS: Final = 1  # local rank of one that expects other words from RANKS on, or 0
    RANKS: Final = 2
    NBYTES: Final = 3
    DIGEST: Final = 4  # of the layout
    WORDS: Final = 5


class HostMemory:
    """One rank's mapping of the memory that the ranks of its host share.

    Args:
        mapped: the segment.
        rendezvous: the counters of the ranks; those below GATHERED are free for use.
        data: ``u8[nbytes]``, initially zeros.
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
        """Share ``nbytes`` with the other ranks of this host; wait until all have attached.

        Args:
            name: name of the memory, any text; a run may use a name several times in sequence.
            world: rank and size of this process.
            nbytes: size of the data; the same on every rank.
            layout: description of the data; the same on every rank.
            timeout_s: longest wait for a rank, in seconds.

        Raises:
            ConfigError: on all ranks, if they disagree about size or layout; the memory was
                removed.
            WorkerLostError: a rank died or never arrived; the memory was removed.
            OutOfMemoryError: /dev/shm is full; the memory was removed.
            NativeError: there is no native library, whose fence the rendezvous needs.
        """
        library.load()  # before a rank waits for others that cannot come either
        wanted = _header(world, nbytes, layout)
        group = _group_name(name, world)
        mapped = _make(group, wanted) if world.is_group_root else _find(group, timeout_s)
        try:
            return cls._gather(mapped, wanted, world, timeout_s)
        finally:
            if world.is_group_root:
                mapped.unlink()

    @classmethod
    def _gather(
        cls, mapped: Segment, wanted: NDArray[np.uint64], world: World, timeout_s: float
    ) -> Self:
        """Wait for all ranks; no rank returns before the root has removed the name."""
        ranks = world.local_world_size
        rows = mapped.words(PAGE_NBYTES, ranks * ROW_WORDS).reshape(ranks, ROW_WORDS)
        rendezvous = Rendezvous(
            rows, world.local_rank, timeout_s=timeout_s, first_rank=world.rank_of(0)
        )
        made = mapped.words(0, Header.WORDS)
        try:
            rendezvous.enter()
            if (made[Header.RANKS :] != wanted[Header.RANKS :]).any():
                made[Header.DIFFERS] = world.local_rank
            rendezvous.raise_to(GATHERED, 1)
            rendezvous.wait(GATHERED, 1)
            _check_same(made, world)
            if world.is_group_root:
                mapped.unlink()
            rendezvous.raise_to(GATHERED, 2)
            rendezvous.wait(GATHERED, 2)
        except BaseException:  # also an interrupt: then this process may live on
            rendezvous.leave()
            raise
        at_byte = _data_at(ranks)
        return cls(
            mapped, rendezvous, mapped.bytes[at_byte : at_byte + int(made[Header.NBYTES])]
        )

    def close(self, *, steps: int | None = None) -> None:
        """Leave the group and drop the mapping; views of the data stay valid.

        Args:
            steps: number of steps if this rank's loop ended normally; None: it did not.
        """
        if not self._is_closed:
            self._is_closed = True
            self.rendezvous.leave(steps=steps)
        self.data = np.empty(0, np.uint8)
        self._segment.close()


def _check_same(made: NDArray[np.uint64], world: World) -> None:
    """Raise ConfigError if a rank has noted that it expects another header."""
    if made[Header.DIFFERS]:
        raise ConfigError(
            f"rank {world.rank_of(int(made[Header.DIFFERS]))} and rank {world.rank_of(0)} do"
            " not mean the same shared memory: give all ranks the same model and the same"
            " arguments"
        )


def _group_name(name: str, world: World) -> str:
    """Return the prefix of the segments of a group on this host, whoever creates them.

    It contains a digest, because the user's name may contain a "/".
    """
    digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{HOST_PREFIX}{digest}.{world.host_token}."


def remove_leftovers() -> list[str]:
    """Unlink segments of this user's runs that died before the unlink; return the names."""
    removed = []
    for name in segment.listing(HOST_PREFIX):
        if _is_ours(name) and not process.is_alive(*_creator(name)):
            segment.unlink(name)
            removed.append(name)
    return removed


def _is_ours(name: str) -> bool:
    """Return whether this user created the segment; only then may it be read and removed."""
    try:
        owner = (segment.DIRECTORY / name).stat().st_uid
    except FileNotFoundError:  # its own run has just removed it
        return False
    return owner == os.geteuid()


def _header(world: World, nbytes: int, layout: str) -> NDArray[np.uint64]:
    words = np.zeros(Header.WORDS, np.uint64)
    words[Header.MAGIC] = Header.MAGIC_VALUE
    words[Header.RANKS] = world.local_world_size
    words[Header.NBYTES] = nbytes
    words[Header.DIGEST] = zlib.crc32(layout.encode())
    return words


def _data_at(ranks: int) -> int:
    return align(PAGE_NBYTES + ranks * ROW_WORDS * WORD_NBYTES)


def _make(group: str, header: NDArray[np.uint64]) -> Segment:
    """Create the segment under a temporary name and rename it when its header is complete."""
    remove_leftovers()
    if segment.listing(group):
        raise SegmentError(
            "a live process is creating a group of this name: use a different name for each"
            " group",
            segment=group,
        )
    pid, pid_started = process.identity()
    name = f"{group}{pid}.{pid_started}"
    nbytes = _data_at(int(header[Header.RANKS])) + int(header[Header.NBYTES])
    building = f"{HOST_PREFIX}{BUILDING}{name.removeprefix(HOST_PREFIX)}"
    made = Segment.create(building, align(nbytes))
    made.words(0, Header.WORDS)[:] = header
    made.rename(name)
    return made


def _find(group: str, timeout_s: float) -> Segment:
    """Wait for the segment of local rank 0 and attach to it; ignore those of dead processes."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        for name in segment.listing(group):
            with suppress(SegmentError):
                if process.is_alive(*_creator(name)):
                    return Segment.attach(name)
        time.sleep(POLL_S)
    raise WorkerLostError(
        "local rank 0 of this host never came", rank=0, name=group, timeout_s=timeout_s
    )


def _creator(name: str) -> tuple[int, int]:
    """Return pid and start time of the creator of a segment, or zeros if unknown."""
    found = _CREATOR.search(name)
    return (int(found[1]), int(found[2])) if found else (0, 0)

"""Layout of shared memory: names, words and sizes of all segments. Pure.

One memory node NAME owns these POSIX shared-memory objects (all of mode 0600):

    smbox.NAME.node              superblock: owner of the memory, high-water mark
    smbox.NAME.locks             empty file: an OFD lock byte of the node and of each holder
    smbox.NAME.region.OFFSET     one region: header page, stripe table, data
    smbox.NAME.slot.ID           one writer's journal slot: header page, undo areas
    smbox.NAME.channels          applied numbers of the remote channels, one row each
    smbox.NAME.ring.ID           a channel's last answers
    smbox.NAME.cookie            the secret that proves that a client shares this /dev/shm
    smbox.NAME.building.TOKEN    an incomplete segment; renamed when it is complete

OFFSET has 12 hex digits, ID 16. Words are unsigned, little-endian and 8 bytes wide at multiples
of 8. One plain store writes a word; x86 and arm64 do not tear it.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from smbox.dtypes import TABLE

PREFIX: Final = "smbox."
FORMAT_NUMBER: Final = 5  # version of the meaning of the words
PAGE_NBYTES: Final = 4096
WORD_NBYTES: Final = 8

STRIPE_NBYTES: Final = 512 * 1024
"""Bytes of a stripe. With 1 MiB, stripe and journal do not fit into a core's L2 cache; where
the L3 cache was shared, the commit then ran at 0.55 of a copy's speed instead of 0.92."""

NAME_NBYTES_MAX: Final = 200
SHAPE_NDIM_MAX: Final = 8


class Superblock:
    """Words of ``smbox.NAME.node`` (one page)."""

    NBYTES: Final = PAGE_NBYTES
    MAGIC_VALUE: Final = 0x45444F4E58424D53  # "SMBXNODE"
    MAGIC: Final = 0
    FORMAT: Final = 1
    NODE_ID: Final = 2
    INCARNATION: Final = 3  # how often a node has opened this memory
    HIGH_WATER: Final = 4  # next free offset; never falls
    UUID_LOW: Final = 5
    UUID_HIGH: Final = 6
    PID: Final = 7
    PID_STARTED: Final = 8  # start time of the owner in ticks since boot
    MEMORY_NBYTES: Final = 9  # the node's limit
    FIRST_OFFSET: Final = 10  # of the first region; random, see FIRST_OFFSETS
    STOPPING: Final = 11  # 1 once the removal of this memory has begun
    WORDS: Final = 12


FIRST_OFFSET_UNIT: Final = 1 << 30
FIRST_OFFSETS: Final = (1 << 14) - 1
"""A memory's offsets begin at a random multiple of 1 GiB, not 0, below 16 TiB. An old address
from another memory of the same node then most likely lies in no region. At least 15/16 of the
2**48 addresses remain."""


class RegionHeader:
    """Words of a region's header page; the UTF-8 bytes of its name follow them."""

    NBYTES: Final = PAGE_NBYTES
    MAGIC_VALUE: Final = 0x4E47455258424D53  # "SMBXREGN"
    MAGIC: Final = 0
    FORMAT: Final = 1
    STATE: Final = 2
    ADDRESS: Final = 3
    DATA_NBYTES: Final = 4
    KIND: Final = 5
    CONSISTENCY: Final = 6
    DTYPE: Final = 7
    NDIM: Final = 8
    SHAPE: Final = 9  # SHAPE_NDIM_MAX words
    TOKEN_LOW: Final = 17  # the creator's token: a repeated CREATE finds its region by it
    TOKEN_HIGH: Final = 18
    NAME_LENGTH: Final = 19
    WORDS: Final = 20
    NAME_AT: Final = WORDS * WORD_NBYTES  # byte offset of the name


class RegionState:
    """Values of ``RegionHeader.STATE``."""

    BUILDING: Final = 1  # its creator still writes the contents; nobody else has the address
    LIVE: Final = 2
    FREED: Final = 3


class RegionKind:
    """Values of ``RegionHeader.KIND``: the meaning of the contents."""

    ARRAY: Final = 1
    COUNTER: Final = 2  # one int64
    BARRIER: Final = 3  # uint64: generation, arrived, parties, then the arrived members
    NAMES: Final = {ARRAY: "array", COUNTER: "counter", BARRIER: "barrier"}


class Consistency:
    """Values of ``RegionHeader.CONSISTENCY``."""

    STRIPE: Final = 1  # changes of a stripe are commits
    NONE: Final = 3  # Hogwild: no lock, no journal, only words are atomic; 2 is reserved
    NAMES: Final = {STRIPE: "stripe", NONE: "none"}


class Stripe:
    """Words of one row of a region's stripe table (64 bytes, a cache line).

    The sequence word is ``commits << 16 | undone << 1 | open``. A commit and an undo each close
    it by one store. Readers compare words. The sum of all ``commits`` is the region's version.
    """

    NBYTES: Final = 64
    WORDS: Final = NBYTES // WORD_NBYTES
    SEQUENCE: Final = 0
    WRITER: Final = 1  # id of the journal slot of the last writer
    HOLDER: Final = 2  # id of who has locked the stripe, or 0
    OPEN: Final = 1  # bit of the sequence word: a commit is in progress, or its writer died
    COMMITS_SHIFT: Final = 16


class Slot:
    """Words of the first page of a journal slot; the undo areas follow.

    A commit changes one stripe. A step of a server-side optimizer also changes the same range
    of the sibling regions with the optimizer's state. Each of these extents has an undo area.
    All areas fill a huge page; without it a commit takes a quarter longer.
    """

    EXTENTS_MAX: Final = 4
    OLD_AT: Final = PAGE_NBYTES
    NBYTES: Final = PAGE_NBYTES + EXTENTS_MAX * STRIPE_NBYTES
    MAGIC_VALUE: Final = 0x544F4C5358424D53  # "SMBXSLOT"
    MAGIC: Final = 0
    FORMAT: Final = 1
    ID: Final = 2
    PID: Final = 3
    PID_STARTED: Final = 4
    STATE: Final = 5  # commits << 2 | SlotState
    STRIPE: Final = 6  # index of the stripe
    FIRST: Final = 7  # first byte of the commit in the region's data
    PROGRESS: Final = 8  # number of bytes from FIRST that are saved
    EXTENTS: Final = 9  # number of the next words that are in use
    REGION: Final = 10  # global addresses, EXTENTS_MAX words
    CHANNEL: Final = 14  # row of the channel table + 1, or 0
    SERIAL: Final = 15  # of that row
    NUMBER: Final = 16
    RING: Final = 17  # id of the ring with the old bytes; 0: undo area 0 has them
    RING_OFFSET: Final = 18  # byte of the ring
    WORDS: Final = 19


class SlotState:
    """Low bits of ``Slot.STATE``; the bits above count the slot's commits."""

    BITS: Final = 2
    MASK: Final = (1 << BITS) - 1
    FREE: Final = 0
    ARMED: Final = 1  # the commit may have changed the stripe: recovery undoes it
    COMMITTED: Final = 2  # the commit happened: recovery completes its last words


class Channel:
    """Words of one row of the channel table (64 bytes)."""

    NBYTES: Final = 64
    WORDS: Final = NBYTES // WORD_NBYTES
    CLIENT_LOW: Final = 0  # client id, 16 bytes
    CLIENT_HIGH: Final = 1
    CHANNEL: Final = 2  # the client's number of this channel
    APPLIED: Final = 3  # number of the last change applied; only the node writes it
    USED: Final = 4  # 1 if the row is in use; written last
    GENERATION: Final = 5  # of the connection of the client's last HELLO
    SERIAL: Final = 6  # of this use of the row; never reused


class Ring:
    """A channel's ring of answers: the heads of ENTRIES entries, then the entries.

    A client sends number n only after n - ENTRIES is acknowledged. So no entry is overwritten
    that may be requested again or is being sent. Answers of entire stripes are contiguous and
    sent as one. The size of the entries is that of the longest answer so far, rounded up.
    """

    ENTRIES: Final = 32
    HEAD_WORDS: Final = 8  # of an entry: a cache line
    NUMBER: Final = 0  # word of the head
    ANSWER_NBYTES: Final = 1
    OLD_OFFSET: Final = PAGE_NBYTES  # after the heads
    ENTRY_NBYTES_MIN: Final = 64


CHANNEL_ROWS: Final = 4096


class LockByte:
    """Bytes of ``smbox.NAME.locks``."""

    NODE: Final = 1 << 60  # held by the node that owns the memory
    HOLDERS: Final = 1 << 61  # + id of a holder of locks, below 2**60: held while it lives


_NUMBERS: Final = sorted(
    f"{kind.__name__}.{name} = {value}"
    for kind in [each for each in globals().values() if isinstance(each, type)]
    for name, value in vars(kind).items()
    if name.isupper() and isinstance(value, int)
) + [f"{dtype.name} = {dtype.code}" for dtype in TABLE]
_HASH: Final = sha256("\n".join(_NUMBERS).encode()).digest()
FORMAT: Final = FORMAT_NUMBER | int.from_bytes(_HASH[:6], "little") << 16
"""The format in superblock, regions and slots: FORMAT_NUMBER and 48 bits of a layout hash.

The hash covers the stripe size, which is part of Slot.NBYTES."""


def align(nbytes: int, unit: int = PAGE_NBYTES) -> int:
    """Round ``nbytes`` up to a multiple of ``unit``."""
    return -(-nbytes // unit) * unit


def stripe_count(nbytes: int) -> int:
    """Return the number of stripes of ``nbytes``; an empty region has one, for its version."""
    return max(1, -(-nbytes // STRIPE_NBYTES))


def data_offset(nbytes: int) -> int:
    """Return the first data byte in the segment of a region of ``nbytes``."""
    return RegionHeader.NBYTES + align(stripe_count(nbytes) * Stripe.NBYTES)


def segment_nbytes(nbytes: int) -> int:
    """Return the size of the segment of a region of ``nbytes``, in whole pages."""
    return data_offset(nbytes) + align(nbytes)


def name_of(node: str, part: str = "") -> str:
    """Name a part of a node's memory, such as "locks"; default: the prefix of all parts."""
    return f"{PREFIX}{node}.{part}"


def ring_id(serial: int, entry_nbytes: int) -> int:
    """Return the id of a channel's ring whose entries have this size, a power of 2."""
    return serial << 8 | entry_nbytes.bit_length() - 1


def ring_serial(ring: int) -> int:
    """Return the channel's serial of a ring id."""
    return ring >> 8


def ring_entry_nbytes(ring: int) -> int:
    """Return the size of the entries of a ring id."""
    return 1 << (ring & 0xFF)


def ring_nbytes(entry_nbytes: int) -> int:
    """Return the size of a ring's segment."""
    return align(Ring.OLD_OFFSET + Ring.ENTRIES * entry_nbytes)


def ring_name(node: str, ring: int) -> str:
    """Name the segment of a ring of ``node``."""
    return name_of(node, f"ring.{ring:016x}")


def region_name(node: str, offset: int) -> str:
    """Name the segment of the region at ``offset`` of ``node``."""
    return name_of(node, f"region.{offset:012x}")


def slot_name(node: str, slot: int) -> str:
    """Name the journal slot ``slot`` of ``node``."""
    return name_of(node, f"slot.{slot:016x}")


def building_name(node: str, token: int) -> str:
    """Name a segment of ``node`` while it is being built."""
    return name_of(node, f"building.{token:016x}")

"""POSIX shared-memory segments: create, map, rename, list and unlink.

The resource tracker of multiprocessing.shared_memory destroys a segment when any process that
attached it exits; posix_ipc does not. The owner of the name unlinks it, closing never does.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import posix_ipc
from numpy.typing import NDArray

from smbox.errors import OutOfMemoryError, SegmentError
from smbox.limits import refusal
from smbox.memory import layout, mapping

DIRECTORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory
MODE = 0o600


class NoSegmentError(SegmentError):
    """There is no segment of this name, or it is empty."""


class Segment:
    """A mapped shared-memory object.

    Views (``bytes``, ``words``) may outlive ``close``: the last view unmaps the memory.

    Args:
        name: name of the object, without a slash.
        fd: its open descriptor, which the caller may close at once.
        nbytes: bytes to map, greater than zero.
    """

    def __init__(self, name: str, fd: int, nbytes: int) -> None:
        self.name = name
        self.nbytes = nbytes
        try:
            self.bytes: NDArray[np.uint8] = mapping.map_shared(fd, nbytes)
        except OSError as error:
            raise refusal(f"map segment {name}", error) from error

    @classmethod
    def create(cls, name: str, nbytes: int) -> Self:
        """Create and map a segment of ``nbytes`` zeros.

        All pages are allocated, so that no later store ends in SIGBUS.

        Raises:
            OutOfMemoryError: no room in /dev/shm; no segment is left.
            SegmentError, SystemLimitError: as ``open_trusted``, or the name exists; no segment
                is left.
        """
        if nbytes > room_nbytes():  # else the system would fill /dev/shm before it fails
            raise no_room(name, nbytes)
        segment = cls.create_sparse(name, nbytes)
        try:
            segment.allocate(0, nbytes)
        except BaseException:
            segment.unlink()
            raise
        return segment

    @classmethod
    def create_sparse(cls, name: str, nbytes: int) -> Self:
        """Create and map a segment without pages: call ``allocate`` before the first store.

        Raises:
            SegmentError, SystemLimitError: as ``create``; no segment is left.
        """
        try:
            memory = posix_ipc.SharedMemory(f"/{name}", posix_ipc.O_CREX, mode=MODE)
        except (OSError, ValueError, posix_ipc.Error) as error:
            raise refusal(f"create segment {name}", error) from error
        try:
            _resize(name, memory.fd, nbytes)
            return cls(name, memory.fd, nbytes)
        except BaseException:
            unlink(name)
            raise
        finally:
            memory.close_fd()

    @classmethod
    def attach(cls, name: str) -> Self:
        """Map all of the segment ``name``.

        Raises:
            NoSegmentError: it does not exist, or is empty.
            SegmentError: it cannot be opened or mapped, or is not trusted.
        """
        fd = open_trusted(name)
        try:
            nbytes = os.fstat(fd).st_size
            if nbytes == 0:
                raise NoSegmentError(
                    f"segment {name} is empty: its creator died or has not finished"
                )
            return cls(name, fd, nbytes)
        finally:
            os.close(fd)

    def words(self, at_byte: int, count: int) -> NDArray[np.uint64]:
        """View ``count`` 8-byte words from byte ``at_byte``; SegmentError beyond the end."""
        if at_byte + count * layout.WORD_NBYTES > self.nbytes:
            raise SegmentError(f"segment {self.name} is damaged: too short; remove it")
        return self.bytes[at_byte : at_byte + count * layout.WORD_NBYTES].view(np.uint64)

    def allocate(self, at_byte: int, nbytes: int) -> None:
        """Allocate the pages of ``nbytes`` bytes from ``at_byte``.

        Raises:
            OutOfMemoryError: no room in /dev/shm; the segment is unchanged.
        """
        fd = open_trusted(self.name)
        try:
            # The kernel makes a huge page only around an allocated small one.
            for first in range(at_byte, at_byte + nbytes, mapping.HUGE_NBYTES):
                os.posix_fallocate(fd, first, 1)
            mapping.ask_for_huge_pages(self.bytes[at_byte : at_byte + nbytes])
            os.posix_fallocate(fd, at_byte, nbytes)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.ENOMEM}:
                raise refusal(f"size segment {self.name}", error) from error
            raise no_room(self.name, nbytes) from error
        finally:
            os.close(fd)

    def rename(self, name: str) -> None:
        """Rename the segment atomically; it replaces an existing segment of that name."""
        (DIRECTORY / self.name).rename(DIRECTORY / name)
        self.name = name

    def close(self) -> None:
        """Drop this mapping before its last reference ends; its views stay valid."""
        self.bytes = np.empty(0, np.uint8)

    def unlink(self) -> None:
        """Remove the name; the memory is freed with its last mapping."""
        unlink(self.name)


class Word:
    """An attribute that reads and writes a word of shared memory.

    Args:
        index: of the word in the object's ``words``, ``u64``.
    """

    def __init__(self, index: int) -> None:
        self._index = index

    def __get__(self, owner: Any, kind: type) -> int:
        value: int = owner.words.item(self._index)  # takes a third of the time of int()
        return value

    def __set__(self, owner: Any, value: int) -> None:
        owner.words[self._index] = value


@contextmanager
def create_filled(
    node: str, name: str, nbytes: int, token: int | None = None
) -> Iterator[Segment]:
    """Create a segment of a node; it gets its name when the ``with`` block has filled it.

    It has ``nbytes`` zeros. A process that is killed meanwhile leaves none of this name. An
    empty one is replaced. ``token`` names it until then; only that of a journal slot is odd.

    Raises:
        OutOfMemoryError, SegmentError: as ``Segment.create``; no segment is left.
    """
    token = secrets.randbits(63) << 1 if token is None else token
    segment = Segment.create(layout.building_name(node, token), nbytes)
    try:
        yield segment
        segment.rename(name)
    except BaseException:
        segment.unlink()
        raise


def attach_or_create(
    node: str, name: str, nbytes: int, fill: Callable[[Segment], object] = lambda _: None
) -> Segment:
    """Map a segment of a node, or create it and call ``fill``; raises as these do."""
    try:
        return Segment.attach(name)
    except NoSegmentError:
        with create_filled(node, name, nbytes) as segment:
            fill(segment)
        return segment


def open_trusted(name: str, flags: int = 0) -> int:
    """Open a file of /dev/shm that only this user may write; return its descriptor.

    Other users can write to /dev/shm: they could place a symbolic link there, or a file that
    they go on changing. ``flags`` are more flags of open(2).

    Raises:
        NoSegmentError: the file does not exist.
        SystemLimitError: this process or host has too many open files, or too little memory.
        SegmentError: it cannot be opened, belongs to another user, or others may write it.
    """
    flags |= os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    if "/" in name:
        raise NoSegmentError(f"no segment can be called {name!r}")
    try:
        fd = os.open(DIRECTORY / name, flags, MODE)
    except FileNotFoundError as error:
        raise NoSegmentError(f"no segment {name}") from error
    except (OSError, ValueError) as error:
        if isinstance(error, PermissionError) and is_untrusted(name):
            raise _untrusted(name) from error
        raise refusal(f"open segment {name}", error) from error
    if not _is_own(os.fstat(fd)):
        os.close(fd)
        raise _untrusted(name)
    return fd


def _untrusted(name: str) -> SegmentError:
    return SegmentError(
        f"segment {name} is not to be trusted: it must be a regular file of this user that"
        " nobody else may write; remove it, or choose another --name"
    )


def _resize(name: str, fd: int, nbytes: int) -> None:
    try:
        os.ftruncate(fd, nbytes)
    except OSError as error:
        raise refusal(f"size segment {name}", error) from error


def is_untrusted(name: str) -> bool:
    """Return whether a segment exists that ``open_trusted`` would not trust."""
    try:
        return not _is_own((DIRECTORY / name).lstat())
    except FileNotFoundError:
        return False


def _is_own(found: os.stat_result) -> bool:
    is_shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not is_shared


def no_room(name: str, nbytes: int) -> OutOfMemoryError:
    """Return the error of a full /dev/shm, with the remedies."""
    return OutOfMemoryError(
        f"{DIRECTORY} has no room for {name}; free regions, or enlarge it"
        " (mount -o remount,size=..., docker run --shm-size=...)",
        nbytes=nbytes,
        free_nbytes=room_nbytes(),
    )


def room_nbytes() -> int:
    """Return the free bytes of /dev/shm; SegmentError if there is none."""
    try:
        stats = os.statvfs(DIRECTORY)
    except OSError as error:
        raise refusal("use shared memory", error) from error
    return stats.f_bavail * stats.f_frsize


def unlink(name: str) -> None:
    """Remove the name of a segment, if it exists and this process may remove it."""
    try:
        (DIRECTORY / name).unlink(missing_ok=True)
    except OSError as error:  # another user's, or /dev/shm is read-only
        if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise


def size(name: str) -> int:
    """Return the bytes of a segment; 0 if it does not exist."""
    with suppress(FileNotFoundError):
        return (DIRECTORY / name).lstat().st_size
    return 0


def listing(prefix: str | tuple[str, ...]) -> list[str]:
    """List the names of all segments that begin with (one of) ``prefix``, sorted."""
    try:
        return sorted(name for name in os.listdir(DIRECTORY) if name.startswith(prefix))
    except OSError as error:
        raise refusal("list segments", error) from error

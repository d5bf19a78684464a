"""The 64 bytes that begin every message. Pure.

docs/protocol.md is authoritative; a test decodes its example with this file.
"""

from __future__ import annotations

import struct
from typing import Final

from smbox.errors import LocalProtocolError, RemoteProtocolError, VersionMismatchError

Buffer = bytes | bytearray | memoryview
"""What a frame is: anything that gives its bytes without a copy."""

Fields = tuple[bytes, int, int, int, int, int, int, int, int, bytes, int, int, int, int]
"""A header taken apart: magic, protocol, op, kernel, status, request, number, address,
nbytes, scale, version, numbers, generation, operand. A plain tuple: an object would cost more
than parsing."""

MAGIC: Final = b"SMBX"
PROTOCOL: Final = 1
HEADER_NBYTES: Final = 64
NO_SCALE: Final = bytes(8)

REQUEST_NBYTES_MAX: Final = 1 << 20
"""Bytes of region data in one request, and the alignment at which requests are cut; but see
LONG_NBYTES_MAX."""

LONG_NBYTES_MAX: Final = 2 << 20
"""The same of what the node makes no copy of: changes with their source, and LEND. Half as many
requests take a sixth less time."""

STAMPED_NBYTES_MAX: Final = (REQUEST_NBYTES_MAX // 8) * LONG_NBYTES_MAX
"""Bytes whose stamps, one of 8 bytes for each LONG_NBYTES_MAX, one reply carries: 256 GiB."""

LAYOUT: Final = struct.Struct("<4sBBBBQQQQ8sQBIB2x")
_SCALES: Final = {
    kind: struct.Struct(f"<{code}") for kind, code in zip("buif", "QQqd", strict=True)
}


def unpack(frame: Buffer) -> Fields:
    """Take the header frame apart.

    Raises:
        VersionMismatchError: the peer speaks another protocol version.
        RemoteProtocolError: wrong length or magic.
    """
    if len(frame) != HEADER_NBYTES:
        raise RemoteProtocolError("a header has 64 bytes", nbytes=len(frame))
    fields: Fields = LAYOUT.unpack_from(frame)
    if fields[0] != MAGIC:
        raise RemoteProtocolError("not a message of smbox", magic=fields[0])
    if fields[1] != PROTOCOL:
        raise VersionMismatchError(
            "install matching releases of smbox", peer=fields[1], ours=PROTOCOL
        )
    return fields


def pack_scale(scale: float, kind: str) -> bytes:
    """Write a scale as the 8 bytes that the region's dtype asks for.

    Args:
        scale: the factor; an int for integer regions.
        kind: ``"i"`` signed, ``"u"`` unsigned, ``"b"`` bool, ``"f"`` any float.

    Raises:
        LocalProtocolError: the scale has no exact form of that kind.
    """
    try:
        return _SCALES[kind].pack(scale)
    except (struct.error, KeyError, OverflowError) as error:
        raise LocalProtocolError(
            "scale does not fit the dtype", scale=scale, kind=kind
        ) from error


def unpack_scale(scale: bytes, kind: str) -> int | float:
    """Read the 8 bytes of a scale; the inverse of ``pack_scale``."""
    value: int | float = _SCALES[kind].unpack(scale)[0]
    return value

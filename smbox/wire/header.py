"""Layout of the 64-byte message header, and size limits of the protocol. Pure.

docs/protocol.md is authoritative; a test decodes its example with this file.
"""

from __future__ import annotations

import struct
from typing import Final

from smbox.errors import RemoteProtocolError, VersionMismatchError

Buffer = bytes | bytearray | memoryview
"""A frame: any object that exposes its bytes without a copy."""

Fields = tuple[bytes, int, int, int, int, int, int, int, int, bytes, int, int, int, int]
"""A decoded header: magic, protocol, op, kernel, status, request, number, address,
nbytes, scale, version, numbers, generation, operand. A plain tuple: creating an
object would take longer than parsing."""

MAGIC: Final = b"SMBX"
PROTOCOL: Final = 1
HEADER_NBYTES: Final = 64
NO_SCALE: Final = bytes(8)

REQUEST_NBYTES_MAX: Final = 1 << 20
"""Bytes of region data in one request, and the multiples at which transfers are split, except
where LONG_NBYTES_MAX applies."""

LONG_NBYTES_MAX: Final = 2 << 20
"""The same for requests of which the node makes no copy: changes with a source, and LEND. A
transfer in half as many requests takes a sixth less time."""

STAMPED_NBYTES_MAX: Final = (REQUEST_NBYTES_MAX // 8) * LONG_NBYTES_MAX
"""Bytes whose stamps (8 bytes for each LONG_NBYTES_MAX) fit one reply: 256 GiB."""

LAYOUT: Final = struct.Struct("<4sBBBBQQQQ8sQBIB2x")
_SCALES: Final = {
    kind: struct.Struct(f"<{code}") for kind, code in zip("buif", "QQqd", strict=True)
}


def unpack(frame: Buffer) -> Fields:
    """Decode the header frame.

    Raises:
        VersionMismatchError: the peer speaks another protocol version.
        RemoteProtocolError: wrong length or magic.
    """
    if len(frame) != HEADER_NBYTES:
        raise RemoteProtocolError("a program other than smbox sent this", nbytes=len(frame))
    fields: Fields = LAYOUT.unpack_from(frame)
    if fields[0] != MAGIC:
        raise RemoteProtocolError("a program other than smbox sent this", magic=fields[0])
    if fields[1] != PROTOCOL:
        raise VersionMismatchError(
            "install matching releases of smbox", peer=fields[1], ours=PROTOCOL
        )
    return fields


def pack_scale(scale: float, kind: str) -> bytes:
    """Encode a scale as 8 bytes in the form of the region's dtype.

    Args:
        scale: the factor; an int for integer regions. ``kernels.scale_of`` has checked it.
        kind: ``"i"`` signed, ``"u"`` unsigned, ``"b"`` bool, ``"f"`` any float.
    """
    return _SCALES[kind].pack(scale)


def unpack_scale(scale: bytes, kind: str) -> int | float:
    """Decode the 8 bytes of a scale; the inverse of ``pack_scale``."""
    value: int | float = _SCALES[kind].unpack(scale)[0]
    return value

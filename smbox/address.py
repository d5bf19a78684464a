"""GlobalAddress, the 64-bit address of a byte; Part, the rows of a region on one node. Pure.

The upper 16 bits are the node's id, the lower 48 the offset at the node. A node never uses an
offset twice, so the address of freed memory never refers to anything else.
"""

from __future__ import annotations

import operator
from typing import Final, NamedTuple, Self, SupportsIndex, overload

from smbox.errors import AddressRangeError

OFFSET_BITS: Final = 48
NODE_BITS: Final = 16
OFFSET_MAX: Final = (1 << OFFSET_BITS) - 1
NODE_MAX: Final = (1 << NODE_BITS) - 1


class GlobalAddress(int):
    """The address of one byte: ``node << 48 | offset``.

    It is an int, and is compared and serialized as one. Adding or subtracting a number of bytes
    gives an address at the same node; the difference of two addresses is a number of bytes.

    Args:
        value: the address as an integer.

    Raises:
        AddressRangeError: the value is negative or has more than 64 bits.
        TypeError: the value is not an integer.
    """

    __slots__ = ()

    def __new__(cls, value: SupportsIndex) -> Self:
        """Check the range; every unsigned 64-bit integer is an address, used or not."""
        bits = operator.index(value)
        if not 0 <= bits < 1 << (OFFSET_BITS + NODE_BITS):
            raise AddressRangeError("an address is an unsigned 64-bit integer", address=bits)
        return super().__new__(cls, bits)

    @classmethod
    def at(cls, node: int, offset: int) -> GlobalAddress:
        """Return the address of ``offset`` at ``node``.

        Raises:
            AddressRangeError: the node exceeds 16 bits, or the offset 48 bits.
        """
        node, offset = operator.index(node), operator.index(offset)  # numpy's would overflow
        if not 0 <= node <= NODE_MAX or not 0 <= offset <= OFFSET_MAX:
            raise AddressRangeError("node or offset out of range", node=node, offset=offset)
        return cls(node << OFFSET_BITS | offset)

    @property
    def node(self) -> int:
        """Id of the memory node that holds the byte."""
        return int(self) >> OFFSET_BITS

    @property
    def offset(self) -> int:
        """Offset of the byte at the node."""
        return int(self) & OFFSET_MAX

    def __add__(self, nbytes: int) -> GlobalAddress:
        """Return the address ``nbytes`` further, at the same node.

        Raises:
            AddressRangeError: the offset would exceed 48 bits.
        """
        return GlobalAddress.at(self.node, self.offset + operator.index(nbytes))

    __radd__ = __add__

    @overload
    def __sub__(self, other: GlobalAddress) -> int: ...  # type: ignore[overload-overlap]
    @overload
    def __sub__(self, other: int) -> GlobalAddress: ...
    def __sub__(self, other: int) -> int:
        """Return the bytes between two addresses, or the address ``other`` bytes before.

        Raises:
            AddressRangeError: the nodes differ, or the result is not an address of the node.
        """
        if not isinstance(other, GlobalAddress):
            return GlobalAddress.at(self.node, self.offset - operator.index(other))
        if self.node != other.node:
            raise AddressRangeError(
                "addresses at different nodes have no distance", a=self, b=other
            )
        return int(self) - int(other)

    def __repr__(self) -> str:
        """Return node and offset, as the command line prints them."""
        return f"GlobalAddress(node={self.node}, offset={self.offset:#x})"


class Part(NamedTuple):
    """Consecutive rows of a region (or slice) on one node.

    Attributes:
        node: id of the memory node.
        address: global address of the first row.
        first_row: first row in the region or slice, along axis 0.
        limit_row: row behind the last; a region without axes has one row.
        is_local: whether this process maps the memory.
    """

    node: int
    address: GlobalAddress
    first_row: int
    limit_row: int
    is_local: bool

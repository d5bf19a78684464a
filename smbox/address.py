"""GlobalAddress: 64 bits that name a byte of the whole address space; where rows lie. Pure.

The upper 16 bits are the node, the lower 48 the offset that the node handed out. A node hands
out an offset never twice, so an address of freed memory never means something else.
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

    It is an int, so it travels and compares as one. Adding and subtracting bytes gives an
    address of the same node; the difference of two addresses is a number of bytes.

    Args:
        value: the 64 bits.

    Raises:
        AddressRangeError: more than 64 bits, or negative.
    """

    __slots__ = ()

    def __new__(cls, value: SupportsIndex) -> Self:
        """Check the range; any int of 64 bits is an address, mapped or not."""
        bits = operator.index(value)
        if not 0 <= bits < 1 << (OFFSET_BITS + NODE_BITS):
            raise AddressRangeError("an address has 64 bits", address=bits)
        return super().__new__(cls, bits)

    @classmethod
    def at(cls, node: int, offset: int) -> GlobalAddress:
        """Build the address of ``offset`` at ``node``.

        Raises:
            AddressRangeError: the node has more than 16 bits, the offset more than 48.
        """
        if not 0 <= node <= NODE_MAX or not 0 <= offset <= OFFSET_MAX:
            raise AddressRangeError("node or offset out of range", node=node, offset=offset)
        return cls(node << OFFSET_BITS | offset)

    @property
    def node(self) -> int:
        """Id of the memory node that holds the byte."""
        return int(self) >> OFFSET_BITS

    @property
    def offset(self) -> int:
        """Offset in bytes in the node's address space."""
        return int(self) & OFFSET_MAX

    def __add__(self, nbytes: int) -> GlobalAddress:
        """Return the address ``nbytes`` further, at the same node.

        Raises:
            AddressRangeError: that leaves the node's 48 bits.
        """
        return GlobalAddress.at(self.node, self.offset + nbytes)

    __radd__ = __add__

    @overload
    def __sub__(self, other: GlobalAddress) -> int: ...  # type: ignore[overload-overlap]
    @overload
    def __sub__(self, other: int) -> GlobalAddress: ...
    def __sub__(self, other: int) -> int:
        """Return the bytes between two addresses of a node, or the address so far back.

        Raises:
            AddressRangeError: the nodes differ, or the result leaves the node.
        """
        if not isinstance(other, GlobalAddress):
            return GlobalAddress.at(self.node, self.offset - other)
        if self.node != other.node:
            raise AddressRangeError("addresses of two nodes have no distance", a=self, b=other)
        return int(self) - int(other)

    def __repr__(self) -> str:
        """Show node and offset, as the command line prints them."""
        return f"GlobalAddress(node={self.node}, offset={self.offset:#x})"

    __str__ = __repr__


class Part(NamedTuple):
    """Consecutive rows of a region (or slice) that lie on one node.

    Attributes:
        node: id of the memory node.
        address: of the first row's first byte.
        first_row: of the region or slice, along axis 0.
        limit_row: the row behind the last; a region without axes counts as one row.
        is_local: whether this process maps the memory.
    """

    node: int
    address: GlobalAddress
    first_row: int
    limit_row: int
    is_local: bool

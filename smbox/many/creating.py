"""Making and freeing a striped region: parts first and head last; the head goes first.

Who dies half way leaves parts that no head names: orphans.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from numpy.typing import NDArray

from smbox.deadline import ANSWER_MIN_S, look_s
from smbox.errors import (
    LayoutMismatchError,
    LimitError,
    PeerLostError,
    RegionExistsError,
    RegionFreedError,
    RegionNotFoundError,
    SmboxError,
)
from smbox.head import (
    Head,
    HeadPart,
    encode,
    new_part_name,
)
from smbox.many.node import Node, Nodes
from smbox.many.striping import (
    StripedInfo,
    cut_rows,
    home_of,
    opened,
    striped_info,
)
from smbox.memory.layout import NAME_NBYTES_MAX, RegionKind
from smbox.memory.region_header import check_limits, check_same_layout
from smbox.paths import creating
from smbox.paths.work import CreateRequest, RegionInfo

_NAME_NBYTES_MAX: Final = NAME_NBYTES_MAX - len(new_part_name("", 0))


def create(
    nodes: Nodes, request: CreateRequest, values: NDArray[Any] | None, deadline_s: float | None
) -> StripedInfo:
    """Create a striped region; of several creators one wins, and the others' parts go.

    Args:
        nodes: all.
        request: what the whole is.
        values: first contents, of its shape; None: ``request.init`` or zeros.
        deadline_s: of all; None: each node has the timeout of the box.

    Raises:
        RegionExistsError: the name is taken.
        LayoutMismatchError: with ``exist_ok``, by another layout.
        SmboxError: a node refused or did not answer; no part is left at those that answer. If
            the head's node is silent, the head may be there: its parts stay for it.
    """
    home = nodes[home_of(request.name, nodes)]
    part_name = new_part_name(request.name, home.id)
    check_limits(request)
    _check_name(request.name)
    found = _existing(nodes, home, request, deadline_s)
    if found is not None:
        return found
    made: list[RegionInfo] = []
    try:
        head = _make_parts(nodes, request, values, part_name, deadline_s, made)
    except BaseException:
        with suppress(SmboxError):
            free_parts(nodes, made, deadline_s)
        raise
    try:
        wanted, contents = creating.describe(request.name, None, None, encode(head), "stripe")
        with home.named():
            info = creating.create(home.paths, wanted, contents, deadline_s)
    except RegionExistsError:  # somebody was faster
        free_parts(nodes, made, deadline_s)
        winner = _existing(nodes, home, request, deadline_s)
        if winner is None:
            raise
        return winner
    except BaseException:
        with suppress(SmboxError):
            _take_back(nodes, request.name, part_name, made, deadline_s)
        raise
    try:
        return opened(nodes, info, head, deadline_s)
    except RegionFreedError:  # somebody took a part for an orphan before there was a head
        with suppress(SmboxError):
            home.free(info, deadline_s)
            free_parts(nodes, made, deadline_s)
        raise


def _take_back(
    nodes: Nodes, name: str, part_name: str, made: list[RegionInfo], deadline_s: float | None
) -> None:
    """Free the parts, and a head that was published without an answer to us.

    Raises:
        SmboxError: the head's node does not tell whether there is one: the parts stay.
    """
    home = nodes[home_of(name, nodes)]
    with suppress(RegionNotFoundError):
        wait_s = ANSWER_MIN_S if deadline_s is None else look_s(deadline_s)
        info = home.control.find(name, RegionKind.ARRAY, wait_s)
        head = home.head_of(info, deadline_s)
        if head is not None and head.part_name == part_name:
            home.free(info, deadline_s)
    free_parts(nodes, made, deadline_s)


def _existing(
    nodes: Nodes, home: Node, request: CreateRequest, deadline_s: float | None
) -> StripedInfo | None:
    """Return the region that has the name, if ``exist_ok`` allows it; None: nobody has it."""
    try:
        info = home.find(request.name, deadline_s)
        if not request.exist_ok:
            raise RegionExistsError("a region of this name exists", name=request.name)
        head = home.head_of(info, deadline_s)
    except (RegionNotFoundError, RegionFreedError):
        return None
    if head is None:
        raise LayoutMismatchError(
            "a region of this name exists on one node: take another name, or free it"
            " (smbox rm)",
            name=request.name,
            wanted_layout="striped",
        )
    check_same_layout(striped_info(info, head), request)
    return opened(nodes, info, head, deadline_s)


def _make_parts(
    nodes: Nodes,
    request: CreateRequest,
    values: NDArray[Any] | None,
    part_name: str,
    deadline_s: float | None,
    made: list[RegionInfo],
) -> Head:
    """Create the parts, by node id; notes each in ``made`` and returns the head."""
    rows = request.shape[0] if request.shape else 1
    parts = []
    for node_id, (first, limit) in zip(sorted(nodes), cut_rows(rows, len(nodes)), strict=False):
        node = nodes[node_id]
        shape = (limit - first, *request.shape[1:]) if request.shape else ()
        part = replace(request, name=part_name, shape=shape, exist_ok=False)
        mine = values[first:limit] if values is not None and request.shape else values
        with node.named():
            info = creating.create(node.paths, part, mine, deadline_s)
        made.append(info)
        place = int(info.address), first, limit - first
        parts.append(HeadPart(node_id, info.node_uuid, *place))
    return Head(request.dtype.name, request.shape, request.consistency, part_name, tuple(parts))


def free(nodes: Nodes, info: StripedInfo) -> None:
    """Free a striped region: its head, then its parts, as many as can be.

    Raises:
        RegionFreedError, PeerLostError: the head was gone before; so are the parts now.
        SmboxError: a node did not answer; its part is an orphan.
    """
    first_error: SmboxError | None = None
    if info.head is not None:
        try:
            nodes[info.head.address.node].free(info.head)
        except (RegionFreedError, PeerLostError) as error:  # it is gone: the parts go, too
            first_error = error
    try:
        free_parts(nodes, info.parts)
    except SmboxError as error:
        first_error = first_error or error
    if first_error is not None:
        raise first_error


def free_parts(
    nodes: Nodes, parts: Iterable[RegionInfo], deadline_s: float | None = None
) -> None:
    """Free parts, also behind one that cannot be; what is gone already is no error.

    Those of nodes that this box does not know stay.

    Raises:
        SmboxError: what the first one failed with.
    """
    first_error: SmboxError | None = None
    for part in parts:
        try:
            with suppress(RegionFreedError, PeerLostError):
                if part.address.node in nodes:
                    nodes[part.address.node].free(part, deadline_s)
        except SmboxError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error


def _check_name(name: str) -> None:
    """Raise LimitError for a name that leaves no room for those of the parts."""
    nbytes = len(name.encode())
    if nbytes > _NAME_NBYTES_MAX:
        raise LimitError(
            f"the name of a striped region has 1 to {_NAME_NBYTES_MAX} bytes of UTF-8",
            name_nbytes=nbytes,
        )

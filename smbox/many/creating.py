"""Creation and freeing of striped regions: parts are created before the head, and freed after.

A client that dies in between leaves orphans: parts without a head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from msgspec.structs import replace
from numpy.typing import NDArray

from smbox.deadline import ANSWER_MIN_S, deadline_of, left_s, request_timeout_s
from smbox.errors import (
    LayoutMismatchError,
    PeerLostError,
    RegionExistsError,
    RegionFreedError,
    RegionNotFoundError,
    SmboxError,
)
from smbox.head import Head, HeadPart, check_prefix, encode, new_part_name
from smbox.many.striping import (
    Node,
    Nodes,
    StripedInfo,
    cut_rows,
    home_of,
    node_of,
    opened,
    striped_info,
)
from smbox.memory.layout import RegionKind
from smbox.memory.region_header import check_limits, check_same_layout
from smbox.paths import creating
from smbox.paths.control import new_token
from smbox.paths.requests import CreateRequest, RegionInfo

_PART_SUFFIX_NBYTES: Final = len(new_part_name("", 0))


def create(
    nodes: Nodes, request: CreateRequest, values: NDArray[Any] | None, deadline_s: float | None
) -> StripedInfo:
    """Create a striped region; of several creators one wins, and the others' parts are freed.

    Args:
        nodes: all nodes.
        request: description of the whole region.
        values: the first contents, of its shape; None: ``request.init`` or zeros.
        deadline_s: deadline of the creation; None: each request has the timeout of the box.

    Raises:
        RegionExistsError: the name is taken.
        LayoutMismatchError: with ``exist_ok``, the region exists with another layout.
        SmboxError: a node refused or did not answer. Parts on nodes that answer were freed. If
            the head's node does not answer, the head may exist, so its parts stay.
    """
    home = nodes[home_of(request.name, nodes)]
    check_limits(request)
    check_prefix(request.name, _PART_SUFFIX_NBYTES)
    limit_s = _deadline_of(nodes) if deadline_s is None else deadline_s
    while True:
        found = _existing(nodes, home, request, deadline_s)
        if found is not None:
            return found
        try:
            return _create_new(nodes, home, request, values, deadline_s)
        except RegionExistsError:  # another client was faster; it may free the region again
            if not request.exist_ok or left_s(limit_s) <= 0.0:
                raise


def _create_new(
    nodes: Nodes,
    home: Node,
    request: CreateRequest,
    values: NDArray[Any] | None,
    deadline_s: float | None,
) -> StripedInfo:
    """Create parts and head; raises as ``create``, RegionExistsError also with ``exist_ok``."""
    part_name = new_part_name(request.name, home.id)
    made: list[RegionInfo] = []
    head: Head | None = None
    try:
        head = _make_parts(nodes, request, values, part_name, deadline_s, made)
        wanted, contents = creating.describe(request.name, None, None, encode(head), "stripe")
        with home.named() as paths:
            info = creating.create(paths, wanted, contents, deadline_s)
    except RegionExistsError:
        free_parts(nodes, made, deadline_s)
        raise
    except BaseException:
        with suppress(SmboxError):
            if head is not None:  # then it may have been published
                _free_head(home, request.name, part_name, deadline_s)
            free_parts(nodes, made, deadline_s)
        raise
    try:
        return opened(nodes, info, head, deadline_s)
    except RegionFreedError:  # another client freed a part as an orphan, before it had a head
        if home.was_freed(info, deadline_s):  # or it freed the region that we had made
            return striped_info(info, head)
        with suppress(SmboxError):
            home.free(info, deadline_s)
            free_parts(nodes, made, deadline_s)
        raise


def _free_head(home: Node, name: str, part_name: str, deadline_s: float | None) -> None:
    """Free the head of these parts if it was published although its creation failed.

    Raises:
        SmboxError: the head's node does not answer, so the head may exist.
    """
    with suppress(RegionNotFoundError):
        wait_s = ANSWER_MIN_S if deadline_s is None else request_timeout_s(deadline_s)
        info = home.control.find(name, RegionKind.ARRAY, wait_s)
        head = home.head_of(info, deadline_s)
        if head is not None and head.part_name == part_name:
            home.free(info, deadline_s)


def _existing(
    nodes: Nodes, home: Node, request: CreateRequest, deadline_s: float | None
) -> StripedInfo | None:
    """Return the region that has the name, if ``exist_ok`` allows it; None: there is none."""
    try:
        info = home.find(request.name, deadline_s)
        if not request.exist_ok:
            message = "a region of this name exists; attach it, or pass exist_ok"
            raise RegionExistsError(message, name=request.name)
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
    try:
        return opened(nodes, info, head, deadline_s)
    except RegionFreedError:
        if home.was_freed(info, deadline_s):
            return None
        raise


def _make_parts(
    nodes: Nodes,
    request: CreateRequest,
    values: NDArray[Any] | None,
    part_name: str,
    deadline_s: float | None,
    made: list[RegionInfo],
) -> Head:
    """Create the parts in order of node id; append each to ``made``, and return the head."""
    rows = request.shape[0] if request.shape else 1
    parts = []
    for node_id, (first, limit) in zip(sorted(nodes), cut_rows(rows, len(nodes)), strict=False):
        shape = (limit - first, *request.shape[1:]) if request.shape else ()
        part = replace(request, name=part_name, shape=shape, exist_ok=False)
        mine = values[first:limit] if values is not None and request.shape else values
        _make_part(nodes[node_id], part, mine, deadline_s, made)
        place = int(made[-1].address), first, limit - first
        parts.append(HeadPart(node_id, made[-1].node_uuid, *place))
    return Head(request.dtype.name, request.shape, request.consistency, part_name, tuple(parts))


def _make_part(
    node: Node,
    part: CreateRequest,
    values: NDArray[Any] | None,
    deadline_s: float | None,
    made: list[RegionInfo],
) -> None:
    """Create one part, and append it to ``made``.

    If it fails or is interrupted, nothing of it is left once the node answers.
    """
    token = new_token()
    with node.named() as paths:
        try:
            # One statement: a signal handler may run between two.
            made.append(creating.create(paths, part, values, deadline_s, token))
        except BaseException:
            node.control.discard(token, published=True)  # no other client knows its name
            raise


def free(nodes: Nodes, info: StripedInfo) -> None:
    """Free a striped region: first its head, then as many parts as possible.

    Raises:
        ConfigError: a part, or the head, lies on a node that this box is not connected to, or
            that this thread is inside a call on; nothing changed.
        RegionFreedError, PeerLostError: the head no longer existed; the parts were freed.
        SmboxError: a node did not answer. What it holds may stay; free the region again.
    """
    deadline_s = _deadline_of(nodes)
    for part in filter(None, (*info.parts, info.head)):
        with node_of(nodes, info.name, part).named() as paths:
            paths.control().channel.check_not_nested()
    if info.head is not None:
        try:
            nodes[info.head.address.node].free(info.head, deadline_s)
        except (RegionFreedError, PeerLostError):  # nobody can find the parts any more
            with suppress(SmboxError):
                free_parts(nodes, info.parts, deadline_s)
            raise
    free_parts(nodes, info.parts, deadline_s)


def _deadline_of(nodes: Nodes) -> float:
    """Return the end of a call that may take the timeout of the boxes."""
    return deadline_of(min(node.paths.timeout_s for node in nodes.values()))


def free_parts(
    nodes: Nodes, parts: Iterable[RegionInfo], deadline_s: float | None = None
) -> None:
    """Free all parts, even if one fails; a part that was freed before is not an error.

    Without a deadline, all parts together take at most the timeout of the boxes.

    Raises:
        SmboxError: the first part's error that could not be freed.
    """
    deadline_s = _deadline_of(nodes) if deadline_s is None else deadline_s
    errors: list[SmboxError] = []
    begun = []
    for part in parts:
        node = nodes[part.address.node]
        with _collecting(errors):
            begun.append((node, node.begin_free(part)))
    for node, call in begun:
        with _collecting(errors):
            node.end_free(call, deadline_s)
    if errors:
        raise errors[0]


@contextmanager
def _collecting(errors: list[SmboxError]) -> Iterator[None]:
    """Collect the error of a block, unless it says that a part was freed before."""
    try:
        with suppress(RegionFreedError, PeerLostError):
            yield
    except SmboxError as error:
        errors.append(error)

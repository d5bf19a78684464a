"""Shares: a request to striped regions as one request for each node. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from smbox.array import as_bytes
from smbox.errors import ConfigError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths import requests
from smbox.paths.sinks import DeltaSink, MoveSink, OldSink, Sink, SumSink
from smbox.wire.ops import carried_nbytes, count

Shares = Sequence[tuple[int | None, requests.PathRequest]]
"""A request for each node, behind the first byte of that node's part in the data of the whole
region; None: the request changes several regions."""


def shares_of(request: requests.PathRequest) -> Shares:
    """Split a request by node; nodes that it does not concern have no share.

    Raises:
        ConfigError: a snapshot whose rows lie in several parts.
    """
    if isinstance(request, requests.Changes):
        return _shares_of_changes(request)
    if isinstance(request, requests.RowsReading):
        return _shares_of_rows(request)
    share = _SHARES[type(request)]
    pieces = request.info.pieces(request.first, request.limit)
    return [(piece.offset, share(request, piece)) for piece in pieces]


def one_piece(info: requests.RegionInfo, first: int, limit: int, verb: str) -> requests.Piece:
    """Return the only piece of a range; ConfigError, with the verb, if there are more."""
    piece, *others = info.pieces(first, limit)
    if others:
        raise ConfigError(
            f"{verb} works on rows of one part only: take a slice by region.parts",
            region=info.name,
            nodes=[each.info.address.node for each in (piece, *others)],
        )
    return piece


def _shares_of_changes(changes: requests.Changes) -> Shares:
    whole = [] if changes.info is None else changes.info.pieces(0, changes.info.nbytes)
    offsets = {piece.info.address.node: piece.offset for piece in whole}
    by_node: dict[int, list[requests.Operation]] = {}
    for operation in changes.operations:
        by_node.setdefault(operation.info.address.node, []).append(operation)
    return [
        (offsets.get(node), requests.Changes(changes.op, mine[0].info, mine))
        for node, mine in by_node.items()
    ]


def _shares_of_rows(reading: requests.RowsReading) -> Shares:
    found = []
    for piece in reading.info.pieces(reading.begin, reading.info.nbytes):
        first_row = (piece.begin - reading.begin) // reading.row_nbytes
        limit_row = first_row + piece.nbytes // reading.row_nbytes
        at, end = reading.places.searchsorted([first_row, limit_row]).tolist()
        if at < end:
            places, order = reading.places[at:end] - first_row, reading.order[at:end]
            mine = replace(
                reading, info=piece.info, begin=piece.first, places=places, order=order
            )
            found.append((piece.offset, mine))
    return found


def _share_of_operation(
    operation: requests.Operation, piece: requests.Piece
) -> requests.Operation:
    begin, limit = piece.begin, piece.begin + piece.nbytes
    sink = operation.sink
    if sink is not None:
        itemsize = operation.info.dtype.itemsize
        sink = _share_of_sink(sink, begin - operation.first, piece, itemsize)
    return replace(
        operation,
        info=piece.info,
        first=piece.first,
        limit=piece.limit,
        source=operation.operand_of(begin, limit),
        sink=sink,
        states=tuple(state.pieces(begin, limit)[0].info for state in operation.states),
    )


def _share_of_sink(sink: Sink, begin: int, piece: requests.Piece, itemsize: int) -> Sink:
    """Return the sink of a piece that begins at byte ``begin`` of the change."""
    limit = begin + piece.nbytes
    if isinstance(sink, OldSink):
        return replace(sink, first=piece.first, out=sink.out[begin:limit])
    own = slice(begin // itemsize, limit // itemsize)
    if isinstance(sink, MoveSink):
        return replace(sink, first=piece.first, x=sink.x[own])
    assert isinstance(sink, SumSink | DeltaSink)
    return replace(sink, first=piece.first, x=sink.x[own], out=sink.out[own])


def _share_of_copying(copying: requests.Copying, piece: requests.Piece) -> requests.Operation:
    """Both regions are split at the same rows."""
    begin = copying.other_first + piece.begin - copying.first
    other = copying.other.pieces(begin, begin + piece.nbytes)[0]
    share = _share_of_operation(copying, piece)
    return replace(share, other=other.info, other_first=other.first)


def _share_of_reading(reading: requests.Reading, piece: requests.Piece) -> requests.Reading:
    begin = carried_nbytes(piece.begin - reading.first, reading.operand)
    limit = begin + carried_nbytes(piece.nbytes, reading.operand)
    out = as_bytes(reading.out)[begin:limit]
    return replace(reading, info=piece.info, first=piece.first, limit=piece.limit, out=out)


def _share_of_snapshot(snapshot: requests.Snapshot, _piece: requests.Piece) -> requests.Reading:
    piece = one_piece(snapshot.info, snapshot.first, snapshot.limit, "snapshot")
    return _share_of_reading(snapshot, piece)


def _share_of_product(product: requests.Product, piece: requests.Piece) -> requests.Product:
    """Both regions are split at the same rows."""
    before = product.info.pieces(product.first, piece.begin)
    at = sum(count(each.first, each.limit, STRIPE_NBYTES) for each in before)
    begin = product.other_first + piece.begin - product.first
    other = product.other.pieces(begin, begin + piece.nbytes)[0]
    sums = product.sums[at : at + count(piece.first, piece.limit, STRIPE_NBYTES)]
    return requests.Product(*piece[:3], other.info, other.first, sums)


_SHARES: Final[dict[type, Callable[[Any, requests.Piece], requests.PathRequest]]] = {
    requests.Operation: _share_of_operation,
    requests.Copying: _share_of_copying,
    requests.Reading: _share_of_reading,
    requests.Snapshot: _share_of_snapshot,
    requests.Product: _share_of_product,
}
"""Return the part of a request for one piece of its range."""

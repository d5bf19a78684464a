"""Changes whose operand lies at the node, or whose state does: FROM and UPDATE."""

from __future__ import annotations

from functools import partial

import numpy as np

from memnode.checks import (
    check_range,
    check_same_elements,
    check_source,
    check_span,
    kernel_of,
    scale_from,
)
from memnode.numbered import Bytes, Commit, NumberedTask, apply
from smbox.errors import AddressRangeError, RemoteProtocolError
from smbox.memory.change import Change
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion, Piece
from smbox.memory.optimizers import OPTIMIZERS, OptimizerCode
from smbox.memory.reading import read_range
from smbox.memory.update import Update, commit_update
from smbox.wire import operands
from smbox.wire.pieces import cut


class StripedTask(NumberedTask):
    """A change of a range of one region, a commit for each stripe; subclasses commit one."""

    def _steps(self) -> list[Commit]:
        request = self.request
        region = self._region()
        first = request.address - region.address
        check_range(first, request.nbytes, region.nbytes)
        check_span(region.spec, first, request.nbytes)
        return [
            partial(self._commit, begin, end)
            for begin, end in cut(first, first + request.nbytes, STRIPE_NBYTES)
        ]

    def _region(self) -> MappedRegion:
        return self._registry.locate(self.request.address)

    def _commit(self, first: int, limit: int, number: int) -> None:
        """Commit the bytes ``[first, limit)`` of the region's data."""
        raise NotImplementedError


class FromTask(StripedTask):
    """FROM: the operand is another region's contents, each stripe as between two commits."""

    def _commit(self, first: int, limit: int, number: int) -> None:
        request = self.request
        region = self._region()
        spec, nbytes = region.spec, limit - first
        code = kernel_of(request.op, request.kernel)
        check_source(code, spec, first, nbytes, nbytes)
        scale = scale_from(code, spec.dtype, request.scale)
        change = Change(code, self._operand(region, first, nbytes), scale)
        receipt = self._channel.receipt(number, answers=False)
        piece = Piece(first // STRIPE_NBYTES, first, limit)
        apply(self._writer, region, piece, change, receipt)

    def _operand(self, region: MappedRegion, first: int, nbytes: int) -> Bytes:
        ahead = region.address + first - self.request.address
        address = operands.unpack_address(self.request.payload)
        source = self._registry.locate(address)
        check_same_elements(source.spec, region.spec)
        begin = address - source.address
        check_span(source.spec, begin, self.request.nbytes)
        out = np.empty(nbytes, np.uint8)
        read_range(source, begin + ahead, begin + ahead + nbytes, out, self._writer.locks)
        return out


class UpdateTask(StripedTask):
    """UPDATE: one step of a server-side optimizer, parameters and state together."""

    def _commit(self, first: int, limit: int, number: int) -> None:
        request = self.request
        region = self._region()
        wanted = operands.unpack_update(request.payload, request.nbytes)
        code = _optimizer(request.kernel)
        siblings = [self._sibling(address) for address in wanted.siblings]
        ahead = region.address + first - request.address
        gradient = np.frombuffer(wanted.gradient, np.uint8)[ahead : ahead + limit - first]
        commit_update(
            self._writer,
            region,
            siblings,
            Piece(first // STRIPE_NBYTES, first, limit),
            Update(
                code,
                gradient.view(region.spec.dtype.numpy),
                wanted.parameters[: len(OPTIMIZERS[code].parameters)],
            ),
            self._channel.receipt(number, answers=False),
        )

    def _sibling(self, address: int) -> MappedRegion:
        sibling = self._registry.locate(address)
        if sibling.address != address:
            raise AddressRangeError("no region begins at this address", address=address)
        return sibling


def _optimizer(number: int) -> OptimizerCode:
    try:
        return OptimizerCode(number)
    except ValueError as error:
        raise RemoteProtocolError("no such optimizer", kernel=number) from error

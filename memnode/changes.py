"""Changes whose operand travels with them: PUT, ACCUMULATE, ELASTIC, FETCH and BATCH."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from memnode.checks import check_by_stripe, check_range, check_source, kernel_of, scale_from
from memnode.numbered import Bytes, NumberedTask, Step, apply
from smbox.errors import RemoteProtocolError
from smbox.memory.change import Change
from smbox.memory.kernels import KERNELS
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion, Piece
from smbox.wire.header import Buffer
from smbox.wire.ops import ANSWERS, Op
from smbox.wire.pieces import cut


class Part(NamedTuple):
    """What one commit is asked to do: a range within one stripe, a kernel, its operand."""

    op: Op
    kernel: int
    address: int
    nbytes: int
    scale: bytes
    source: Buffer | Bytes


class ChangeTask(NumberedTask):
    """A change under way: one commit for each stripe, or each item of a batch."""

    def _steps(self) -> list[Step]:
        request = self.request
        if request.op is Op.BATCH:
            parts = [
                Part(each.op, each.kernel, each.address, each.nbytes, each.scale, each.source)
                for each in request.items
            ]
        else:
            parts = self._stripes()
        return [Step(part.op, partial(self._commit, part)) for part in parts]

    def _stripes(self) -> list[Part]:
        request = self.request
        region = self._registry.locate(request.address)
        first = request.address - region.address
        limit = first + request.nbytes
        if first // STRIPE_NBYTES == (limit - 1) // STRIPE_NBYTES:  # its commit checks it all
            return [self._part(request.address, request.nbytes, request.payload)]
        check_range(first, request.nbytes, region.nbytes)
        code = kernel_of(request.op, request.kernel)
        source = np.frombuffer(request.payload, np.uint8)
        check_source(code, region.spec, first, request.nbytes, source.size)
        if KERNELS[code].is_whole:
            return [self._part(request.address, request.nbytes, source)]
        return [
            self._part(region.address + begin, end - begin, source[begin - first : end - first])
            for begin, end in cut(first, limit, STRIPE_NBYTES)
        ]

    def _part(self, address: int, nbytes: int, source: Buffer | Bytes) -> Part:
        request = self.request
        return Part(request.op, request.kernel, address, nbytes, request.scale, source)

    def _commit(self, part: Part, number: int) -> Bytes:
        region = self._registry.locate(part.address)
        piece, change = _checked(region, part)
        receipt = self._channel.receipt(number, answers=part.op in ANSWERS)
        return apply(self._writer, region, piece, change, receipt)


def _checked(region: MappedRegion, part: Part) -> tuple[Piece, Change]:
    """Check a part against its region.

    Raises:
        SmboxError: it may not run; see checks.py.
    """
    spec = region.spec
    check_by_stripe(spec, region.state)
    first = part.address - region.address
    check_range(first, part.nbytes, region.nbytes)
    stripe = first // STRIPE_NBYTES
    if stripe != (first + part.nbytes - 1) // STRIPE_NBYTES:
        raise RemoteProtocolError("an item lies within one stripe", first=first)
    code = kernel_of(part.op, part.kernel)
    check_source(code, spec, first, part.nbytes, len(part.source))
    change = Change(
        code, np.frombuffer(part.source, np.uint8), scale_from(code, spec.dtype, part.scale)
    )
    return Piece(stripe, first, first + part.nbytes), change

"""Changes whose operand travels with them: PUT, ACCUMULATE, ELASTIC, FETCH and BATCH."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from memnode.checks import check_range, check_source, kernel_of, scale_from
from memnode.numbered import Commit, NumberedTask, apply
from memnode.together import commit_together
from smbox.memory import accel
from smbox.memory.change import Change
from smbox.memory.kernels import KERNELS
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion, Piece
from smbox.memory.stripe_run import commit_run
from smbox.wire.batch import Item
from smbox.wire.ops import ANSWERS, Op
from smbox.wire.pieces import count, cut, unit_of


class ChangeTask(NumberedTask):
    """A change under way: one commit for each stripe, or each item of a batch."""

    def _run_ahead(self) -> None:
        request = self.request
        if request.op is Op.BATCH:
            if len(request.items) == request.numbers:
                commit_together(
                    self._writer,
                    self._registry,
                    self._channel,
                    request.payload,
                    request.numbers,
                    request.number,
                )
        elif accel.loaded() is not None:
            self._commit_stripes()

    def _commit_stripes(self) -> None:
        """Commit what is not applied yet in one compiled call, up to the first obstacle."""
        request, number = self.request, self._channel.applied + 1
        done = number - request.number
        if not 0 <= done < request.numbers:
            return
        region = self._registry.locate(request.address)
        first, limit, change = _checked(region, self._whole(), unit_of(request.op))
        if count(first, limit, STRIPE_NBYTES) == request.numbers:
            if done:
                at = (first // STRIPE_NBYTES + done) * STRIPE_NBYTES
                change = change._replace(source=change.source[at - first :])
                first = at
            receipt = self._channel.receipt(number, answers=request.op in ANSWERS)
            commit_run(self._writer, region, first, limit, change, receipt=receipt)

    def _steps(self) -> list[Commit]:
        request = self.request
        items = request.items if request.op is Op.BATCH else self._stripes()
        return [partial(self._commit, item) for item in items]

    def _stripes(self) -> list[Item]:
        """Cut the request as a batch would have been: an item for each stripe."""
        request, whole = self.request, self._whole()
        region = self._registry.locate(request.address)
        first = request.address - region.address
        if count(first, first + request.nbytes, STRIPE_NBYTES) == 1:  # its commit checks it all
            return [whole]
        first, limit, change = _checked(region, whole, unit_of(request.op))
        if KERNELS[change.kernel].is_whole:
            return [whole]
        source = memoryview(request.payload)
        return [
            replace(
                whole,
                address=region.address + begin,
                nbytes=end - begin,
                source=source[begin - first : end - first],
            )
            for begin, end in cut(first, limit, STRIPE_NBYTES)
        ]

    def _whole(self) -> Item:
        request = self.request
        address, nbytes, source = request.address, request.nbytes, request.payload
        return Item(request.op, request.kernel, address, nbytes, source, request.scale)

    def _commit(self, item: Item, number: int) -> None:
        region = self._registry.locate(item.address)
        first, limit, change = _checked(region, item, STRIPE_NBYTES)
        receipt = self._channel.receipt(number, answers=item.op in ANSWERS)
        piece = Piece(first // STRIPE_NBYTES, first, limit)
        apply(self._writer, region, piece, change, receipt)


def _checked(region: MappedRegion, item: Item, unit: int) -> tuple[int, int, Change]:
    """Check an item against its region, of which it lies within one ``unit`` of bytes.

    Returns:
        First byte of the region's data, byte behind the last, and what is done to them.

    Raises:
        SmboxError: it may not run; see checks.py.
    """
    spec = region.spec
    first = item.address - region.address
    check_range(first, item.nbytes, region.nbytes, unit)
    code = kernel_of(item.op, item.kernel)
    check_source(code, spec, first, item.nbytes, len(item.source))
    change = Change(
        code, np.frombuffer(item.source, np.uint8), scale_from(code, spec.dtype, item.scale)
    )
    return first, first + item.nbytes, change

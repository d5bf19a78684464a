"""The one table of operations: what the node does with each request of a session.

HELLO and BYE, which begin and end sessions, are the node's own.
"""

from __future__ import annotations

from typing import Final

from memnode import (
    handlers_batch,
    handlers_changes,
    handlers_control,
    handlers_reads,
    handlers_slices,
)
from memnode.context import Handler
from smbox.wire.ops import Op

HANDLERS: Final[dict[Op, Handler]] = {
    Op.PING: handlers_control.ping,
    Op.CREATE: handlers_slices.create,
    Op.PUBLISH: handlers_control.publish,
    Op.ATTACH: handlers_control.attach,
    Op.FREE: handlers_control.free,
    Op.LIST: handlers_control.list_regions,
    Op.STATS: handlers_control.stats,
    Op.GET: handlers_reads.get,
    Op.GATHER: handlers_reads.gather,
    Op.LEND: handlers_reads.lend,
    Op.STAMPS: handlers_reads.stamps,
    Op.WAIT: handlers_reads.wait,
    Op.SNAPSHOT: handlers_slices.snapshot,
    Op.PUT: handlers_changes.put,
    Op.ACCUMULATE: handlers_changes.accumulate,
    Op.ELASTIC: handlers_changes.elastic,
    Op.FETCH: handlers_changes.fetch,
    Op.FROM: handlers_changes.take,
    Op.UPDATE: handlers_changes.update,
    Op.BATCH: handlers_batch.batch,
}

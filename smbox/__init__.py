"""smbox: a shared memory box for distributed training.

Named arrays live in a memory node, outside the workers. Every process reads, writes and adds to
them with one-sided operations. ``connect`` to a node, or start one with ``local``.
"""

from __future__ import annotations

from smbox import errors
from smbox.address import GlobalAddress
from smbox.array import register_adapter
from smbox.batch import Batch
from smbox.box import Box
from smbox.connecting import connect
from smbox.embedded import local
from smbox.errors import *  # noqa: F403 - all errors, and nothing else
from smbox.handle import Handle, when_all
from smbox.lock import Lock
from smbox.member_record import MemberInfo
from smbox.membership import Member, join
from smbox.optimizer import Optimizer
from smbox.region import Region
from smbox.rows import Rows
from smbox.sync import Counter

__all__ = [
    "Batch",
    "Box",
    "Counter",
    "GlobalAddress",
    "Handle",
    "Lock",
    "Member",
    "MemberInfo",
    "Optimizer",
    "Region",
    "Rows",
    "connect",
    "join",
    "local",
    "register_adapter",
    "when_all",
]
__all__ += errors.__all__

"""The launch of this process, as a number by which its state in the memory is recognized."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from smbox.member_record import hash_of
from smbox_torch.world import World, is_launched

__all__ = ["UNKNOWN", "continues", "launch_of"]

UNKNOWN: Final = 1


def launch_of(env: Mapping[str, str] = os.environ) -> int:
    """Return a number that the workers of this launch share; UNKNOWN if nobody named it."""
    return (hash_of(World.from_env(env).launch) if is_launched(env) else 0) or UNKNOWN


def continues(launch: int, env: Mapping[str, str] = os.environ) -> bool:
    """Return whether state that a launch stored belongs to an earlier start of this launch."""
    if launch != launch_of(env):
        return False
    return launch != UNKNOWN or (is_launched(env) and World.from_env(env).restart > 0)

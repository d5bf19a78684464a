"""Ranks of one host, as threads: what they share is mapped memory, so threads do as well."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from smbox_torch.world import World

torch.set_num_threads(1)


def worlds(ranks: int) -> list[World]:
    """The workers of a fresh run on one host."""
    run_id = uuid.uuid4().hex
    return [
        World(rank, rank, world_size=ranks, local_world_size=ranks, run_id=run_id)
        for rank in range(ranks)
    ]


@pytest.fixture
def run_ranks() -> Callable[..., list[Any]]:
    """``run_ranks(ranks, work)``: the results of ``work(world)`` of all ranks, at once."""

    def run(ranks: int, work: Callable[[World], Any]) -> list[Any]:
        with ThreadPoolExecutor(ranks) as pool:
            return [each.result() for each in [pool.submit(work, w) for w in worlds(ranks)]]

    return run

"""Measuring rows, by every way that is there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial

from result_files import Result

from memory_or_messages import grpc_ways, mpi_ways
from memory_or_messages.rows import Calls, Row, Workload
from memory_or_messages.turns import in_turns
from memory_or_messages.ways import Way, local_ways
from memory_or_messages.workload import rates
from smbox.cli.bench.command import cpu_name

WARM_UP_ROUNDS = 1


@contextmanager
def ways_for(rows: Sequence[Row]) -> Iterator[list[Way]]:
    """Open every way that is there, for the largest operand of the rows; none for workloads."""
    nbytes = max((row.nbytes for row in rows if isinstance(row, Calls)), default=0)
    with ExitStack() as opened:
        ways: list[Way] = []
        if nbytes:
            for some in (local_ways, grpc_ways.grpc_ways, mpi_ways.mpi_ways):
                ways += opened.enter_context(some(nbytes))
        yield ways


def measure(row: Row, ways: Sequence[Way]) -> Result:
    """Measure a row.

    Returns:
        Its result, ready for JSON. Figures are seconds of a call, of a workload bytes a second.
    """
    if isinstance(row, Workload):
        figures = rates(row)
    else:
        calls = {
            way.name: partial(way.seconds, row.verb, row.nbytes, row.repeats)
            for way in ways
            if _is_another(way, row)
        }
        figures = in_turns(calls, row.rounds, warm_up=WARM_UP_ROUNDS)
    return {
        "row": row.name,
        "settings": asdict(row),
        "machine": {
            "cpu": cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
        },
        "missing": [each for each in (grpc_ways.MISSING, mpi_ways.missing()) if each],
        "figures": figures,
    }


def _is_another(way: Way, row: Calls) -> bool:
    """Tell whether a way differs from the others here: a stream of one chunk is one alike."""
    chunk_nbytes = getattr(way, "chunk_nbytes", 0)
    smallest = min(grpc_ways.CHUNKS_NBYTES)
    return chunk_nbytes <= smallest or row.nbytes > smallest

"""The rows of the experiment: calls of one verb and size, and workloads of processes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

import result_files

KIB, MIB = 1 << 10, 1 << 20

Verb = Literal["put", "get", "accumulate", "elastic"]
PathName = Literal["memory", "tcp"]
VERBS: Final[tuple[Verb, ...]] = ("put", "get", "accumulate", "elastic")
PATHS: Final[tuple[PathName, ...]] = ("memory", "tcp")
PROCESSES: Final = (2, 4, 8, 16, 32)
START_S: Final = 0.15
"""Of a process, with four cores; for estimates."""

SIZES: Final = {
    4 * KIB: (11, 100),
    64 * KIB: (11, 50),
    MIB: (11, 15),
    16 * MIB: (7, 2),
    100 * MIB: (5, 1),
    528 * MIB: (3, 1),
}
"""Bytes of a call: rounds, and calls of a turn. 528 MiB are the parameters of a VGG16."""


@dataclass(frozen=True)
class Calls:
    """One verb on one size, by every way to do it in turns.

    Attributes:
        verb: that is called.
        nbytes: of the operand.
        rounds: how often every way has its turn; medians count.
        repeats: calls of a turn; the mean of a turn counts.
    """

    verb: Verb
    nbytes: int
    rounds: int
    repeats: int

    @property
    def name(self) -> str:
        """For files and command lines."""
        return f"{self.verb}-{shown(self.nbytes).replace(' ', '')}"

    @property
    def file_name(self) -> str:
        """Name of the result's file."""
        return _file_name(self)

    @property
    def estimate_s(self) -> float:
        """How long it takes, in seconds, all ways together."""
        each_s = 0.003 + 12.0 * self.nbytes / 1e9
        return (
            (self.rounds + 1) * self.repeats * each_s * (1.5 if self.verb == "elastic" else 1)
        )


@dataclass(frozen=True)
class Workload:
    """Soft Memory Box's bandwidth test: each process writes and reads its share in turn.

    Attributes:
        path: by which the processes reach the memory.
        processes: at once.
        nbytes: share of each; half of the bytes moved are written, half are read.
        seconds: of a turn.
        rounds: how often workload and raw transport have their turns; medians count.
    """

    path: PathName
    processes: int
    nbytes: int = 32 * MIB
    seconds: float = 1.0
    rounds: int = 3

    @property
    def name(self) -> str:
        """For files and command lines."""
        return f"workload-{self.path}-{self.processes}"

    @property
    def file_name(self) -> str:
        """Name of the result's file."""
        return _file_name(self)

    @property
    def estimate_s(self) -> float:
        """How long it takes, in seconds."""
        return 2 * self.rounds * (self.seconds + 0.5) + 3 * START_S * self.processes


Row = Calls | Workload

ROWS: Final[tuple[Row, ...]] = (
    *(Workload(path, count) for path in PATHS for count in PROCESSES),
    *(
        Calls(verb, nbytes, rounds, repeats)
        for nbytes, (rounds, repeats) in SIZES.items()
        for verb in VERBS
    ),
)


def brief(row: Row) -> Row:
    """Return a form of a row that takes a second; its figures mean nothing."""
    if isinstance(row, Workload):
        return replace(row, nbytes=MIB, seconds=0.1, rounds=1)
    return replace(row, rounds=1, repeats=min(row.repeats, 3))


def _file_name(row: Row) -> str:
    """Return the name of the file of a row's result, which changes with every setting."""
    return f"{row.name}-{result_files.key([row.name, asdict(row)])}.json"


def shown(nbytes: int) -> str:
    """Word a number of bytes."""
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"

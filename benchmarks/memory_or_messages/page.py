"""The results as tables of their page, beside published figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pages import NOT_MEASURED, fill, table
from result_files import Result

from memory_or_messages.drawing import draw
from memory_or_messages.grpc_ways import STREAM, UNARY
from memory_or_messages.rows import MIB, PATHS, ROWS, Calls, PathName, Workload, shown

PAGE: Final = "memory_or_messages.md"
PICTURE: Final = (
    "![Times beside smbox's, and shares of the raw transport](memory_or_messages.png)"
)
LARGE_NBYTES: Final = MIB
"""From here on a call moves what a layer of a network has."""


@dataclass(frozen=True)
class Claim:
    """A published figure, and the calls that are compared with it.

    Attributes:
        ratio: name of the ratio, of ``RATIOS``.
        verbs: of the calls.
        times: the published ratio, of a range the least; None where no source has one.
        words: behind the figure: what it is of; may be empty.
    """

    ratio: str
    verbs: tuple[str, ...]
    times: float | None
    words: str


MOVING: Final = ("put", "get")
UPDATING: Final = ("accumulate", "elastic")
CLAIMS: Final = (
    Claim("gRPC unary", MOVING + UPDATING, 25.0, ""),
    Claim("best gRPC", MOVING + UPDATING, 2.69, " (169 % faster than an RPC made for RDMA)"),
    Claim("MPI", MOVING, 2.1, " (communication of deep learning)"),
    Claim("MPI", UPDATING, 2.0, " (asynchronous updates, 2 to 7 x)"),
    Claim("MPI RMA", MOVING, None, ""),
    Claim("MPI RMA", UPDATING, None, ""),
)
BESIDE: Final[dict[PathName, dict[str, str]]] = {
    "memory": {
        "gRPC unary": ", for mapped memory compared with gRPC over loopback",
        "best gRPC": ", for mapped memory compared with gRPC over loopback,"
        " which is not made for RDMA",
    },
    "tcp": {"best gRPC": ", compared with gRPC, which is not made for RDMA"},
}
"""What a ratio of a path compares, where its name does not say it."""

LIMITS: Final[dict[PathName, str]] = {"memory": "numpy", "tcp": "raw tcp"}
MISSING: Final = "-"

Results = Mapping[str, Result]
Times = Mapping[str, float]


def medians(result: Result) -> dict[str, float]:
    """Return each way's median; of gRPC's streams the better one as ``STREAM``."""
    found = {name: statistics.median(rounds) for name, rounds in result["figures"].items()}
    streams = [seconds for name, seconds in found.items() if name.startswith(STREAM)]
    return found | ({STREAM: min(streams)} if streams else {})


def ratio(times: Times, way: str, path: PathName) -> float | None:
    """Return a way's time as a multiple of smbox's; None if it was not measured."""
    return times[way] / times[f"smbox, {path}"] if way in times else None


def best_grpc(times: Times, path: PathName) -> float | None:
    """Return the ratio of gRPC's better form."""
    found = [ratio(times, way, path) for way in (UNARY, STREAM) if way in times]
    return min(each for each in found if each is not None) if found else None


RATIOS: Final[dict[str, Callable[[Times, PathName], float | None]]] = {
    "gRPC unary": lambda times, path: ratio(times, UNARY, path),
    "best gRPC": best_grpc,
    "MPI": lambda times, path: ratio(times, f"MPI, {path}", path),
    "MPI RMA": lambda times, path: ratio(times, f"MPI RMA, {path}", path),
}


def calls(results: Results) -> list[tuple[Calls, dict[str, float]]]:
    """Return the rows of calls that were measured, with their medians."""
    return [
        (row, medians(results[row.name]))
        for row in ROWS
        if isinstance(row, Calls) and row.name in results
    ]


def call_table(results: Results, path: PathName) -> str:
    """Lay out times of a call, and ratios to smbox's."""
    ways = [LIMITS[path], f"smbox, {path}", UNARY, STREAM, f"MPI, {path}", f"MPI RMA, {path}"]
    head = ["verb", "size", *(f"{way}, ms" for way in ways)]
    head += [f"{name} / smbox" for name in RATIOS]
    lines = []
    for row, times in calls(results):
        cells = [_ms(times[way]) if way in times else MISSING for way in ways]
        ratios = [_times(find(times, path)) for find in RATIOS.values()]
        lines.append([row.verb, shown(row.nbytes), *cells, *ratios])
    return table(head, lines, words=2)


def workload_table(results: Results) -> str:
    """Lay out the rates of the workload beside those of the raw transport."""
    lines = [
        [path, str(count), *(f"{rate / 1e9:.2f}" for rate in pair), f"{share:.0%}"]
        for path in PATHS
        for count, *pair, share in shares(results, path)
    ]
    return table(["path", "processes", "smbox, GB/s", "raw, GB/s", "share"], lines)


def shares(results: Results, path: PathName) -> list[tuple[int, float, float, float]]:
    """Return processes, both rates in bytes a second, and smbox's share of the raw one."""
    found = []
    for row in ROWS:
        if isinstance(row, Workload) and row.path == path and row.name in results:
            rates = medians(results[row.name])
            share = rates["smbox"] / rates["raw"]
            found.append((row.processes, rates["smbox"], rates["raw"], share))
    return found


def verdict(results: Results) -> str:
    """Compare what was measured with each published figure."""
    lines = [line for path in PATHS for line in _claims(results, path)]
    for path in PATHS:
        found = [share for *_, share in shares(results, path)]
        if found:
            span = f"{min(found):.0%} to {max(found):.0%}"
            lines.append(f"- Workload, {path}: {span} of the raw transport; published: 96 %.")
    return "\n".join(lines)


def _claims(results: Results, path: PathName) -> Iterator[str]:
    """Yield a line for each published ratio whose calls were measured."""
    for claim in CLAIMS:
        found = [
            (figure, row)
            for row, times in calls(results)
            if row.verb in claim.verbs
            and row.nbytes >= LARGE_NBYTES
            and (figure := RATIOS[claim.ratio](times, path)) is not None
        ]
        if not found:
            continue
        most, row = max(found, key=lambda each: each[0])
        least = min(figure for figure, _ in found)
        verbs = f" ({' and '.join(claim.verbs)})" if len(claim.verbs) == 2 else ""
        verdict = _verdict(claim, path, [figure for figure, _ in found])
        yield (
            f"- {path}, {claim.ratio}{verbs}, {shown(LARGE_NBYTES)} and more: from {least:.2g}"
            f" to {most:.2g} times smbox's ({row.verb}, {shown(row.nbytes)}); {verdict}."
        )


def _verdict(claim: Claim, path: PathName, found: Sequence[float]) -> str:
    """Tell how many ratios reach the published one; without one, where smbox is faster."""
    if claim.times is None:
        return f"smbox is faster in {sum(each > 1.0 for each in found)} of {len(found)} rows"
    count = sum(each >= claim.times for each in found)
    met = f"**reached** in {count} of {len(found)} rows" if count else "**not reached**"
    beside = BESIDE[path].get(claim.ratio, "")
    return f"the published {claim.times:g} x{claim.words} is {met}{beside}"


def text(results: Results) -> str:
    """Return the part of the page that is written here."""
    if not results:
        return ""
    first = next(iter(results.values()))
    machine = f"{first['machine']['cpu']}, {first['machine']['cores']} cores"
    missing = [each.partition(":")[0] for each in first["missing"]]
    parts = [
        f"{len(results)} of {len(ROWS)} rows; {'; '.join([machine, *missing])}.",
        verdict(results),
        PICTURE,
    ]
    if calls(results):
        parts += ["### Calls over loopback tcp", call_table(results, "tcp")]
        parts += ["### Calls on mapped memory", call_table(results, "memory")]
    if any(shares(results, path) for path in PATHS):
        parts += ["### Workload of several processes", workload_table(results)]
    return "\n\n".join(parts)


def write(results: Results, docs: Path) -> None:
    """Write the page's results and its plot."""
    fill(docs / PAGE, {"results": text(results) or NOT_MEASURED})
    if results:
        lines = {
            path: {
                (name, row.verb): [
                    (each.nbytes, figure)
                    for each, times in calls(results)
                    if each.verb == row.verb and (figure := find(times, path)) is not None
                ]
                for name, find in RATIOS.items()
                for row, _ in calls(results)
            }
            for path in PATHS
        }
        pairs = {path: [(each[0], each[3]) for each in shares(results, path)] for path in PATHS}
        draw(lines, pairs, docs / "memory_or_messages.png")


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g}"


def _times(figure: float | None) -> str:
    return MISSING if figure is None else f"{figure:.2g}"

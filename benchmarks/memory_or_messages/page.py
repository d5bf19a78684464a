"""The results as tables of their page, beside published figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from kept import Result
from pages import NOT_MEASURED, fill, table

from memory_or_messages.drawing import draw
from memory_or_messages.grpc_ways import STREAM, UNARY
from memory_or_messages.rows import MIB, PATHS, ROWS, Calls, PathName, Workload, shown

PAGE: Final = "memory_or_messages.md"
PICTURE: Final = (
    "![Times beside smbox's, and shares of the raw transport](memory_or_messages.png)"
)
PUBLISHED: Final = 25.0
LARGE_NBYTES: Final = MIB
"""From here on a call moves what a layer of a network has."""

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
    ways = [LIMITS[path], f"smbox, {path}", UNARY, STREAM, f"MPI, {path}"]
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
    """Say where the largest ratios are, and whether the published one is among them."""
    lines = []
    for path in PATHS:
        for name, find in RATIOS.items():
            found = [
                (figure, row)
                for row, times in calls(results)
                if row.nbytes >= LARGE_NBYTES and (figure := find(times, path)) is not None
            ]
            if not found:
                continue
            most, row = max(found, key=lambda each: each[0])
            least = min(figure for figure, _ in found)
            where = f"{row.verb}, {shown(row.nbytes)}"
            words = f"from {least:.2g} to {most:.2g} times smbox's ({where})"
            if name == "gRPC unary":
                words += f"; the published {PUBLISHED:g} x is "
                words += "**reached**" if most >= PUBLISHED else "**not reached**"
            lines.append(f"- {path}, {name}, {shown(LARGE_NBYTES)} and more: {words}.")
    for path in PATHS:
        found = [share for *_, share in shares(results, path)]
        if found:
            span = f"{min(found):.0%} to {max(found):.0%}"
            lines.append(f"- Workload, {path}: {span} of the raw transport; published: 96 %.")
    return "\n".join(lines)


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

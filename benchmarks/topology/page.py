"""The table and the picture of docs/experiments/topology.md, from results that are there."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, Final

import pages
from pages import NOT_MEASURED
from plots import panels
from result_files import Result

from topology.rows import WAYS

HEAD: Final = (
    *("way", "images/s, median (least to most)", "ms a step", "computation alone, ms"),
    *("communication predicted, ms", "MB over the slow link a step", "timed steps", "runs"),
)
PAGE: Final = "topology.md"
PICTURE: Final = "![images per second and bytes over the slow link](topology.png)"


def figures(results: dict[str, list[Result]]) -> dict[str, dict[str, Any]]:
    """Return the median of each figure for each way, and its prediction."""
    names = ("images_per_s", "step_s", "slow_nbytes", "compute_s")
    found: dict[str, dict[str, Any]] = {
        way: {name: statistics.median(each[name] for each in mine) for name in names}
        | {"least": min(each["images_per_s"] for each in mine)}
        | {"most": max(each["images_per_s"] for each in mine), "runs": len(mine)}
        | {"steps": mine[0]["settings"]["steps"]}
        for way, mine in results.items()
    }
    for way, predicted in _predictions(results.get("auto", [])).items():
        if way in found:
            found[way]["predicted_s"] = predicted
    return found


def _predictions(autos: list[Result]) -> dict[str, float]:
    """Return what the links that were measured for "auto" say of each way: medians."""
    if not autos:
        return {}
    chosen = [
        next(cut["step_s"] for cut in each["cuts"] if cut["groups"] == each["groups"])
        for each in autos
    ]
    return {
        "auto": statistics.median(chosen),
        "group": statistics.median(each["cuts"][-1]["step_s"] for each in autos),
        "easgd": statistics.median(each["cuts"][0]["step_s"] for each in autos),
    }


def table(results: dict[str, list[Result]]) -> str:
    """Lay out a row for each way in Markdown, and the choices that were made."""
    if not results:
        return NOT_MEASURED
    lines = [[WAYS[way], *_cells(each)] for way, each in figures(results).items()]
    shown = [pages.table(HEAD, lines), "", _told(results), "", PICTURE]
    if autos := results.get("auto"):
        shown += ["", "Links, predictions and choice of the first run:", ""]
        shown += [f"    {line}".rstrip() for line in autos[0]["table"].splitlines()]
    return "\n".join(shown)


def _cells(each: dict[str, Any]) -> list[str]:
    return [
        f"{each['images_per_s']:.0f} ({each['least']:.0f} to {each['most']:.0f})",
        f"{1e3 * each['step_s']:.1f}",
        f"{1e3 * each['compute_s']:.1f}",
        f"{1e3 * each['predicted_s']:.1f}" if "predicted_s" in each else "-",
        f"{each['slow_nbytes'] / 1e6:.2f}",
        f"{each['steps']}",
        f"{each['runs']}",
    ]


def _told(results: dict[str, list[Result]]) -> str:
    first = next(iter(results.values()))[0]
    told = first["settings"]
    machine = f"{first['cpu']}, {first['cores']} cores, {first['ended']}"
    choices = [
        " and ".join("{" + ", ".join(map(str, sorted(ranks))) + "}" for ranks in each["groups"])
        for each in results.get("auto", [])
    ]
    chosen = f" `auto` chose {'; '.join(sorted(set(choices)))}." if choices else ""
    return (
        f"Links of hosts {told['within_mbit']:g} Mbit/s, of islands {told['between_mbit']:g}"
        f" Mbit/s; a model of {first['nbytes'] / 1e6:.1f} MB, batches of {told['batch']},"
        f" period {told['period']}. {machine}.{chosen}"
    )


def write(results: dict[str, list[Result]], docs: Path) -> None:
    """Fill in the page, and draw its picture beside it."""
    pages.fill(docs / PAGE, {"results": table(results)})
    if results:
        draw(results, docs / "topology.png")


def draw(results: dict[str, list[Result]], path: Path) -> None:
    """Write the picture."""
    found = figures(results)
    names = [WAYS[way] for way in found]
    sent_mb = [each["slow_nbytes"] / 1e6 for each in found.values()]
    with panels(path, (1, 2), (9, 2.2), grid="x", sharey=True) as ((rates, sent),):
        rates.barh(names, [each["images_per_s"] for each in found.values()])
        for line, mine in enumerate(results.values()):
            rates.plot([each["images_per_s"] for each in mine], [line] * len(mine), "k.")
        rates.set_xlabel("images/s: median, and each run")
        sent.barh(names, sent_mb, color="tab:red")
        sent.set_xlabel("MB over the slow link a step")
        for axes in (rates, sent):
            axes.set_xlim(left=0)
        rates.invert_yaxis()

"""The table and the picture of docs/experiments/topology.md, from results that are there."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, Final

from topology.rows import WAYS, Result

BEGIN: Final = "<!-- table: python benchmarks/topology --page -->"
END: Final = "<!-- end of the table -->"
HEAD: Final = (
    "| way | images/s, median (least to most) | ms a step | computation alone, ms"
    " | communication predicted, ms | MB over the slow link a step | timed steps | runs |"
)
NOTHING: Final = "Not measured yet."
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
        return NOTHING
    lines = [HEAD, "|---|--:|--:|--:|--:|--:|--:|--:|"]
    for way, each in figures(results).items():
        predicted = f"{1e3 * each['predicted_s']:.1f}" if "predicted_s" in each else "-"
        lines.append(
            f"| {WAYS[way]} | {each['images_per_s']:.0f} ({each['least']:.0f} to"
            f" {each['most']:.0f}) | {1e3 * each['step_s']:.1f} | {1e3 * each['compute_s']:.1f}"
            f" | {predicted} | {each['slow_nbytes'] / 1e6:.2f}"
            f" | {each['steps']} | {each['runs']} |"
        )
    lines += ["", _told(results), "", PICTURE]
    if autos := results.get("auto"):
        lines += ["", "Links, predictions and choice of the first run:", ""]
        lines += [f"    {line}".rstrip() for line in autos[0]["table"].splitlines()]
    return "\n".join(lines)


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


def write(page: Path, results: dict[str, list[Result]]) -> None:
    """Replace what is between the markers of the page, and draw its picture beside it."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}", encoding="utf-8")
    if results:
        draw(results, page.with_suffix(".png"))


def draw(results: dict[str, list[Result]], path: Path) -> None:
    """Write the picture."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import

    found = figures(results)
    names = [WAYS[way] for way in found]
    figure = Figure(figsize=(9, 2.2), layout="constrained")
    rates, sent = figure.subplots(1, 2, sharey=True)
    rates.barh(names, [each["images_per_s"] for each in found.values()])
    for line, mine in enumerate(results.values()):
        rates.plot([each["images_per_s"] for each in mine], [line] * len(mine), "k.")
    rates.set_xlabel("images/s: median, and each run")
    sent.barh(names, [each["slow_nbytes"] / 1e6 for each in found.values()], color="tab:red")
    sent.set_xlabel("MB over the slow link a step")
    for axes in (rates, sent):
        axes.set_xlim(left=0)
        axes.grid(axis="x", alpha=0.3)
    rates.invert_yaxis()
    figure.savefig(path, dpi=110)

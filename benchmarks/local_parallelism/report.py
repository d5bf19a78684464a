"""The table and the picture of the study, from the rows that are there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pages import NOT_MEASURED, fill, table
from plan import ROWS, TITLES
from plots import panels
from result_files import Result

PAGE = "local_parallelism.md"
HEAD = (
    "way",
    "images/s",
    "speed-up",
    "CPU s/image",
    "memory, MiB",
    "peak RSS, MiB",
    "waited",
)

Results = dict[str, Result]


def write(found: Results, docs: Path) -> None:
    """Write what is measured between the page's comments, and the picture beside the page."""
    picture = (docs / PAGE).with_suffix(".png")
    parts = [NOT_MEASURED]
    if found:
        draw(found, picture)
        parts = [*tables(found), f"![images per second]({picture.name})"]
    fill(docs / PAGE, {"measured": "\n" + "\n\n".join(parts) + "\n"})


def tables(found: Results) -> Iterator[str]:
    """Yield the machine, then a table for each network."""
    for told in sorted({_machine(result) for result in found.values()}):
        yield told
    for model, title in TITLES.items():
        mine = {name: result for name, result in found.items() if ROWS[name].model == model}
        if mine:
            sizes = sorted({(each["batch"], each["batches"] - 1) for each in mine.values()})
            told = " or ".join(f"{count} batches of {batch}" for batch, count in sizes)
            yield f"**{title}**, {told} pictures:"
            base = mine.get(f"{model}-sequential")
            yield table(HEAD, [_row(name, each, base) for name, each in mine.items()])


def _machine(result: Result) -> str:
    machine = result["machine"]
    return (
        f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']};"
        f" pictures: {result['data']}."
    )


def _row(name: str, result: Result, base: Result | None) -> list[str]:
    speed = result["images_per_s"]
    is_comparable = base is not None and base["batch"] == result["batch"]
    waited = [each["waited_s"] for each in result["processes"]]
    return [
        ROWS[name].title,
        f"{speed:.2f}",
        f"{speed / base['images_per_s']:.2f}" if base and is_comparable else "",
        f"{result['cpu_s_per_image']:.3f}",
        f"{result['pss_mib']:.0f}",
        f"{result['rss_peak_mib']:.0f}",
        ", ".join(f"{each:.1f} s" for each in waited) if len(waited) > 1 else "",
    ]


def draw(found: Results, path: Path) -> None:
    """Write the picture: a bar for each row."""
    with panels(path, (1, 2), (10, 3.2), grid="x") as (line,):
        for axes, (model, title) in zip(line, TITLES.items(), strict=True):
            mine = {name: each for name, each in found.items() if ROWS[name].model == model}
            names = [ROWS[name].title for name in mine]
            axes.barh(names, [each["images_per_s"] for each in mine.values()], color="tab:blue")
            axes.invert_yaxis()
            axes.set_title(title)
            axes.set_xlabel("images per second")

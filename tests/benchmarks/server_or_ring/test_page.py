from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from server_or_ring import drawing, page, tables
from server_or_ring.findings import findings
from server_or_ring.rows import Row, grid, parameters_of, predicted

ROOT = Path(__file__).resolve().parents[3]
MEASURED = {
    "batch": 8,
    "cores": 4,
    "torch": "2.0",
    "seconds": {"resnet50": 4.0, "alexnet": 0.5, "vgg16": 6.0, "vgg19": 7.0, "resnet152": 11.0},
}
ROWS = list(grid(MEASURED["seconds"]))

pytestmark = pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")


def made(row: Row, off: float = 1.0) -> dict:
    """A result that is ``off`` times what the planner says."""
    foreseen = predicted(row, parameters_of(row.model))
    nodes = ["node0", "node1"] if row.way == "easgd-striped" else ["node"]
    hosts = [*nodes, "worker0", "worker1"]
    use = {"in_bytes": 11e6, "out_bytes": 22e6, "in_packets": 333.0, "out_packets": 444.0}
    return {
        "images_per_s": off * foreseen.images_per_s,
        "speed_up": off * foreseen.speed_up,
        "utilisation": off * foreseen.utilisation,
        "hosts": {host: dict(use) for host in hosts},
        "over_time": {
            host: [[0.5, 1e6, 10, 2e6, 20], [1.0, 3e6, 30, 4e6, 40]] for host in hosts
        },
        "cores": 0.7,
        "machine": {"cores": 4, "torch": "2.0"},
    }


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """The pages of the project, to be written into."""
    (tmp_path / "experiments").mkdir()
    for name in (page.PAGE, page.PLANNER):
        (tmp_path / name).write_text((ROOT / "docs" / name).read_text())
    return tmp_path


def test_the_page_has_all_tables_and_pictures(docs: Path):
    page.write(docs, {row: made(row) for row in ROWS}, ROWS, MEASURED)
    text = (docs / page.PAGE).read_text()
    assert page.NOT_MEASURED not in text + (docs / page.PLANNER).read_text()
    assert "63 of 63 rows have run on 4 cores, torch 2.0" in text
    assert text.count("| resnet152 |") == 21  # predicted only
    assert text.count("| alexnet |") == 2 * 21  # measured, and what was moved
    pictures = ("experiments/server_or_ring.png", "experiments/server_or_ring_time.png")
    for name in (*pictures, "planner.png"):
        assert (docs / name).read_bytes().startswith(b"\x89PNG")


def test_a_page_is_written_anew_and_of_the_rows_that_are_there(
    docs: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(drawing, "draw_beyond", lambda *_: None)  # slow; the same of any rows
    few = {row: made(row) for row in ROWS[:9]}
    page.write(docs, few, ROWS, MEASURED)
    text = (docs / page.PAGE).read_text()
    assert "9 of 63 rows" in text
    assert "| alexnet |" not in text
    page.write(docs, {}, ROWS, MEASURED)
    text = (docs / page.PAGE).read_text()
    assert page.NOT_MEASURED in text
    assert "0 of 63 rows" in text
    assert "| resnet50 |" not in text
    assert page.NOT_MEASURED in (docs / page.PLANNER).read_text()


@pytest.mark.parametrize(("last", "verdict"), [(1.1, "holds"), (1.2, "does not")])
def test_a_server_levels_off_if_more_workers_add_little(last: float, verdict: str):
    results = {row: made(row) | {"speed_up": 1.0} for row in ROWS}
    for row, result in results.items():
        if row.workers == 6:
            result["speed_up"] = last if row.way == "server-sync" else 1.5
    told = findings(results)
    span = f"{last:.2f} to {last:.2f} times: **{verdict}**"
    assert f"that of the synchronous server {span}" in told
    assert "that of the asynchronous server 1.50 to 1.50 times: **does not**" in told
    few = {row: result for row, result in results.items() if row.workers < 6}
    assert "levels off" not in findings(few)


def test_the_error_is_the_planner_s_against_what_was_measured():
    row = ROWS[0]
    assert tables.error(row, made(row, off=0.8)) == pytest.approx(0.25)
    assert tables.error(row, made(row, off=1.25)) == pytest.approx(-0.2)


def test_the_median_of_the_errors_decides():
    third = dict(zip(ROWS[:3], map(made, ROWS[:3], (0.5, 0.9, 1.0)), strict=True))
    assert "over 3 rows: 11.1%; goal: at most 20%, met" in tables.errors(third)
    missed = dict(zip(ROWS[:3], map(made, ROWS[:3], (0.5, 0.6, 1.0)), strict=True))
    assert "over 3 rows: 66.7%; goal: at most 20%, **missed**" in tables.errors(missed)


def test_a_measured_row_stands_beside_its_prediction():
    row = next(row for row in ROWS if (row.way, row.workers) == ("server-sync", 6))
    line = tables.measured({row: made(row, off=0.8)}).splitlines()[-1]
    foreseen = predicted(row, parameters_of("resnet50")).images_per_s
    assert f"| {0.8 * foreseen:.2f} |" in line
    assert f"| {foreseen:.2f} | +25% | link of a node |" in line


def test_findings_are_of_rows_that_are_there():
    assert findings({}) == ""
    all_rows = {row: made(row) for row in ROWS}
    lines = findings(all_rows).splitlines()
    assert len(lines) == 13  # four of each model, and one of all
    assert "grows 1.0 times (33 to 33 MB an iteration" in lines[0]
    assert "the asynchronous server 11 MB" in lines[3]
    without = {row: each for row, each in all_rows.items() if row.way != "ddp"}
    assert len(findings(without).splitlines()) == 7  # of traffic and server, one of all

from __future__ import annotations

from pathlib import Path

import pytest
from rows import Settings
from shmcaffe import page
from shmcaffe.catalog import ROWS


def result(name: str, seed: int, accuracy: float, mib: float = 0.0) -> dict:
    return {
        "settings": Settings(ROWS[name], seed, epochs=30.0, looks=0).as_json(),
        "cpu": "a cpu",
        "cores": 4,
        "torch": "2.0",
        "accuracy": accuracy,
        "staleness": {"0": 1, "3": 2} if mib else {},
        "stats": {"nbytes": mib * (1 << 20), "exchanges": 1000},
    }


@pytest.fixture
def results() -> dict[str, list[dict]]:
    return {
        "one": [result("one", seed, 0.99) for seed in (0, 1)],
        "a16-seasgd": [result("a16-seasgd", seed, 0.50 + seed / 10, 400) for seed in (0, 1)],
        "h4x4-seasgd": [result("h4x4-seasgd", seed, 0.98, 100) for seed in (0, 1)],
    }


def test_rows_stand_beside_one_process_and_tell_their_bytes(results):
    table = page.row_table(results)
    assert "| one process |  | 1 x 32 |  | 99.0 ± 0.0 |  | 0 | 1,000 |  | 2 |" in table
    line = next(line for line in table.splitlines() if "| A16 | SEASGD" in line)
    assert "| 16 x 8 | 3.2 | 55.0 ± " in line
    assert "| -44.0 ± " in line
    assert line.endswith("| 400 | 1,000 | 2.0 | 2 |")
    assert "| 16 x 8 | 0.8 | 98.0 ± 0.0 | -1.0 ± 0.0 | 100 |" in table


def test_published_figures_stand_beside_what_was_found(results):
    words = page.verdict(results)
    assert (
        "A16 moved 4.00 times the bytes of H 4 x 4; published: the size of a group, 4" in words
    )
    assert "minus that of A16: +43.0 ± " in words
    assert "published: +4.3" in words
    assert "minus that of one process: -44.0 ± " in words
    assert "published: -5.7" in words


def test_nothing_is_said_of_rows_that_were_not_run(results):
    del results["a16-seasgd"]
    assert page.verdict(results) == ""
    del results["one"]
    assert "| 98.0 ± 0.0 |  | 100 |" in page.row_table(results)


def test_sets_have_a_part_each_in_the_order_of_the_rows(tmp_path: Path, results):
    path = tmp_path / page.PAGE
    path.write_text("# Words\n<!-- begin results --><!-- end results -->\nMore.\n")
    backwards = dict(reversed(results.items()))
    page.write({"digits": backwards, "cifar10": {"one": results["one"]}}, tmp_path)
    written = path.read_text()
    assert written.index("Scikit-learn's digits") < written.index("| one process |")
    assert written.index("| one process |") < written.index("| A16 |")
    assert written.index("| H 4 x 4 |") < written.index("### CIFAR-10")
    assert "30 epochs; 4 cores of a cpu, torch 2.0." in written
    assert written.endswith("\nMore.\n")
    assert (tmp_path / "shmcaffe.png").read_bytes().startswith(b"\x89PNG")

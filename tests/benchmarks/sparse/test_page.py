from __future__ import annotations

from pathlib import Path

import pytest
from pages import DOCS
from sparse import page
from sparse.rows import Row, Settings

BEGIN, END = "<!-- begin results -->", "<!-- end results -->"
MACHINE = {"cpu": "a cpu", "cores": 4, "python": "3.11", "numpy": "2.0", "torch": "2.4"}


def result(rate: float, objective: float, **other) -> dict:
    return {
        "curve": [[0.0, 1.0], [1.0, 2 * objective], [2.0, objective]],
        "objective": objective,
        "accuracy": 0.9,
        "majority": 0.6,
        "examples": [1000, 200],
        "nonzeros": 33.0,
        "most_frequent": 1.0,
        "data": "0badcafe",
        "seconds": 2.0,
        "updates": 100,
        "updates_per_s": rate,
        "examples_per_s": 8 * rate,
        "cpu_us": 150.0,
        "done": 1.0,
        "machine": MACHINE,
    } | other


RUNS = {
    Settings(Row("svm", "plain", 1)): result(1000.0, 0.2),
    Settings(Row("svm", "hogwild", 1)): result(900.0, 0.2),
    Settings(Row("svm", "hogwild", 4)): result(3600.0, 0.205),
    Settings(Row("svm", "lock", 4)): result(400.0, 0.5, done=0.25),
}


def results(**other) -> dict[Row, list[dict]]:
    return {settings.row: [each | other] for settings, each in RUNS.items()}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / page.PAGE
    path.write_text(f"Before.\n\n{BEGIN}\n\nold\n\n{END}\n\nBehind.\n")
    return path


def test_the_locked_baseline_is_compared_at_each_number_of_processes(written: Path):
    locked = {Row("svm", "semaphore", n): [result(1200.0, 0.2)] for n in (1, 2, 4)}
    page.write(results() | locked, written.parent)
    text = written.read_text()
    against = "- `Hogwild` against `Hogwild`, step under a semaphore"
    assert f"{against}, 1 process: **0.75 times** the examples/s." in text
    assert f"{against}, 4 processes: 3.00 times the examples/s." in text
    assert f"{against}, 2 processes" not in text  # Hogwild has not run there


def test_tables_comparisons_and_picture_are_made_of_the_results(written: Path):
    page.write(results(), written.parent)
    text = written.read_text()
    assert text.startswith(f"Before.\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\n\nBehind.\n")
    assert "old" not in text
    assert "1,000 training and 200 test examples (digest 0badcafe)" in text
    assert "| `Hogwild` | 8 | 900 |  | 3,600 | 4.00 times | 150 |  | 150 |" in text
    hogwild = "| `Hogwild` | 0.2000 |  | 0.2050 | 90.0% |  | 90.0% | 2.00 |  | 2.00 |"
    assert hogwild in text
    assert "| 0.5000 (25% done) |" in text
    assert "never" in text
    told = [line for line in text.splitlines() if line.startswith("- ")]
    plain = "`torch.optim.SGD`, no smbox"
    locked = "`Hogwild`, step under `box.lock`"
    assert told == [
        f"- `Hogwild` against {plain}, 1 process: **0.90 times** the examples/s.",
        f"- `Hogwild` against {locked}, 4 processes: 9.00 times the examples/s.",
    ]
    picture = written.with_suffix(".png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"({picture.name})" in text


def test_a_second_call_changes_nothing(written: Path):
    page.write(results(), written.parent)
    first = written.read_text()
    page.write(results(), written.parent)
    assert written.read_text() == first


def test_without_results_the_page_says_so(written: Path):
    page.write({}, written.parent)
    assert "Not measured yet." in written.read_text()
    assert not written.with_suffix(".png").exists()


def test_results_of_different_data_are_not_mixed(written: Path):
    before = written.read_text()
    mixed = results()
    mixed[next(iter(mixed))] = [result(1000.0, 0.2, data="other")]
    with pytest.raises(ValueError, match="different machines or data"):
        page.write(mixed, written.parent)
    assert written.read_text() == before


def test_the_page_of_this_project_has_the_comments():
    text = (DOCS / page.PAGE).read_text()
    assert text.count(BEGIN) == text.count(END) == 1


def test_medians_of_several_seeds(written: Path):
    three = [result(rate, 0.2) for rate in (1.0, 9.0, 5.0)]
    page.write({Row("svm", "hogwild", 1): three}, written.parent)
    assert "Medians of 3 runs" in written.read_text()
    assert "| `Hogwild` | 8 | 5 |  |  |  | 150 |  |  |" in written.read_text()

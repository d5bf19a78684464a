from __future__ import annotations

from pathlib import Path

import pytest
from sparse import page
from sparse.rows import Row, Settings, store

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for settings, each in RUNS.items():
        store(tmp_path / "results" / settings.file_name, each)
    return tmp_path / "results"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(f"Before.\n\n{page.BEGIN}\n\nold\n\n{page.END}\n\nBehind.\n")
    return path


def test_tables_comparisons_and_picture_are_made_of_the_results(folder: Path, written: Path):
    page.write(written, folder, RUNS)
    text = written.read_text()
    assert text.startswith(f"Before.\n\n{page.BEGIN}\n")
    assert text.endswith(f"{page.END}\n\nBehind.\n")
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


def test_a_second_call_changes_nothing(folder: Path, written: Path):
    page.write(written, folder, RUNS)
    first = written.read_text()
    page.write(written, folder, RUNS)
    assert written.read_text() == first


def test_without_results_the_page_says_so(tmp_path: Path, written: Path):
    page.write(written, tmp_path / "nothing", RUNS)
    assert "Not measured yet." in written.read_text()
    assert not written.with_suffix(".png").exists()


def test_results_of_different_data_are_not_mixed(folder: Path, written: Path):
    before = written.read_text()
    settings = next(iter(RUNS))
    store(folder / settings.file_name, result(1000.0, 0.2, data="other"))
    with pytest.raises(ValueError, match="different machines or data"):
        page.write(written, folder, RUNS)
    assert written.read_text() == before


def test_a_page_without_its_markers_is_left_alone(folder: Path, tmp_path: Path):
    path = tmp_path / "other.md"
    path.write_text("Something else.\n")
    with pytest.raises(ValueError, match="lacks the lines"):
        page.write(path, folder, RUNS)
    assert path.read_text() == "Something else.\n"


def test_the_page_of_this_project_has_the_markers():
    text = page.PAGE.read_text()
    assert text.count(page.BEGIN) == text.count(page.END) == 1


def test_medians_of_several_seeds(tmp_path: Path, written: Path):
    runs = {
        Settings(Row("svm", "hogwild", 1), seed): rate for seed, rate in enumerate((1, 9, 5))
    }
    for settings, rate in runs.items():
        store(tmp_path / settings.file_name, result(float(rate), 0.2))
    page.write(written, tmp_path, runs)
    assert "Medians of 3 runs" in written.read_text()
    assert "| `Hogwild` | 8 | 5 |  |  |  | 150 |  |  |" in written.read_text()

"""The experiment as it is run: as a program, so that Python's resource tracker ends with it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from sparse import sweep

FOLDER = Path(sweep.__file__).parent
SHORT = ("--share", "0.02")
FAILING = """
from sparse.rows import Row, Settings
from sparse.worker import Workers
with Workers(0.02, 1) as workers:
    workers.run(Settings(Row("svm", "no such method", 1), share=0.02))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples are kept between the tests of this file."""
    return tmp_path_factory.mktemp("sparse")


def run(python: str, folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: os.environ[name] for name in os.environ if "SMBOX_" not in name}
    modules = os.pathsep.join([str(FOLDER.parent), environment.get("PYTHONPATH", "")])
    return subprocess.run(
        [python, *words],
        env=environment | {"TMPDIR": str(folder), "PYTHONPATH": modules},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def results(python: str, folder: Path, *words: str) -> dict[str, dict]:
    """What a call leaves, by the names of the rows."""
    done = run(python, folder, FOLDER, *SHORT, *words, "--out", folder / "results")
    assert done.returncode == 0, done.stderr
    found = {}
    for settings in sweep.wanted(sweep.arguments([*SHORT, *words])):
        path = folder / "results" / settings.file_name
        found[settings.row.name] = json.loads(path.read_text())
    return found


@pytest.mark.timeout(300)
def test_every_method_learns(preloaded: str, folder: Path, tmp_path: Path):
    """The short form: one pass over a fiftieth of the files, by one and by two processes."""
    rows = "svm-*-2,svm-plain-1,svm-hogwild-1,svm-dogwild-1,logistic-hogwild-2"
    words = ("--epochs", "1", "--only", rows)
    found = results(preloaded, folder, *words)
    assert len(found) == 12
    for name, each in found.items():
        begin, end = each["curve"][0][1], each["curve"][-1][1]
        assert end == each["objective"]
        # Dogwild's master steps with all gradients that wait; runs end at 0.05 to 1.5.
        assert end < (2.0 if name == "svm-dogwild-2" else 0.9) * begin, name
        assert 0.0 < each["accuracy"] <= 1.0
        assert each["done"] == 1.0
        assert min(each["updates_per_s"], each["cpu_us"]) > 0.0
        assert each["updates"] >= each["examples"][0] // each["settings"]["batch"]
        times = [seconds for seconds, _ in each["curve"]]
        assert times == sorted(times)
        assert times[0] == 0.0
    # One process of Hogwild does, bit for bit, what plain torch does.
    assert found["svm-hogwild-1"]["objective"] == found["svm-plain-1"]["objective"]

    written = {path.name: path.stat().st_mtime_ns for path in (folder / "results").iterdir()}
    results(preloaded, folder, *words)
    again = {path.name: path.stat().st_mtime_ns for path in (folder / "results").iterdir()}
    assert again == written  # nothing is repeated
    page = tmp_path / "sparse_learning.md"
    page.write_text("<!-- begin results -->\n<!-- end results -->\n")
    results(preloaded, folder, *words, "--page", "--docs", str(tmp_path))
    assert "### Logistic regression" in page.read_text()


@pytest.mark.timeout(300)
def test_the_limit_of_time_ends_a_run(preloaded: str, folder: Path):
    words = ("--only", "svm-plain-1", "--limit-s", "0.05", "--epochs", "20")
    found = results(preloaded, folder, *words)["svm-plain-1"]
    assert 0.0 < found["done"] < 1.0
    assert found["updates"] > 0


@pytest.mark.timeout(300)
def test_a_worker_that_fails_is_told(preloaded: str, folder: Path):
    done = run(preloaded, folder, "-c", FAILING)
    assert done.returncode == 1
    assert "RuntimeError: worker 0 failed" in done.stderr
    assert "KeyError: 'no such method'" in done.stderr


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        sweep.main(["--only", "walking"])
    assert "walking" in capsys.readouterr().err

from __future__ import annotations

import json
import time

import iteration_law
import pytest
from computation import Computation
from iteration_law import Row, law


def test_the_law_hides_write_and_add_behind_the_gradient():
    assert law(10, read=2, move=1, write=3, add=4) == 13
    assert law(5, read=2, move=1, write=3, add=4) == 10


def test_error_and_saving_are_shares_of_what_was_measured():
    row = Row(53, 5, 2, 1, 3, 4, 10, 8, 4, 6)
    assert row.error == pytest.approx(0.25)
    assert row.saved == pytest.approx(0.25)


def test_sizes_of_known_models_are_measured(capsys: pytest.CaptureFixture[str]):
    words = ["--sizes", "1", "--rounds", "2", "--in-request", "--json"]
    iteration_law.main(words)
    rows = json.loads(capsys.readouterr().out)
    assert [row["mib"] for row in rows] == [1.0, 1.0]
    below, above = rows
    assert min(below["compute_ms"], above["compute_ms"]) > 0
    for row in rows:
        parts = {name: row[f"{name}_ms"] for name in ("read", "move", "write", "add")}
        assert row["predicted_ms"] == pytest.approx(law(row["compute_ms"], **parts))
        assert min(row["measured_ms"], row["fused_ms"], row["fused_iteration_ms"]) > 0


def test_the_computation_takes_this_threads_time():
    computation = Computation(30.0)
    began_s = time.thread_time()
    computation.run()
    assert 0.010 < time.thread_time() - began_s < 0.090


def test_the_table_names_the_models():
    shown = iteration_law.table([Row(528, 5, 2, 1, 3, 4, 10, 8, 4, 6)])
    cells = [cell.strip() for cell in shown.splitlines()[-1].split("|")[1:-1]]
    assert cells[1] == "VGG16"
    assert cells[9] == "+25%"

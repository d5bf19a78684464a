from __future__ import annotations

import json
from pathlib import Path

import pages
import pytest
from lab import needs
from pages import NOT_MEASURED
from topology import cli, page, rows

PROGRAM = Path(cli.__file__).parent
LACK = needs.missing()


@pytest.mark.skipif(bool(LACK), reason=f"there can be no laboratory: {LACK}")
@pytest.mark.timeout(400)
def test_the_islands_are_chosen_and_beat_one_group_of_all(tmp_path: Path, program):
    """The short form: fewer steps of a small network, once."""
    words = ["--only", "auto,group", "--repeats", "1", "--share", "0.2", "--hidden", "256"]
    told = program(PROGRAM, *words, "--out", tmp_path, timeout_s=360.0)
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    found = {each["settings"]["way"]: each for each in results}
    auto, group = found["auto"], found["group"]
    assert {frozenset(ranks) for ranks in auto["groups"]} == {
        frozenset({0, 1}),
        frozenset({2, 3}),
    }
    chosen = next(cut for cut in auto["cuts"] if cut["groups"] == auto["groups"])
    assert chosen["step_s"] < auto["cuts"][-1]["step_s"]  # what the links say of one group
    assert auto["images_per_s"] > group["images_per_s"]
    # Two workers' gradients and means each step, against two moves in ten steps.
    assert group["slow_nbytes"] > 4 * group["nbytes"]
    assert auto["slow_nbytes"] < 0.5 * auto["nbytes"]
    assert "group 0" in told


def result(way: str, repeat: int, images_per_s: float) -> dict:
    more = {"groups": [[0, 1], [3, 2]], "table": "links\n  0"}
    more["cuts"] = [
        {"groups": [[0], [1], [2], [3]], "step_s": 0.05},
        {"groups": [[0, 1], [3, 2]], "step_s": 0.06},
        {"groups": [[0, 1, 2, 3]], "step_s": 1.0},
    ]
    settings = rows.wanted([way], 3, 1.0)[repeat]
    return {
        "settings": vars(settings),
        "cpu": "a cpu",
        "cores": 4,
        "ended": "2026-01-01",
        "nbytes": 4_000_000,
        "images_per_s": images_per_s,
        "step_s": 0.1,
        "slow_nbytes": 2e6,
        "compute_s": 0.01,
    } | (more if way == "auto" else {})


def test_the_table_has_medians_predictions_and_the_choice():
    results = {
        "auto": [result("auto", n, rate) for n, rate in enumerate((90.0, 100.0, 300.0))],
        "group": [result("group", 0, 20.0)],
    }
    told = page.table(results)
    assert '| HybridSGD(groups="auto") | 100 (90 to 300) | 100.0 | 10.0 | 60.0 | 2.00 |' in told
    assert "| SyncGroup of all workers | 20 (20 to 20) | 100.0 | 10.0 | 1000.0 |" in told
    assert "`auto` chose {0, 1} and {2, 3}." in told
    assert "    links" in told


def test_the_page_has_a_place_for_the_table_and_keeps_its_words(tmp_path: Path):
    text = (pages.DOCS / page.PAGE).read_text()
    copy = tmp_path / page.PAGE
    copy.write_text(text)
    page.write({}, tmp_path)
    assert NOT_MEASURED in copy.read_text()
    page.write({"easgd": [result("easgd", 0, 5.0)]}, tmp_path)
    assert NOT_MEASURED not in copy.read_text()
    assert copy.read_text().partition("## Results")[0] == text.partition("## Results")[0]
    assert copy.with_suffix(".png").stat().st_size > 1000


def test_runs_take_turns_and_every_setting_changes_their_files():
    wanted = rows.wanted(list(rows.WAYS), 2, 0.1)
    assert [each.way for each in wanted] == [*rows.WAYS, *rows.WAYS]
    assert [each.steps for each in wanted[:3]] == [10, 1, 10]
    others = rows.wanted(list(rows.WAYS), 2, 0.5)
    assert len({each.file_name for each in [*wanted, *others]}) == 12


def test_unknown_ways_are_refused(capsys):
    with pytest.raises(SystemExit):
        cli.arguments(["--only", "ring"])
    assert "names none of" in capsys.readouterr().err

"""The experiment's short form, in processes of its own, and what its rows' keys depend on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from memory_or_messages import cli, grpc_ways, mpi_ways
from memory_or_messages.rows import ROWS, SIZES, VERBS, Calls, Workload

FOLDER = Path(cli.__file__).parent


def results(out: Path) -> dict[str, dict]:
    found = [json.loads(path.read_text()) for path in out.glob("*.json")]
    return {each["row"]: each for each in found}


@pytest.mark.timeout(240)
def test_calls_are_measured_by_every_way_that_is_there_and_not_repeated(
    tmp_path: Path, program
):
    words = ("--brief", "--only", "elastic-4KiB,put-64KiB", "--out", tmp_path)
    assert "2 of 2 runs are missing" in program(FOLDER, *words)
    found = results(tmp_path)
    assert set(found) == {"elastic-4KiB", "put-64KiB"}
    ways = {"numpy", "smbox, memory", "raw tcp", "smbox, tcp"}
    if not grpc_ways.MISSING:
        ways |= {"gRPC unary", "gRPC stream, 1 MiB"}
    if not mpi_ways.missing():
        ways |= {"MPI, memory", "MPI, tcp", "MPI RMA, memory", "MPI RMA, tcp"}
    for each in found.values():
        assert set(each["figures"]) == ways
        assert len(each["missing"]) == bool(grpc_ways.MISSING) + bool(mpi_ways.missing())
        assert all(seconds > 0 for rounds in each["figures"].values() for seconds in rounds)
    assert "0 of 2 runs are missing" in program(FOLDER, *words)


@pytest.mark.timeout(240)
def test_the_workload_of_two_processes_is_measured_beside_the_raw_transport(
    tmp_path: Path, program
):
    program(FOLDER, "--brief", "--only", "workload-*-2", "--out", tmp_path)
    found = results(tmp_path)
    assert set(found) == {"workload-memory-2", "workload-tcp-2"}
    for each in found.values():
        (smbox,), (raw,) = each["figures"]["smbox"], each["figures"]["raw"]
        assert smbox > 0
        assert raw > 0


def test_a_dry_run_measures_nothing(tmp_path: Path, program):
    assert "34 of 34 runs are missing" in program(FOLDER, "--dry-run", "--out", tmp_path)
    assert not list(tmp_path.iterdir())


def test_rows_are_every_verb_and_size_and_every_number_of_processes():
    calls = [row for row in ROWS if isinstance(row, Calls)]
    loads = [row for row in ROWS if isinstance(row, Workload)]
    assert {(row.verb, row.nbytes) for row in calls} == {(v, n) for v in VERBS for n in SIZES}
    assert [row.processes for row in loads] == 2 * [2, 4, 8, 16, 32]
    assert len({row.name for row in ROWS}) == len(ROWS) == 34


def test_a_changed_setting_has_a_file_of_its_own():
    assert len({row.file_name for row in ROWS}) == len(ROWS)
    assert replace(ROWS[0], rounds=99).file_name != ROWS[0].file_name


def test_globs_that_name_no_row_are_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        cli.arguments(["--only", "walking*"])
    assert "walking*" in capsys.readouterr().err

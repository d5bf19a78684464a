"""``smbox ls``, ``stat`` and ``rm`` on the test's own node."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import smbox
from smbox.cli import main

pytestmark = [pytest.mark.shares, pytest.mark.usefixtures("quick_starts")]


@pytest.fixture(scope="module")
def box() -> Iterator[smbox.Box]:
    with smbox.local(memory="64MiB") as opened:
        opened.create("center", shape=(4, 5), dtype="float32", init=0.0)
        opened.counter("steps").add(3)
        yield opened


def run(capsys, *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main.main(argv)
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out, shown.err


def test_ls_shows_every_region(box, capsys):
    code, out, _ = run(capsys, "ls", "--address", box.address)
    rows = {line.split()[0]: line.split() for line in out.splitlines()[1:]}
    assert code == 0
    assert rows["center"][1:5] == ["array", "float32", "4x5", "80"]
    assert rows["steps"][1] == "counter"


def test_ls_shows_scalars_and_consistency(box, capsys):
    region = box.create("lr", shape=(), consistency="none")
    _, out, _ = run(capsys, "ls", "--address", box.address)
    (row,) = (line.split() for line in out.splitlines() if line.startswith("lr "))
    assert (row[3], row[6]) == ("scalar", "none")
    box.free(region)


def test_ls_takes_the_address_of_the_environment(box, capsys, monkeypatch):
    monkeypatch.setenv("SMBOX_ADDRESS", box.address)
    code, out, _ = run(capsys, "ls", "--json")
    found = {told["name"]: told for told in json.loads(out)}
    assert code == 0
    assert found["center"]["shape"] == [4, 5]
    assert found["center"]["consistency"] == "stripe"


@pytest.mark.parametrize("command", ["rm", "stat"])
def test_regions_of_a_run_are_named_to_who_gives_the_name_of_the_run(box, capsys, command):
    with box.lock("gate"):
        code, _, err = run(capsys, command, "gate", "-a", box.address)
    assert code == 5
    assert "longer_names='gate.lock.members, gate.lock.members.records'" in err
    assert "longer_names" not in run(capsys, command, "gat", "-a", box.address)[2]
    for name in ("gate.lock.members", "gate.lock.members.records"):
        assert run(capsys, "rm", name, "-a", box.address)[0] == 0


def test_stat_shows_version_and_value(box, capsys):
    box.attach("center").put([[1.0] * 5] * 4)
    code, out, _ = run(capsys, "stat", "center", "-a", box.address, "--json")
    (told,) = json.loads(out)
    assert (code, told["version"], told["nbytes"]) == (0, box.attach("center").version, 80)
    code, out, _ = run(capsys, "stat", "steps", "-a", box.address)
    assert "value        3" in out


def test_stat_writes_addresses_as_ls_does_and_a_line_between_two(box, capsys):
    region = box.create("both", shape=3, dtype="float32", init=0.0)
    box.counter("both")
    code, out, _ = run(capsys, "stat", "both", "-a", box.address)
    assert code == 0
    array, counter = (
        dict(line.split(None, 1) for line in each.splitlines()) for each in out.split("\n\n")
    )
    assert array["address"] == f"{int(region.address):#x}"
    assert array["parts"] == "rows 0:3 on node 0"
    assert counter["kind"] == "counter"


def test_stat_shows_all_that_has_a_name(box, capsys):
    box.create("twice", shape=2, init=0.0)
    box.counter("twice", init=-7)
    _, out, _ = run(capsys, "stat", "twice", "-a", box.address, "--json")
    assert {told["kind"]: told.get("value") for told in json.loads(out)} == {
        "array": None,
        "counter": -7,
    }
    run(capsys, "rm", "twice", "-a", box.address)


def test_a_name_that_is_not_there_is_exit_code_5(box, capsys):
    code, _, err = run(capsys, "stat", "nothing", "-a", box.address)
    assert code == 5
    assert "nothing" in err


def test_rm_frees(box, capsys):
    region = box.create("brief", shape=(2,), dtype="int64", init=0)
    assert run(capsys, "rm", "brief", "-a", box.address)[0] == 0
    with pytest.raises(smbox.RegionFreedError):
        region.put([1, 2])
    assert run(capsys, "rm", "brief", "-a", box.address)[0] == 5


def test_no_node_is_exit_code_3(capsys, monkeypatch):
    monkeypatch.setenv("SMBOX_TIMEOUT_S", "0.2")
    code, _, err = run(capsys, "ls", "-a", "ipc:///tmp/no-smbox-node-listens-here")
    assert code == 3
    assert err.startswith("smbox: ")


def test_rm_frees_whatever_has_the_name(box, capsys):
    box.create("gone", shape=2)
    box.counter("gone")
    box.barrier("gone", parties=1)
    assert run(capsys, "stat", "gone", "-a", box.address)[0] == 0
    assert len([info for info in box.regions() if info.name == "gone"]) == 3
    code, _, _ = run(capsys, "rm", "gone", "-a", box.address)
    assert code == 0
    assert not [info for info in box.regions() if info.name == "gone"]
    assert run(capsys, "rm", "gone", "-a", box.address)[0] == 5

"""The commands over several nodes, with striped regions and orphaned parts."""

from __future__ import annotations

import json
import secrets
import subprocess

import numpy as np
import pytest

import smbox
from smbox.address import GlobalAddress
from smbox.cli import layouts, main

pytestmark = pytest.mark.shares

X = np.arange(12, dtype=np.float32)
WAIT_S = 60.0


@pytest.fixture(scope="module")
def box(preloaded):
    command = [preloaded, "-m", "memnode", "--json", "--nodes", "2"]
    command += ["--name", f"cli-{secrets.token_hex(4)}", "--bind", "tcp://127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--memory", "32MiB"], stdout=subprocess.PIPE, text=True
    )
    try:
        address = json.loads(process.stdout.readline())["address"]
        with smbox.connect(address, timeout_s=WAIT_S) as made:
            made.create("w", init=X, layout="striped")
            made.create("v", init=X)
            made.counter("steps").add(3)
            yield made
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)


@pytest.fixture
def orphan(box):
    """Free only the head of a striped region; return the name of its parts."""
    box.create("dead", init=X, layout="striped")
    home = box.home_of("dead")
    home.free(next(info for info in home.regions() if info.name == "dead"))
    return next(info.name for info in home.regions() if info.name.startswith("dead#"))


def run(capsys, *argv):
    with pytest.raises(SystemExit) as ended:
        main.main(argv)
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out, shown.err


def listed(box, capsys):
    code, out, _ = run(capsys, "ls", "-a", box.address, "--json")
    assert code == 0
    return json.loads(out)


def test_ls_shows_a_striped_region_as_a_whole_and_its_parts(box, capsys):
    found = {told["name"]: told for told in listed(box, capsys)}
    assert (found["w"]["layout"], found["w"]["shape"]) == ("striped", [12])
    assert (found["w"]["dtype"], found["w"]["nbytes"]) == ("float32", 48)
    assert (found["v"]["layout"], found["steps"]["layout"]) == ("single", "single")
    parts = [told for told in listed(box, capsys) if told["layout"] == "part"]
    assert [(told["node"], told["shape"]) for told in parts] == [(0, [6]), (1, [6])]
    _, out, _ = run(capsys, "ls", "-a", box.address)
    rows = {line.split()[0]: line.split() for line in out.splitlines()[1:]}
    assert "striped" in rows["w"]


def test_the_consistency_of_a_striped_region_is_told(box, capsys):
    box.create("torn", init=X, layout="striped", consistency="none")
    found = {told["name"]: told["consistency"] for told in listed(box, capsys)}
    assert (found["torn"], found["w"]) == ("none", "stripe")
    assert run(capsys, "rm", "torn", "-a", box.address)[0] == 0


def test_regions_that_are_freed_during_a_survey_are_left_out(box, monkeypatch):
    made = [box.create(name, init=X, layout="striped") for name in ("first", "second")]
    doomed = iter([None, *made])

    def freed_behind(opened):
        found = regions(opened)
        if (region := next(doomed)) is not None:
            opened.free(region)
        return found

    regions = type(box).regions
    monkeypatch.setattr(type(box), "regions", freed_behind)
    assert "w" in {each.info.name for each in layouts.survey(box) if each.layout == "striped"}
    assert next(doomed, None) is None


def test_parts_that_are_published_during_a_survey_are_no_orphans(box, monkeypatch):
    regions = smbox.Box.regions

    def without_heads(opened):
        monkeypatch.undo()
        return [info for info in regions(opened) if info.name != "w"]

    monkeypatch.setattr(smbox.Box, "regions", without_heads)
    assert layouts.find_orphans(box) == []


def test_stat_finds_the_node_whatever_the_order_of_the_addresses(box, capsys):
    addresses = ",".join(reversed(box.address.split(",")))
    assert run(capsys, "stat", "v", "-a", addresses)[0] == 0


def test_stat_tells_where_the_parts_are(box, capsys):
    code, out, _ = run(capsys, "stat", "w", "-a", box.address, "--json")
    (told,) = json.loads(out)
    assert (code, told["version"]) == (0, box.attach("w").version)
    assert [(part["node"], part["first_row"]) for part in told["parts"]] == [(0, 0), (1, 6)]
    code, out, _ = run(capsys, "stat", "v", "-a", box.address, "--json")
    assert [part["limit_row"] for part in json.loads(out)[0]["parts"]] == [12]
    part = next(told for told in listed(box, capsys) if told["layout"] == "part")
    assert run(capsys, "stat", part["name"], "-a", box.address)[0] == 0


def test_stat_finds_what_is_not_on_the_node_of_its_name(box, capsys):
    center = box.attach("v")
    optimizers = [box.optimizer(center, kind, lr=0.1) for kind in ("adam", "momentum")]
    states = [state for each in optimizers for state in each.states.values()]
    assert {box.home_of(state.name).node.node_id for state in states} == {0, 1}
    for state in states:
        state.put(X)
        code, out, err = run(capsys, "stat", state.name, "-a", box.address, "--json")
        assert code == 0, err
        (told,) = json.loads(out)
        assert (told["node"], told["version"]) == (state.address.node, state.version)
    for each in optimizers:
        each.free()


def test_rm_takes_all_parts_and_only_where_all_nodes_are_known(box, capsys):
    box.create("brief", init=X, layout="striped")
    home = box.home_of("brief").address
    code, _, err = run(capsys, "rm", "brief", "-a", home)
    assert code == 2
    assert "connect to all of them" in err
    assert run(capsys, "rm", "brief", "-a", box.address)[0] == 0
    assert not [told for told in listed(box, capsys) if told["name"].startswith("brief")]


def test_doctor_shows_each_node(box, capsys):
    code, out, _ = run(capsys, "doctor", "-a", box.address, "--json")
    told = json.loads(out)["node"]
    assert code == 0
    assert told["node 0"]["name"].endswith("-0")
    assert told["node 1"]["name"].endswith("-1")
    _, out, _ = run(capsys, "doctor", "-a", box.address)
    assert "node 1 memory_nbytes" in out


def test_orphans_are_listed_and_removed(box, orphan, capsys):
    assert [told["node"] for told in listed(box, capsys) if told["layout"] == "orphan"] == [
        0,
        1,
    ]
    assert run(capsys, "stat", orphan, "-a", box.address)[0] == 0
    _, out, _ = run(capsys, "gc", "-a", box.address)
    assert out.count("would remove") == 2
    _, out, _ = run(capsys, "gc", "-a", box.address, "--json")
    assert [told["removed"] for told in json.loads(out)] == [False, False]
    _, out, _ = run(capsys, "gc", "-a", box.address, "--json", "--yes")
    found = json.loads(out)
    assert [(told["part"], told["node"], told["removed"]) for told in found] == [
        (orphan, 0, True),
        (orphan, 1, True),
    ]
    assert [GlobalAddress(told["address"]).node for told in found] == [0, 1]
    assert not [told for told in listed(box, capsys) if told["layout"] == "orphan"]
    assert box.attach("w").get().tolist() == X.tolist()


def test_orphans_that_another_client_frees_meanwhile_are_no_error(
    box, orphan, capsys, monkeypatch
):
    find_orphans = layouts.find_orphans

    def freed_behind(opened):
        found = find_orphans(opened)
        opened.free(found[0])
        return found

    monkeypatch.setattr(layouts, "find_orphans", freed_behind)
    assert run(capsys, "gc", "-a", box.address, "--yes")[0] == 0
    monkeypatch.undo()
    assert layouts.find_orphans(box) == []


def test_gc_of_one_node_keeps_parts_whose_head_is_on_another(box, capsys):
    for address in box.address.split(","):
        assert json.loads(run(capsys, "gc", "-a", address, "--json")[1]) == []


def test_rm_removes_an_orphan_by_its_name(box, orphan, capsys):
    assert run(capsys, "rm", orphan, "-a", box.address)[0] == 0
    assert not [told for told in listed(box, capsys) if told["name"] == orphan]

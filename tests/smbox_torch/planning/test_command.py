"""``smbox plan``: what it prints, writes and refuses."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from smbox.cli import main, plugins
from smbox.errors import ConfigError
from smbox_torch.planning import models

POINT = EntryPoint("plan", "smbox_torch.planning.command:command", plugins.GROUP)
TOLD = """
[model]
name = "resnet50"
batch = 8
compute_s = 4.0
[network]
link_mbit = 1000
[plan]
workers = [2, 1000]
methods = ["ring", "easgd"]
"""


@contextmanager
def address_space(nbytes: int) -> Iterator[None]:
    """Bound what this process may map."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """``plan(text, *options)``: the command on a file with this text."""
    monkeypatch.setattr(plugins, "available", lambda: {"plan": POINT})

    def run(text: str, *options: str) -> Result:
        file = tmp_path / "model.toml"
        file.write_text(text)
        return CliRunner().invoke(main.build(["plan"]), ["plan", str(file), *options])

    return run


def test_the_table_has_a_row_for_each_way_and_number_of_workers(plan):
    done = plan(TOLD)
    assert done.exit_code == 0, done.output
    title, _, *rows = done.output.splitlines()
    assert title.startswith("resnet50: 97.5 MiB, batch 8 in 4.000 s (given)")
    assert [row.split()[:2] for row in rows] == [
        ["ring", "2"],
        ["ring", "1000"],
        ["easgd", "2"],
        ["easgd", "1000"],
    ]
    assert rows[-1].rstrip().endswith("link of a node")


def test_json_has_the_same_with_bytes(plan):
    done = plan(TOLD, "--json")
    told = json.loads(done.output)
    assert told["parameters"] == 25_557_032  # of torchvision's resnet50
    first = told["predictions"][0]
    assert (first["method"], first["workers"]) == ("ring", 2)
    assert first["worker_out"] == pytest.approx(4 * 25_557_032)
    assert first["saturates"] == "compute"


def test_a_number_of_parameters_needs_no_torchvision(plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    refused = plan(TOLD).exception
    assert isinstance(refused, ConfigError)
    assert "smbox[vision]" in str(refused)
    done = plan(TOLD.replace('name = "resnet50"', "parameters = 1048576"))
    assert done.output.startswith("1048576 parameters: 4.0 MiB, batch 8")


def test_the_plot_is_a_picture(plan, tmp_path: Path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "plan.png"
    assert plan(TOLD, "--plot", str(picture)).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert plan(TOLD, "--plot", str(tmp_path / "plan")).exit_code == 0
    assert (tmp_path / "plan").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["plan.nothing", "", "no-such-folder/plan.png"])
def test_a_plot_that_cannot_be_written_is_refused(
    plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    pytest.importorskip("matplotlib")
    measured: list[str] = []
    monkeypatch.setattr(models, "measure_compute_s", lambda name, _: measured.append(name))
    without = TOLD.replace("compute_s = 4.0", "")
    done = plan(without, "--measure", "--plot", str(tmp_path / name))
    assert isinstance(done.exception, ConfigError)
    assert str(tmp_path / name) in str(done.exception)
    assert measured == []  # which takes minutes


def test_a_file_that_is_not_there_is_wrong_use(preloaded: str, tmp_path: Path):
    command = [preloaded, "-c", "from smbox.cli.main import main; main()", "plan"]
    for path in (tmp_path / "model.toml", tmp_path):
        done = subprocess.run(
            [*command, str(path)], capture_output=True, text=True, check=False, timeout=100.0
        )
        assert done.returncode == 2, done.stderr
        assert str(path) in done.stderr
        assert "Traceback" not in done.stderr


def test_a_batch_beyond_the_memory_is_refused(plan):
    pytest.importorskip("torchvision")
    huge = TOLD.replace("compute_s = 4.0", "").replace("batch = 8", "batch = 1000000")
    with address_space(1 << 38):  # as of a small machine: less than these images take
        done = plan(huge.replace("resnet50", "squeezenet1_1"), "--measure")
    assert isinstance(done.exception, ConfigError)
    assert "batch=1000000" in str(done.exception)


def test_a_model_that_takes_no_such_images_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "make", lambda *_: torch.nn.Linear(5, 5))
    with pytest.raises(ConfigError, match="give compute_s instead"):
        models.measure_compute_s("of other images", 2)


def test_a_measured_time_is_said_to_be_measured(plan, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, int]] = []

    def measured(name: str, batch: int) -> float:
        asked.append((name, batch))
        return 0.25

    monkeypatch.setattr(models, "measure_compute_s", measured)
    done = plan(TOLD.replace("compute_s = 4.0", ""), "--measure")
    assert "batch 8 in 0.250 s (measured)" in done.output
    assert asked == [("resnet50", 8)]


def test_an_unknown_model_is_refused(plan):
    done = plan(TOLD.replace("resnet50", "resnet51"))
    assert isinstance(done.exception, ConfigError)
    assert "torchvision has no such model" in str(done.exception)
    assert done.exception.facts["file"].endswith("model.toml")


def test_a_model_of_other_tasks_than_classification_is_refused():
    pytest.importorskip("torchvision")
    with pytest.raises(ConfigError, match="classifies images"):
        models.make("raft_small", "meta")


def test_the_measured_time_is_that_of_a_forward_and_backward_pass(monkeypatch):
    pytest.importorskip("torchvision")
    layers = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 1000)
    small = torch.nn.Sequential(*layers)
    monkeypatch.setattr(models, "make", lambda name, device: small)
    assert 0.0 < models.measure_compute_s("small", 2, rounds=1) < 10.0
    assert all(parameter.grad is not None for parameter in small.parameters())


@pytest.mark.parametrize(
    ("name", "mib"),
    [("alexnet", 233), ("vgg16", 528), ("vgg19", 548), ("resnet50", 98), ("resnet152", 230)],
)
def test_sizes_are_torchvision_s(name: str, mib: int):
    pytest.importorskip("torchvision")
    assert round(4 * models.count_parameters(name) / 2**20) == pytest.approx(mib, abs=1)

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from smbox.errors import ConfigError
from smbox_torch.demo.command import command

if not all(map(importlib.util.find_spec, ("sklearn", "matplotlib"))):  # imports take a second
    pytest.skip("the demo extra is not installed", allow_module_level=True)


def test_a_cluster_of_two_nodes_trains_and_reports(frameworks: str, tmp_path):
    """The whole way: launcher, memory node, two processes over tcp, table and plot."""
    plot = tmp_path / "demo.png"
    settings = ["--nodes", "2", "--per-node", "1", "--steps", "20", "--plot", str(plot)]
    done = subprocess.run(
        [frameworks, "-c", "from smbox.cli.main import main; main()", "demo", *settings],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accuracy" in done.stdout
    assert "2 workers, 2 nodes" in done.stdout
    assert plot.stat().st_size > 1000


@pytest.mark.parametrize(
    "name", ["curves.nothing", "", "no-such-folder/curves.png", "x" * 300 + "/curves.png"]
)
def test_a_plot_that_cannot_be_written_is_refused_before_any_training(tmp_path, name: str):
    refused = started(["--plot", str(tmp_path / name)])
    assert str(tmp_path / name) in refused


@pytest.mark.parametrize("module", ["matplotlib.backend_bases", "sklearn.datasets"])
def test_a_missing_package_is_named_before_any_training(tmp_path, monkeypatch, module: str):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not there
    refused = started(["--plot", str(tmp_path / "curves.png")])
    assert "pip install 'smbox[demo]'" in refused


def started(words: list[str]) -> str:
    """Start the demo with these arguments, which it refuses at once: why."""
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, ConfigError)
    assert done.output == ""
    return str(done.exception)

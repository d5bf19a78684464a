from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from smbox_torch.demo.command import command

pytest.importorskip("sklearn", reason="the demo extra is not installed")
pytest.importorskip("matplotlib", reason="the demo extra is not installed")


def test_a_cluster_of_two_nodes_trains_and_reports(tmp_path, monkeypatch):
    """The whole way: launcher, memory node, two processes over tcp, table and picture."""
    monkeypatch.setenv("PYTHONPATH", ":".join(__import__("sys").path[1:]))
    app = typer.Typer()
    app.command()(command)
    picture = tmp_path / "demo.png"
    settings = ["--nodes", "2", "--per-node", "1", "--steps", "20", "--picture", str(picture)]
    result = CliRunner().invoke(app, settings)
    assert result.exit_code == 0, result.output
    assert "accuracy" in result.output
    assert "2 workers, 2 nodes" in result.output
    assert picture.stat().st_size > 1000

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from smbox_torch.run import command


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command("run", context_settings=command.context_settings)(command)
    made.command("other")(lambda: None)
    return made


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(
        "import os, sys\nprint(os.environ['RANK'], sys.argv[1:], flush=True)\n"
        "sys.exit(4 if '--fail' in sys.argv else 0)\n"
    )
    return path


def invoke(app: typer.Typer, *words: str):
    return CliRunner().invoke(app, ["run", "--address", "tcp://127.0.0.1:9", *words])


def test_what_follows_the_script_is_the_scripts(app: typer.Typer, script: Path):
    done = invoke(app, "--per-node", "2", str(script), "--lr", "0.1", "--nodes", "7")
    assert done.exit_code == 0, done.output
    assert sorted(done.output.splitlines()) == [
        f"[rank {rank}] {rank} ['--lr', '0.1', '--nodes', '7']" for rank in range(2)
    ]


def test_the_exit_code_is_that_of_the_first_failure(app: typer.Typer, script: Path):
    done = invoke(app, str(script), "--fail")
    assert done.exit_code == 4
    assert "rank 0 (node 0, local rank 0): exit code 4" in done.output


def test_a_script_that_is_not_there_is_refused(app: typer.Typer):
    assert invoke(app, "nowhere.py").exit_code == 2

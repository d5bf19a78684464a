from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from smbox.cli.main import main

TIMEOUT_S = 100.0
RUN = ("-c", "from smbox.cli.main import main; main()", "run")
NOWHERE = ("--address", "tcp://127.0.0.1:9")  # no worker of these tests looks for a node


WORDS = (
    "import os, sys\nprint(os.environ['SMBOX_RANK'], sys.argv[1:])\n"
    "sys.exit(4 if '--fail' in sys.argv else 0)\n"
)


@pytest.fixture
def run(preloaded: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return ``run(*words)``, which runs ``smbox run``; it starts Python as forks too."""

    def run(*words: str, python: str = preloaded, **options):
        return subprocess.run(
            [python, *RUN, *NOWHERE, *words],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            **options,
        )

    return run


@pytest.mark.parametrize("form", ["file", "module", "python", "program"])
def test_what_follows_the_command_is_the_commands(run, script, tmp_path: Path, form: str):
    path = script(WORDS)
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\n{WORDS}")
    program.chmod(0o755)
    command = {
        "file": [path],
        "module": ["-m", "train"],
        "python": [sys.executable, path],
        "program": ["./program"],
    }[form]
    done = run("--per-node", "2", *command, "--lr", "0.1", "--nodes", "7", "-m", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[rank {rank}] {rank} ['--lr', '0.1', '--nodes', '7', '-m']" for rank in range(2)
    ]


def test_the_exit_code_is_that_of_the_first_failure(run, script):
    done = run(script(WORDS), "--fail")
    assert done.returncode == 4
    assert "rank 0 (node 0, local rank 0): exit code 4" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.py"], "no script 'nowhere.py'"),
        (["-m", "no_such_module"], "no module 'no_such_module'"),
        (["no-such-program"], "no program 'no-such-program'"),
        (["--ranks", "0,2", "--per-node", "2", "-m", "json.tool"], "from 0 to 1"),
        (["--ranks", "first", "-m", "json.tool"], "such as 0,2"),
        (["--ranks", "", "-m", "json.tool"], "such as 0,2"),
        (["--log-dir", "/proc/logs", "-m", "json.tool"], "--log-dir"),
        (["--log-dir", "", "-m", "json.tool"], "'--log-dir': the folder has no name"),
        (["--restarts", "2", "-m", "json.tool"], "--on-failure restart-all"),
        (["--keys", "/nowhere", "-m", "json.tool"], "--keys and --insecure go with --hosts"),
        (["--address", "7070", "-m", "json.tool"], "tcp://host:port"),
        (
            ["--address", NOWHERE[1], "--memory", "1GiB", "-m", "json.tool"],
            "leave out --memory",
        ),
        (["--on-failure", "retry", "-m", "json.tool"], "'retry'"),
        (["--no-such-option", "train.py"], "--no-such-option"),
        (["-n", "2", "train.py"], "--per-node"),
        ([], "COMMAND"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
):
    before = psutil.Process().children()
    with pytest.raises(SystemExit) as ended:
        main(["run", *words])
    told = re.sub(r"[\s│]+", " ", capsys.readouterr().err)
    assert ended.value.code == 2
    assert says in told
    assert psutil.Process().children() == before


def test_every_option_is_in_the_help(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    told = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    for option in ("--on-failure", "--torchrun-env", "--ranks", "--log-dir", "-m MODULE"):
        assert option in told
    assert "restart-all" in told


def test_logs_hold_what_is_not_shown(run, script, tmp_path: Path):
    code = "import os\nfor n in range(3000): print(f'\\r{n}', end='')\nprint()\nprint('end')\n"
    folder = tmp_path / "logs"
    done = run("--per-node", "3", "--ranks", "0,2", "--log-dir", str(folder), script(code))
    assert done.returncode == 0, done.stdout + done.stderr
    shown = ["[rank 0] 2999", "[rank 0] end", "[rank 2] 2999", "[rank 2] end"]
    assert sorted(done.stdout.splitlines()) == shown
    assert (folder / "rank1.log").read_text() == "2999\nend\n"


def test_rank_0_alone_reads_standard_input(run, script):
    code = "import os, sys\nprint(sorted(sys.stdin.read().split()))\n"
    done = run("--per-node", "2", script(code), input="some words")
    assert sorted(done.stdout.splitlines()) == [
        "[rank 0] ['some', 'words']",
        "[rank 1] []",
    ]


def test_a_standard_input_that_is_closed_is_empty(preloaded: str, script):
    code = "import os, sys\nprint(os.readlink('/proc/self/fd/0'), sys.stdin.read())\n"
    closed = [
        "bash",
        "-c",
        'exec "$@" <&-',
        "bash",
        preloaded,
        *RUN,
        script(code),
    ]  # with a node of its own
    done = subprocess.run(
        closed, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stdout == "[rank 0] /dev/null \n"


def test_what_the_output_cannot_encode_ends_no_run(run):
    # Bytes that are no UTF-8 show as U+FFFD, which Latin-1 lacks.
    latin = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = run("printf", r"caf\351\n", env=latin, python=sys.executable)
    assert (done.stdout, done.returncode) == ("[rank 0] caf?\n", 0)


TORCHRUN_ALIKE = """
import os
from accelerate import PartialState
import torch

ddp = int(os.environ.get("RANK", -1)) != -1  # as in nanoGPT
state = PartialState(cpu=True)  # accelerate's, and so of transformers' Trainer
assert not ddp and not torch.distributed.is_initialized()
print("alone", state.num_processes, int(os.environ["SMBOX_WORLD_SIZE"]))
"""


def test_scripts_that_look_for_torchrun_run_as_single_processes(run, preloaded: str, script):
    pytest.importorskip("accelerate")
    inherited = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_PORT": "1"}
    done = run("--per-node", "2", preloaded, script(TORCHRUN_ALIKE), env=os.environ | inherited)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[rank {rank}] alone 1 2" for rank in range(2)]


PROCESS_GROUP = """
import os, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo")
ranks = torch.tensor([dist.get_rank()])
dist.all_reduce(ranks)
print("sum", int(ranks), flush=True)
dist.barrier()
os._exit(0)
"""


def test_asked_for_torchruns_variables_set_up_a_process_group(run, preloaded: str, script):
    done = run("--per-node", "2", "--torchrun-env", preloaded, script(PROCESS_GROUP))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("sum 1") == 2


NO_INPUT = """
import os
if os.environ["SMBOX_RANK"] == "1":
    breakpoint()
print("went on")
"""


def test_a_debugger_of_another_rank_finds_no_input_and_does_not_hang(run, script):
    done = run("--per-node", "2", script(NO_INPUT))
    assert done.returncode == 1
    assert "rank 1 (node 0, local rank 1): exit code 1" in done.stdout

"""Tests of examples/train_restart.py: a worker is killed and started again."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "train_restart.py"
SMBOX = "from smbox.cli.main import main; main()"
TIMEOUT_S = 100
TOTAL, KILLED_AT, PERIOD = 120, 70, 4
KILLED_ONCE = f"""
import os, runpy, signal, sys
import smbox_torch

class EASGD(smbox_torch.EASGD):
    def step(self, closure=None):
        is_first = os.environ.get("SMBOX_WORKER_RESTART_COUNT", "0") == "0"
        if self.rank == 1 and is_first and self.steps == {KILLED_AT}:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(closure)

smbox_torch.EASGD = EASGD
sys.argv = [{str(EXAMPLE)!r}, "--steps", "{TOTAL}"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_worker_that_is_started_again_does_the_missing_steps_only(
    preloaded: str, tmp_path: Path
):
    script = tmp_path / "killed_once.py"
    script.write_text(KILLED_ONCE)
    words = ["run", "--per-node", "2", "--on-failure", "restart", str(script)]
    done = subprocess.run(
        [preloaded, "-c", SMBOX, *words],
        cwd=tmp_path,
        env={key: os.environ[key] for key in os.environ if "SMBOX_" not in key},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = re.findall(r"rank (\d) did steps (\d+) to (\d+)", done.stdout)
    found = {int(rank): (int(first), int(last)) for rank, first, last in told}
    assert len(told) == 2
    assert found[0] == (0, TOTAL)
    first, last = found[1]
    assert KILLED_AT - PERIOD <= first <= KILLED_AT  # steps of its last exchange
    assert last == TOTAL

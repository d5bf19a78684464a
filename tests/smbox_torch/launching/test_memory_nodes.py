"""``smbox run --memory-nodes``: workers of one script over several memory nodes."""

from __future__ import annotations

import subprocess

import pytest

from smbox.errors import ConfigError
from smbox_torch.launching.cluster import Plan

RUN = ("-c", "from smbox.cli.main import main; main()", "run")
TIMEOUT_S = 110.0

TRAIN = """
import os, signal
import torch
import smbox
from smbox_torch import EASGD
rank = int(os.environ["SMBOX_RANK"])
box = smbox.connect(timeout_s=60.0)
model = torch.nn.Linear(4, 1)
options = {"name": "m", "period": 1, "workers": 2}
optimizer = EASGD(torch.optim.SGD(model.parameters(), lr=0.1), box, **options)
for step in range(5):
    optimizer.zero_grad()
    model(torch.ones(4)).sum().backward()
    optimizer.step()
region = box.create("sums", shape=6, layout="striped", exist_ok=True)
region.accumulate([1.0] * 6)
box.barrier("half", parties=2, timeout_s=60.0)
if rank == 0:
    os.kill(box.stats()["node 1"]["pid"], signal.SIGKILL)
    region.accumulate([1.0] * 6)
box.barrier("end", parties=2, timeout_s=60.0)
print("nodes", [info.node_id for info in box.nodes], "sums", region.get().tolist())
box.close()
"""


def test_workers_train_over_all_nodes_also_when_one_is_killed(preloaded: str, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    done = subprocess.run(
        [
            preloaded,
            *RUN,
            "--memory-nodes",
            "2",
            "--memory",
            "64MiB",
            "--per-node",
            "2",
            preloaded,
            str(path),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = f"nodes [0, 1] sums {[3.0] * 6}"
    assert [line.count(wanted) for line in done.stdout.splitlines() if "nodes" in line] == [
        1,
        1,
    ]
    assert "the memory node died" in done.stdout + done.stderr


def test_plans_of_several_nodes_are_checked():
    Plan(["x"], nodes=2, address="tcp://10.0.0.1:7070,tcp://10.0.0.2:7070")
    with pytest.raises(ConfigError, match="over tcp"):
        Plan(["x"], nodes=2, address="tcp://10.0.0.1:7070,ipc:///tmp/box")
    for count in (0, 257, 10**9):
        with pytest.raises(ConfigError, match="memory node"):
            Plan(["x"], memory_nodes=count)

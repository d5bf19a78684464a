"""Ray on a cluster of two nodes; each driver is a process of its own."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.shares,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'smbox[ray]'"
    ),
]
ROOT = Path(__file__).resolve().parents[3]
CLUSTER = Path(__file__).resolve().with_name("ray_cluster.py")
BEGIN = """
import os, signal, time
import numpy as np, pytest, ray
import smbox
from smbox.errors import ConfigError, ConnectError, PeerLostError, WorkerLostError
from smbox.memory import segment
from smbox.memory.layout import PREFIX
from smbox_torch.integrations.ray import MemoryNodes

def left():
    return segment.listing(PREFIX + "detached-")

ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
"""
END = """
assert left() == []
ray.shutdown()
"""
AWAIT_END = """
deadline_s = time.monotonic() + 30
while left() or ray.available_resources().get("CPU") != 4:
    assert time.monotonic() < deadline_s, left()
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def python(ray_environment) -> Iterator[Callable[..., str]]:
    """Run a script as a driver of the cluster; returns what it printed."""
    environment = ray_environment
    cluster = subprocess.Popen(
        [sys.executable, CLUSTER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a Ctrl-C would kill it before it has ended Ray
    )

    def run(*words: str | Path) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            env=environment | {"RAY_ADDRESS": address},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with cluster:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        yield run
        cluster.communicate(timeout=60)
    assert cluster.returncode == 0
    assert list(Path(environment["TMPDIR"]).glob("smbox-keys-*")) == []


@pytest.fixture
def drive(python) -> Callable[..., str]:
    """Run code between BEGIN and an end."""
    return lambda code, end=END: python("-c", BEGIN + code + end)


def test_workers_on_two_hosts_share_two_memory_nodes(drive):
    drive("""
def train():
    with smbox.connect() as box:
        with smbox.join(box, "run", expected=2) as member:
            sums = box.create("sums", shape=(8, 4), init=0.0, layout="striped", exist_ok=True)
            sums.accumulate(np.ones((8, 4), np.float32))
            member.meet()
            names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                     "GROUP_WORLD_SIZE", "WORKER_RESTART_COUNT")
            told = [int(os.environ["SMBOX_" + name]) for name in names]
            hosts = ray.get_runtime_context().get_node_id()
            return member.rank, told, sums.get().sum(), len({p.node for p in sums.parts}), hosts

with MemoryNodes(2, memory="16MiB") as nodes:
    assert nodes.access.key not in repr(nodes.access)
    first, second = nodes.run(train, workers=2, strategy="STRICT_SPREAD")
    assert first[:4] == (0, [0, 2, 0, 1, 0, 2, 0], 64.0, 2), first
    assert second[:4] == (1, [1, 2, 0, 1, 1, 2, 0], 64.0, 2), second
    assert first[4] != second[4]
    with nodes.access.entered(), smbox.connect() as box:  # the memory stays for the next run
        assert box.attach("sums").get().sum() == 64.0
    assert "SMBOX_KEY" not in os.environ
    with pytest.raises(smbox.errors.AccessDeniedError):  # a stranger has no key
        smbox.connect(nodes.access.address)
""")


def test_a_worker_that_is_killed_is_out_and_the_others_go_on(drive):
    drive("""
def train():
    with smbox.connect() as box, smbox.join(box, "run", expected=2) as member:
        member.meet()
        if os.environ["SMBOX_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        member.meet(timeout_s=60.0)  # of the living
        return member.rank, member.count, [gone.rank for gone in member.missing()]

with MemoryNodes(memory="16MiB") as nodes:
    first, second = nodes.run(train, workers=2, on_failure="continue")
    assert first == (0, 1, [1]), first
    assert isinstance(second, ray.exceptions.WorkerCrashedError), second
""")


def test_a_failed_worker_starts_again_with_its_rank(drive):
    drive("""
def train():
    again = int(os.environ["SMBOX_WORKER_RESTART_COUNT"])
    if os.environ["SMBOX_RANK"] == "1" and again == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ["SMBOX_RANK"] == "1" and again == 1:
        raise ValueError("once more")
    return os.environ["SMBOX_RANK"], again

with MemoryNodes(memory="16MiB") as nodes:
    assert nodes.run(train, workers=2, on_failure="restart") == [("0", 0), ("1", 2)]
    first, second = nodes.run(train, workers=2, on_failure="restart", restarts=1)
    assert first == ("0", 0) and isinstance(second, ValueError)
""")


def test_a_failure_that_stops_ends_all_workers_and_names_the_rank(drive):
    drive("""
def train():
    if os.environ["SMBOX_RANK"] == "1":
        raise ValueError("no such file: data")
    smbox.connect().counter("never").wait(at_least=1, timeout_s=1000.0)

with MemoryNodes(memory="16MiB") as nodes:
    with pytest.raises(WorkerLostError, match="rank 1 failed: ValueError: no such file: data"):
        nodes.run(train, workers=2)
    assert nodes.run(lambda x: x + 1, 2, workers=3) == [3, 3, 3]  # their places are free
""")


def test_a_memory_node_that_is_killed_goes_on_with_its_memory(drive):
    drive("""
import psutil

def train():
    with smbox.connect() as box:
        kept = box.create("kept", shape=(4,), init=1.0)
        (node,) = [p for p in psutil.process_iter(["cmdline"])
                   if (p.info["cmdline"] or [])[1:4] == ["-P", "-m", "memnode"]
                   and p.environ().get("SMBOXTEST_RAY") == os.environ["SMBOXTEST_RAY"]]
        node.kill()
        kept.accumulate(np.ones(4, np.float32), timeout_s=60.0)
        return box.counter("alive").add(1, timeout_s=60.0), kept.get(timeout_s=60.0).tolist()

with MemoryNodes(memory="16MiB") as nodes:
    assert nodes.run(train, workers=1) == [(0, [2.0] * 4)]
""")


def test_a_lost_memory_node_ends_the_run_and_its_memory_is_removed(drive):
    drive(
        """
def train(actor):
    smbox.connect().create("x", shape=(4,))
    ray.kill(actor)
    smbox.connect().counter("never").wait(at_least=1, timeout_s=1000.0)

nodes = MemoryNodes(2, memory="16MiB")
with pytest.raises(PeerLostError, match="memory node 1 and its memory are lost: ActorDied"):
    nodes.run(train, nodes._nodes[1], workers=1)
nodes.close()
""",
        AWAIT_END,
    )


@pytest.mark.parametrize(
    "interrupt",
    ["smbox_torch.integrations.ray.placement_group_table", "ray.get"],
    ids=["placement", "start"],
)
def test_an_interrupted_start_of_memory_nodes_leaves_nothing(drive, interrupt):
    drive(
        f"""
def interrupted(*_, **__):
    raise KeyboardInterrupt

with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
    patched.setattr("{interrupt}", interrupted)
    MemoryNodes(2, memory="16MiB")
""",
        AWAIT_END,
    )


def test_a_failed_start_lets_the_other_starts_end(drive, tmp_path):
    drive(f"""
begin, ended = {str(tmp_path / "begin")!r}, {str(tmp_path / "ended")!r}

class Node:
    def __init__(self, index, *_):
        self.is_first = index == 0

    def start(self):
        if self.is_first:
            raise ConnectError("the first")
        while not os.path.exists(begin):
            time.sleep(0.01)
        open(ended, "w").close()  # where a node removes its keys

def wait(*args, **options):
    open(begin, "w").close()
    return real(*args, **options)

real = ray.wait
with pytest.MonkeyPatch.context() as patched, pytest.raises(ConnectError, match="the first"):
    patched.setattr("smbox_torch.integrations.ray.DetachedNode", Node)
    patched.setattr("ray.wait", wait)
    MemoryNodes(2, memory="16MiB")
assert os.path.exists(ended)
""")


def test_closing_after_the_end_of_ray_starts_no_cluster(drive):
    drive(
        """
nodes = MemoryNodes(memory="16MiB")
ray.shutdown()
nodes.close()
assert not ray.is_initialized()
""",
        end="",
    )
    drive("", AWAIT_END)


def test_what_a_driver_that_dies_has_started_ends(drive):
    drive("nodes = MemoryNodes(2, memory='16MiB')\nos._exit(0)", end="")
    drive("", AWAIT_END)


def test_the_code_of_the_page_runs(python):
    page = (ROOT / "docs" / "ray.md").read_text()
    blocks = re.findall(r"```python\n(.*?)\n```", page, re.DOTALL)
    assert len(blocks) == 2
    python("-c", "\n".join(blocks))


def test_the_example_learns(python):
    said = python(ROOT / "examples" / "train_ray.py")
    accuracies = [float(found) for found in re.findall(r"accuracy (\d+\.\d)%", said)]
    assert len(accuracies) == 2
    assert min(accuracies) > 80


def test_it_refuses_with_a_cure(drive):
    drive("""
with pytest.raises(ConfigError, match="no room") as refused:
    MemoryNodes(resources={"CPU": 3}, timeout_s=1.0)
assert refused.value.facts["free"] == {"CPU": 4.0}
with pytest.raises(ConnectError, match="did not start.*not a size"):
    MemoryNodes(memory="plenty")
with MemoryNodes(memory="16MiB") as nodes:
    with pytest.raises(ConfigError, match="stop, continue, restart"):
        nodes.run(print, workers=1, on_failure="restart-all")
    with pytest.raises(ConfigError, match="restarts must be at least 0"):
        nodes.run(print, workers=1, on_failure="restart", restarts=-1)
    with pytest.raises(ConfigError, match="at least one"):
        nodes.run(print, workers=0)
ray.shutdown()
with pytest.raises(ConfigError, match=r"ray.init\\(\\) first"):
    MemoryNodes()
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
""")

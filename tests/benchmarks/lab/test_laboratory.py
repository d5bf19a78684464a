"""The short form of the laboratory: hosts, a node with keys, a shaped link, no traces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import lab
import pytest
from lab import needs

LACK = needs.missing()
pytestmark = [
    pytest.mark.skipif(bool(LACK), reason=f"there can be no laboratory: {LACK}"),
    pytest.mark.timeout(240),
]
PROGRAM = str(Path(lab.__file__).parent)
RATE_MBIT = 200.0
MARK = "LABORATORY_OF_TEST"
FILE = f"""
rate_mbit = {RATE_MBIT}

[[host]]
name = "node"
memory = "256MiB"

[[host]]
name = "worker"
workers = 1
"""
PUT_AND_GET = """
import json, os, pathlib, socket, sys, time
import numpy as np
import smbox
from smbox_torch.workers.reporter import Reporter

reporter = Reporter.from_env(os.environ)
with smbox.connect(timeout_s=60.0) as box:
    region = box.create("x", 8 << 20, "uint8", exist_ok=True)
    data = np.arange(region.nbytes, dtype=np.uint8)
    region.put(data)
    verbs = {"put": lambda: region.put(data), "get": lambda: region.get(out=found)}
    found, rates = np.empty_like(data), {}
    for verb, call in verbs.items():
        times = [time.monotonic()]
        for _ in range(3):
            call()
            times.append(time.monotonic())
        seconds = [after - before for before, after in zip(times, times[1:])]
        rates[verb] = [8e-6 * region.nbytes / each for each in (sum(seconds) / 3, min(seconds))]
    assert np.array_equal(found, data)
    reporter.report(images_per_s=1.0)
    told = {
        "host": socket.gethostname(),
        "rank": os.environ.get("SMBOX_RANK"),
        "key": "SMBOX_KEY" in os.environ,
        "is_local": region.is_local,
        "rates": rates,
    }
    pathlib.Path(sys.argv[1]).write_text(json.dumps(told))
"""
BY_TORCHRUN = """
import os, pathlib, socket, sys
from torch import distributed
distributed.init_process_group("gloo")
pathlib.Path(sys.argv[1]).write_text(
    f"{socket.gethostname()} {distributed.get_rank()} {os.environ['SMBOX_LAB_WAIT_S']}"
)
distributed.destroy_process_group()
"""
HANG = "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(600)"


def links() -> str:
    shown = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True)
    return shown.stdout


@pytest.fixture
def mark(having):
    """A word that all processes of the laboratory inherit; afterwards nothing of it is left."""
    word = uuid.uuid4().hex
    before = (links(), Path("/proc/self/mounts").read_text())
    yield word
    deadline_s = time.monotonic() + 20.0
    while left := having(MARK, word):
        assert time.monotonic() < deadline_s, f"processes are left: {left}"
        time.sleep(0.05)
    assert (links(), Path("/proc/self/mounts").read_text()) == before


@pytest.fixture
def start(preloaded: str, tmp_path: Path, mark: str):
    """``start(command, code, file=FILE)``: the laboratory with a script, under way.

    Its processes are forks of a Python with smbox imported, unless ``python`` says otherwise.
    """

    def begin(
        command: str, code: str, *options: str, file: str = FILE, python: str = preloaded
    ) -> subprocess.Popen:
        (tmp_path / "lab.toml").write_text(file)
        (tmp_path / "script.py").write_text(code)
        words = [python, PROGRAM, command, *options, str(tmp_path / "lab.toml")]
        words += ["worker", python] if command == "on" else [python]
        words += [str(tmp_path / "script.py"), str(tmp_path / "told")]
        environment = {name: os.environ[name] for name in os.environ if "SMBOX_" not in name}
        return subprocess.Popen(
            words,
            env=environment | {MARK: mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return begin


def await_file(path: Path, process: subprocess.Popen) -> None:
    deadline_s = time.monotonic() + 100.0
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_worker_reaches_a_node_with_keys_over_a_shaped_link(start, tmp_path: Path):
    samples = tmp_path / "lab.jsonl"
    process = start("run", PUT_AND_GET, "--out", str(samples))
    shown, _ = process.communicate(timeout=200)
    assert process.returncode == 0, shown
    told = json.loads((tmp_path / "told").read_text())
    assert (told["host"], told["rank"]) == ("worker", "0")
    assert told["key"]
    assert not told["is_local"]
    for mean_mbit, best_mbit in told["rates"].values():  # a busy machine has low ones, too
        assert mean_mbit < 1.25 * RATE_MBIT, told
        assert best_mbit > 0.75 * RATE_MBIT, told
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    worker = [row for row in rows if row["host"] == "worker"]
    sent, received = (sum(row[name] for row in worker) for name in ("out_bytes", "in_bytes"))
    assert 4 * (8 << 20) < sent < 1.25 * 4 * (8 << 20)
    assert 3 * (8 << 20) < received < 1.35 * 3 * (8 << 20)
    assert sum(row["cpu_s"] for row in worker) > 0
    assert any(row["images_per_s"] for row in worker)
    assert "computation: real" in shown


def test_torchrun_inside_hosts_makes_one_group_of_all(start, tmp_path: Path):
    file = FILE.replace('name = "worker"', 'name = "worker"\ncount = 2')
    code = BY_TORCHRUN.replace("sys.argv[1]", 'sys.argv[1] + os.environ["RANK"]')
    options = ("--torchrun", "--wait-s", "0.05", "--out", str(tmp_path / "out"))
    process = start("run", code, *options, file=file)
    shown, _ = process.communicate(timeout=200)
    assert process.returncode == 0, shown
    told = [(tmp_path / f"told{rank}").read_text().split() for rank in (0, 1)]
    assert {host for host, _, _ in told} == {"worker0", "worker1"}
    assert [words[1:] for words in told] == [["0", "0.05"], ["1", "0.05"]]
    assert "replaced by waiting 0.05 s" in shown


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_after_a_signal(
    having, start, mark: str, tmp_path: Path, sign: signal.Signals
):
    # forks would not have the mark in what Linux tells of their environment
    process = start("run", HANG, "--out", str(tmp_path / "out"), python=sys.executable)
    await_file(tmp_path / "told", process)
    assert len(having(MARK, mark)) > 4
    if sign == signal.SIGINT:
        os.killpg(process.pid, sign)  # as a terminal does
    else:
        process.send_signal(sign)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == (-sign if sign == signal.SIGKILL else 130), shown


def test_a_program_runs_in_one_host_and_its_failure_is_told(start, tmp_path: Path):
    process = start("on", "import sys\nsys.exit(7)")
    process.communicate(timeout=100)
    assert process.returncode == 7


def test_a_delay_holds_each_packet_and_changes_none(start, tmp_path: Path):
    delay_ms = 10.0
    code = """
import os, pathlib, sys, time
import numpy as np
import smbox
with smbox.connect() as box:
    counter = box.counter("trips")
    times = []
    for _ in range(5):
        began_s = time.monotonic()
        counter.add(1)
        times.append(1000 * (time.monotonic() - began_s))
    region = box.create("x", 4 << 20, "uint8")
    data = np.random.default_rng(0).integers(0, 256, region.nbytes).astype(np.uint8)
    region.put(data)
    assert np.array_equal(region.get(), data)
    pathlib.Path(sys.argv[1]).write_text(str(min(times)))
"""
    file = FILE.replace('name = "worker"', f'name = "worker"\ndelay_ms = {delay_ms}')
    process = start("on", code, file=file)
    shown, _ = process.communicate(timeout=100)
    assert process.returncode == 0, shown
    assert 2 * delay_ms < float((tmp_path / "told").read_text()) < 4 * delay_ms

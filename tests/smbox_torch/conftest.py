"""Ranks of one host, as threads: what they share is mapped memory, so threads do as well.

Ranks of a ``torch.distributed`` group are processes, since a process is one rank of a group.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import smbox
import smbox_torch
from smbox import Box
from smbox.errors import WorkerLostError
from smbox.testing.quadratic import Descent
from smbox.testing.solo import solo_box, solo_boxes
from smbox_torch import SandblasterWorker
from smbox_torch.world import World

CENTERED = "EASGD EAMSGD SEASGD SyncEASGD Downpour ADownpour MVADownpour MDownpour SSP"
CENTERED += " ServerDownpour ParameterServer"
NEEDS_RANK = {"SSP", "ParameterServer"}

torch.set_num_threads(1)


@pytest.fixture(scope="session", params=CENTERED.split())
def centered(request: pytest.FixtureRequest) -> type:
    """A class with a center."""
    return getattr(smbox_torch, request.param)


@pytest.fixture(scope="session")
def alone_in() -> Callable[..., Callable[..., Any]]:
    """``alone_in(box, kind, **options)``: wraps an optimizer as a new run's only worker."""

    def wrap_with(box: Box, kind: type, **options: Any) -> Callable[..., Any]:
        def wrap(sgd: torch.optim.Optimizer, model: torch.nn.Module) -> Any:
            rank = {"rank": 0} if kind.__name__ in NEEDS_RANK else {}
            name = uuid.uuid4().hex
            return kind(sgd, box, name, workers=1, model=model, **rank, **options)

        return wrap

    return wrap_with


@pytest.fixture
def worlds() -> Callable[[int, int], list[World]]:
    """``worlds(groups, ranks)``: the workers of a fresh run of so many hosts, by rank."""

    def make(groups: int, ranks: int) -> list[World]:
        run_id = uuid.uuid4().hex
        return [
            World(
                rank=group * ranks + rank,
                local_rank=rank,
                world_size=groups * ranks,
                local_world_size=ranks,
                group_rank=group,
                group_world_size=groups,
                run_id=run_id,
            )
            for group in range(groups)
            for rank in range(ranks)
        ]

    return make


@pytest.fixture
def each() -> Callable[[list[World], Callable[[World], Any]], list[Any]]:
    """``each(members, work)``: the results of ``work(world)`` of all members, at once."""

    def run(members: list[World], work: Callable[[World], Any]) -> list[Any]:
        with ThreadPoolExecutor(len(members)) as pool:
            return [found.result() for found in [pool.submit(work, world) for world in members]]

    return run


@pytest.fixture
def run_ranks(
    worlds: Callable[[int, int], list[World]], each: Callable[..., list[Any]]
) -> Callable[..., list[Any]]:
    """``run_ranks(ranks, work)``: the same of all ranks of one host."""
    return lambda ranks, work: each(worlds(1, ranks), work)


@pytest.fixture
def open_box() -> Iterator[Callable[[], Box]]:
    """``open_box()``: one more box on a memory of this test, without a node."""
    made: list[Box] = []
    with solo_boxes(32 << 20) as opener:

        def box() -> Box:
            made.append(solo_box(opener))
            return made[-1]

        yield box
        for one in made:
            one.close()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """``script(code)``: the path of a file that holds it."""

    def write(code: str) -> str:
        path = tmp_path / "train.py"
        path.write_text(code)
        return str(path)

    return write


GLOO = """
import os, sys, torch
import torch.distributed as dist
torch.set_num_threads(1)
rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
"""

# A process that ends in order with a Gloo group is now and then aborted by one of Gloo's own
# threads ("terminate called without an active exception"), with torch alone as well.
LEAVE = """
dist.barrier()
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def run_gloo(preloaded: str, tmp_path: Path) -> Callable[[str], list[list[str]]]:
    """``run_gloo(script)``: the lines that the two ranks of a Gloo group print, by rank."""

    def run(script: str) -> list[list[str]]:
        command = [preloaded, "-c", GLOO + script + LEAVE]
        ranks = [
            subprocess.Popen(
                [*command, str(tmp_path / "store"), str(rank)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            done = [rank.communicate(timeout=100) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
        assert [rank.returncode for rank in ranks] == [0, 0], [told[1] for told in done]
        lines = [told[0].splitlines() for told in done]
        return [[line for line in each if not line.startswith("[Gloo]")] for each in lines]

    return run


@pytest.fixture(params=["center_into", "eval"])
def evaluated(request: pytest.FixtureRequest) -> Callable[[Descent], np.ndarray]:
    """``evaluated(descent)``: the center, as a worker of SEASGD evaluates it."""

    def evaluate(one: Descent) -> np.ndarray:
        if request.param == "center_into":
            target = torch.nn.ParameterList([torch.zeros_like(one.x)])
            one.optimizer.center_into(target)
            return target[0].detach().numpy()
        one.optimizer.eval()
        values = one.values()
        one.optimizer.train()
        return values

    return evaluate


@pytest.fixture(autouse=True, scope="module")
def quick_nodes(preloaded: str) -> Iterator[None]:
    """Start the nodes of ``smbox.local`` as forks, in a quarter of the processor time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("smbox.embedded.sys", SimpleNamespace(executable=preloaded))
        yield


@pytest.fixture(scope="module")
def node() -> Iterator[smbox.Box]:
    """A box that owns a memory node, for all tests of a file (which are marked ``shares``)."""
    with smbox.local(memory="512MiB", timeout_s=60.0) as box:
        yield box


@pytest.fixture(params=["shm", "tcp"])
def box(node: smbox.Box, request: pytest.FixtureRequest) -> Iterator[smbox.Box]:
    """A box on that node: on mapped memory, and over tcp."""
    with smbox.connect(node.address, transport=request.param, timeout_s=60.0) as box:
        yield box


@pytest.fixture
def run() -> str:
    """A name for a run that nobody else has."""
    return f"run-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def names_of() -> Callable[[smbox.Box, str], list[str]]:
    """``names_of(box, run)``: the names of a run's regions that are there."""
    return lambda box, run: [
        info.name for info in box.regions() if info.name.startswith(f"{run}.")
    ]


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return uuid.uuid4().hex


@pytest.fixture
def left(names_of: Callable[..., list[str]]) -> Callable[[smbox.Box, str], list[str]]:
    """``left(box, name)``: regions of a pipeline that are there, but those of membership."""
    return lambda box, name: [each for each in names_of(box, name) if ".members" not in each]


@pytest.fixture
def follow(node: smbox.Box) -> Callable[..., int]:
    """``follow(run, loss_of)``: work for a run of Sandblaster; return the portions computed.

    Each portion has the loss ``loss_of(x)``.
    """

    def work(
        run: str,
        loss_of: Callable[[torch.Tensor], torch.Tensor],
        *,
        rank: int = 0,
        dtype: torch.dtype = torch.float64,
        size: int = 3,
    ) -> int:
        own = torch.zeros(size, requires_grad=True, dtype=dtype)
        with smbox.connect(node.address, timeout_s=60.0) as box:
            worker = SandblasterWorker(box, [own], run, rank=rank, timeout_s=60.0)
            worker.run(lambda _: loss_of(own))
            return worker.computed

    return work


@pytest.fixture
def run_stages(box: smbox.Box) -> Callable[..., list[Any]]:
    """``run_stages(stages, work, *cases)``: results of ``work(box, stage, *cases)``, at once.

    Each stage is a thread with a box of its own. Where one fails, the others lose it: the error
    that is raised is none of these.
    """

    def one(stage: int, work: Callable[..., Any], *more: Any) -> Any:
        torch.set_num_threads(1)  # OpenMP counts for each thread, and oneDNN asks only OpenMP
        with smbox.connect(box.address, transport=box.transport, timeout_s=60.0) as own:
            return work(own, stage, *more)

    def run(stages: int, work: Callable[..., Any], *more: Any) -> list[Any]:
        with ThreadPoolExecutor(stages) as pool:
            each = [pool.submit(one, stage, work, *more) for stage in range(stages)]
            errors = [error for found in each if (error := found.exception())]
        for error in sorted(errors, key=lambda error: isinstance(error, WorkerLostError)):
            raise error
        return [found.result() for found in each]

    return run

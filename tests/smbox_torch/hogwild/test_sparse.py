"""Hogwild with sparse gradients, which is the case of its paper."""

from __future__ import annotations

import subprocess
from typing import Any

import numpy as np
import pytest
import torch

from smbox_torch.hogwild.hogwild import Hogwild


def values(net: torch.nn.Module) -> bytes:
    return torch.nn.utils.parameters_to_vector(net.parameters()).detach().numpy().tobytes()


SPARSE = """
import ctypes, os, signal, torch, warnings
from smbox.testing.solo import solo_box, solo_boxes
from smbox_torch.hogwild.hogwild import Hogwild

warnings.simplefilter("ignore")
PAGE, ROWS = 4096, 16
torch.set_num_threads(1)
table = torch.nn.Embedding(ROWS, PAGE // 4, sparse=True)  # a row is a page


def protect(first, limit, may):
    address = ctypes.c_void_p(table.weight.data_ptr() + first * PAGE)
    nbytes = ctypes.c_size_t((limit - first) * PAGE)
    assert ctypes.CDLL(None).mprotect(address, nbytes, may) == 0


with solo_boxes(32 << 20) as opener, solo_box(opener) as box:
    sgd = torch.optim.SGD(table.parameters(), lr=0.5)
    with Hogwild(sgd, box, "run") as optimizer:
        before = table.weight.detach().clone()
        table(torch.tensor([3, 3, 5])).sum().backward()
        for first, limit in ((0, 3), (4, 5), (6, ROWS)):
            protect(first, limit, 1)  # whoever writes there is killed
        optimizer.step()
        moves = (before - table.weight).detach()[:, 0].tolist()
        print({row: round(move, 3) for row, move in enumerate(moves) if move}, flush=True)
        child = os.fork()
        if child == 0:
            table.weight.grad = torch.ones(ROWS, PAGE // 4)
            with torch.no_grad():
                table.weight[3] += 1
            os.write(1, b"a row can be written\\n")
            optimizer.inner.step()
            os._exit(0)
        print(signal.Signals(os.WTERMSIG(os.waitpid(child, 0)[1])).name)
        protect(0, ROWS, 3)
"""


def test_sparse_gradients_write_the_rows_they_touch_and_no_other(preloaded: str):
    done = subprocess.run(
        [preloaded, "-c", SPARSE],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The dense step of the same model is the proof that the protection bites.
    assert done.stdout.splitlines() == ["{3: 1.0, 5: 0.5}", "a row can be written", "SIGSEGV"]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch's Adagrad
@pytest.mark.parametrize("state", ["shared", "private"])
def test_sparse_workers_in_turns_are_optimizers_on_one_table(open_box, state: str):
    def table(seed: int) -> torch.nn.Embedding:
        torch.manual_seed(seed)
        return torch.nn.Embedding(20, 3, sparse=True)

    def step(net: torch.nn.Embedding, optimizer: Any, t: int) -> None:
        optimizer.zero_grad()
        net(torch.tensor([t, (7 * t) % 20, t])).square().sum().backward()
        optimizer.step()

    def adagrad(net: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(net.parameters(), lr=0.1)

    nets = [table(seed) for seed in (1, 2)]
    workers = [Hogwild(adagrad(net), open_box(), "run", state=state) for net in nets]
    alone = table(1)
    plain = [adagrad(alone)] * 2 if state == "shared" else [adagrad(alone), adagrad(alone)]
    for t in range(8):
        step(nets[t % 2], workers[t % 2], t)
        step(alone, plain[t % 2], t)
    assert values(nets[0]) == values(nets[1]) == values(alone)
    for worker in workers:
        worker.close()


def test_bags_of_uneven_examples_learn_as_one_optimizer_does(open_box):
    """A sparse SVM as docs/algorithms/hogwild.md says: two workers in turns, and one alone."""
    random = np.random.default_rng(1)
    bags = [random.choice(50, size, replace=False) for size in (3, 1, 7, 4, 2, 5, 6, 3)]

    def bag() -> torch.nn.EmbeddingBag:
        made = torch.nn.EmbeddingBag(50, 1, mode="sum", sparse=True)
        torch.nn.init.zeros_(made.weight)
        return made

    def step(net: torch.nn.EmbeddingBag, optimizer: Any, pair: list[np.ndarray]) -> None:
        index = torch.from_numpy(np.concatenate(pair))
        first = torch.tensor([0, len(pair[0])])
        value = (index % 3 - 1).float()
        label = torch.tensor([1.0, -1.0])
        optimizer.zero_grad()
        margin = label * net(index, first, per_sample_weights=value).squeeze(-1)
        (1 - margin).clamp(min=0).sum().backward()
        optimizer.step()

    nets, alone = [bag(), bag()], bag()
    sgds = [torch.optim.SGD(net.parameters(), lr=0.5) for net in nets]
    workers = [Hogwild(sgd, open_box(), "run") for sgd in sgds]
    plain = torch.optim.SGD(alone.parameters(), lr=0.5)
    for turn in range(4):
        pair = bags[2 * turn : 2 * turn + 2]
        step(nets[turn % 2], workers[turn % 2], pair)
        step(alone, plain, pair)
    assert values(alone) != values(bag())
    assert values(nets[0]) == values(nets[1]) == values(alone)
    for worker in workers:
        worker.close()

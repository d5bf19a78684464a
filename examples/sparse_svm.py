"""A sparse SVM on real text, learnt by two processes on one shared model, without locks.

python examples/sparse_svm.py

The text is Python's own standard library: is a function asyncio's, or another package's? Each
has a few dozen of 65,536 features, so a step stores to few weights, and no process waits for
the other. One process alone does the same for comparison.
"""

import functools
import multiprocessing
import re
import sysconfig
import zlib
from pathlib import Path

import torch

import smbox
from smbox_torch import Hogwild

FEATURES, WORDS, TESTS, EPOCHS, BATCH, LR, MU = 1 << 16, 30, 1000, 3, 8, 4.0, 1e-4
PACKAGES = ("asyncio", "email", "http", "json", "logging", "multiprocessing", "xml")


@functools.cache
def examples():
    """Hashed words of each function [n, WORDS], 0 for none, and labels [n], in random order."""
    words, labels = [], []
    for package in PACKAGES:
        for file in sorted((Path(sysconfig.get_paths()["stdlib"]) / package).rglob("*.py")):
            for text in re.split(r"\n *(?:async )?def ", file.read_text(encoding="utf-8"))[1:]:
                found = dict.fromkeys(re.findall(r"[a-z]{3,}", text.replace(package, "")))
                hashed = [1 + zlib.crc32(word.encode()) % (FEATURES - 1) for word in found]
                words.append((hashed + WORDS * [0])[:WORDS])
                labels.append(1.0 if package == "asyncio" else -1.0)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    return torch.tensor(words)[order], torch.tensor(labels)[order]


def objective(model, index, label):
    """The hinge loss and MU / 2 |w|^2 of the weights that are touched; and the accuracy."""
    weight = model(index).squeeze(-1) * (index > 0)
    margin = label * weight.sum(dim=1) / WORDS**0.5
    decay = MU / 2 * weight.square().sum(dim=1)
    return ((1 - margin).clamp(min=0) + decay).mean(), (margin > 0).float().mean()


def train(address, rank, workers):
    torch.set_num_threads(1)
    index, label = (each[TESTS:][rank::workers] for each in examples())
    model = torch.nn.Embedding(FEATURES, 1, sparse=True)
    torch.nn.init.zeros_(model.weight)
    sgd = torch.optim.SGD(model.parameters())
    with smbox.connect(address) as box, Hogwild(sgd, box, f"svm-{workers}") as optimizer:
        box.barrier(f"start-{workers}", parties=workers, timeout_s=60.0)
        for epoch in range(EPOCHS):
            sgd.param_groups[0]["lr"] = LR / (1 + epoch)
            for batch in torch.arange(len(label)).split(BATCH):
                optimizer.zero_grad()
                objective(model, index[batch], label[batch])[0].backward()
                optimizer.step()


@torch.no_grad()
def measure(box, workers):
    """The objective on functions that no worker has seen."""
    model = torch.nn.Embedding(FEATURES, 1)
    model.weight.copy_(torch.from_numpy(box.attach(f"svm-{workers}.float32").get())[:, None])
    loss, right = objective(model, *(each[:TESTS] for each in examples()))
    print(f"{workers} process{'es' * (workers > 1)}: objective {loss:.3f}, {right:.1%} right")
    return loss


def main():
    spawn = multiprocessing.get_context("spawn")
    with smbox.local(memory="64MiB") as box:
        for workers in (1, 2):
            every = [(box.address, rank, workers) for rank in range(workers)]
            team = [spawn.Process(target=train, args=each) for each in every]
            for worker in team:
                worker.start()
            for worker in team:
                worker.join()
        is_near = bool(measure(box, 2) < 1.1 * measure(box, 1))
        print("two reach the objective of one within 10 % :", is_near)


if __name__ == "__main__":
    main()

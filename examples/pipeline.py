"""A pipeline of two processes learns handwritten digits, and equals one process bit for bit.

python examples/pipeline.py

Each process holds half of the layers and an optimizer of its own. A batch is cut into four
micro-batches; activations go forward, and gradients back, through regions of a memory node. The
weights equal, bit for bit, those of one process that takes the same micro-batches in turn.
"""

from __future__ import annotations

import multiprocessing

import torch
from sklearn.datasets import load_digits
from torch import nn

import smbox
from smbox_torch import Pipeline

BATCH, MICRO_BATCHES, BATCHES = 64, 4, 40


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def front() -> nn.Sequential:
    return make_model()[:3]


def back() -> nn.Sequential:
    return make_model()[3:]


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    digits = load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    chosen = (order.roll(-BATCH * number)[:BATCH] for number in range(BATCHES))
    return [(x[rows], y[rows]) for rows in chosen]


def work(address: str, stage: int, results: multiprocessing.Queue) -> None:
    torch.set_num_threads(1)
    data = batches()
    with (
        smbox.connect(address) as box,
        Pipeline(
            box,
            "digits",
            [front, back],
            stage=stage,
            example=data[0][0],
            loss=nn.functional.cross_entropy,
            micro_batches=MICRO_BATCHES,
        ) as pipe,
    ):
        optimizer = torch.optim.SGD(pipe.module.parameters(), lr=0.1, momentum=0.9)
        for x, y in data:
            optimizer.zero_grad()
            loss = pipe.forward_backward(x, y)
            optimizer.step()
        weights = {name: value.numpy() for name, value in pipe.module.state_dict().items()}
        results.put((weights, loss))


def alone() -> nn.Sequential:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches():
        optimizer.zero_grad()
        for inputs, targets in zip(
            x.tensor_split(MICRO_BATCHES), y.tensor_split(MICRO_BATCHES), strict=True
        ):
            (
                nn.functional.cross_entropy(model(inputs), targets) * (len(inputs) / BATCH)
            ).backward()
        optimizer.step()
    return model


def main() -> None:
    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with smbox.local(memory="64MiB") as box:
        stages = [
            context.Process(target=work, args=(box.address, stage, results)) for stage in (0, 1)
        ]
        for stage in stages:
            stage.start()
        found = [results.get(timeout=100.0) for _ in stages]
        for stage in stages:
            stage.join()
    weights = {name: value for state, _ in found for name, value in state.items()}
    wanted = alone().state_dict()
    is_equal = weights.keys() == wanted.keys() and all(
        weights[name].tobytes() == value.numpy().tobytes() for name, value in wanted.items()
    )
    print("loss of the last batch:", f"{found[0][1]:.3f}")
    print("equal to one process, bit for bit :", is_equal)


if __name__ == "__main__":
    main()

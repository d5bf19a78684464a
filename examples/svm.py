"""A sparse SVM and a sparse logistic regression, learnt by two Hogwild workers without locks.

python examples/svm.py

Each example has 10 of 500 features, so a step writes no more than 80 of the shared model's
numbers, and two workers seldom meet. One process alone does the same for comparison.
"""

from __future__ import annotations

import multiprocessing

import torch
from torch import nn

import smbox
from smbox_torch import Hogwild

FEATURES, ACTIVE, EXAMPLES, TESTS = 500, 10, 4000, 2000
EPOCHS, BATCH, LR, MU = 2, 8, 0.5, 1e-4
LOSSES = {
    "svm": lambda margin: (1 - margin).clamp(min=0),
    "logistic": lambda margin: nn.functional.softplus(-margin),
}


def examples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Indices and values of the features [count, ACTIVE], labels -1 or 1, one in 50 wrong."""
    truth = torch.randn(FEATURES, generator=torch.Generator().manual_seed(1))
    random = torch.Generator().manual_seed(seed)
    index = torch.rand(count, FEATURES, generator=random).topk(ACTIVE).indices
    value = torch.randn(count, ACTIVE, generator=random)
    label = (truth[index] * value).sum(dim=1).sign()
    wrong = torch.rand(count, generator=random) < 0.02
    return index, value, torch.where(wrong, -label, label)


def objective(model: nn.Embedding, loss: str, data: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The mean loss and MU / 2 |w|^2, as far as the examples touch w (Niu et al., 2011)."""
    index, value, label = data
    weight = model(index).squeeze(-1)
    margin = label * (weight * value).sum(dim=1)
    touched = FEATURES / ACTIVE  # an example stands for so many that do not touch the feature
    return (LOSSES[loss](margin) + MU / 2 * touched * weight.square().sum(dim=1)).mean()


def train(address: str, rank: int, workers: int) -> None:
    torch.set_num_threads(1)
    data = examples(EXAMPLES, seed=2)
    with smbox.connect(address) as box:
        box.barrier(f"start-{workers}", parties=workers, timeout_s=60.0)
        for loss in LOSSES:
            descend(box, f"{loss}-{workers}", loss, tuple(d[rank::workers] for d in data))


def descend(box: smbox.Box, run: str, loss: str, data: tuple[torch.Tensor, ...]) -> None:
    model = nn.Embedding(FEATURES, 1, sparse=True)
    nn.init.zeros_(model.weight)
    sgd = torch.optim.SGD(model.parameters(), lr=LR)
    random = torch.Generator().manual_seed(4)
    with Hogwild(sgd, box, run) as optimizer:
        for epoch in range(EPOCHS):
            sgd.param_groups[0]["lr"] = LR / (1 + epoch)
            for batch in torch.randperm(len(data[0]), generator=random).split(BATCH):
                optimizer.zero_grad()
                objective(model, loss, tuple(each[batch] for each in data)).backward()
                optimizer.step()


@torch.no_grad()
def measure(box: smbox.Box, run: str, loss: str) -> tuple[float, float]:
    """Objective and accuracy on examples that nobody has seen."""
    model = nn.Embedding(FEATURES, 1)
    model.weight.copy_(torch.from_numpy(box.attach(f"{run}.float32").get())[:, None])
    index, value, label = data = examples(TESTS, seed=3)
    right = (model(index).squeeze(-1) * value).sum(dim=1) * label > 0
    return objective(model, loss, data).item(), right.float().mean().item()


def main() -> None:
    context = multiprocessing.get_context("spawn")
    with smbox.local(memory="64MiB") as box:
        team = [context.Process(target=train, args=(box.address, r, 2)) for r in range(2)]
        for worker in team:
            worker.start()
        train(box.address, 0, 1)
        for worker in team:
            worker.join()
        near = []
        for loss in LOSSES:
            alone, two = measure(box, f"{loss}-1", loss), measure(box, f"{loss}-2", loss)
            print(f"{loss}: one process: objective {alone[0]:.4f}, accuracy {alone[1]:.1%}")
            print(f"{loss}: two workers: objective {two[0]:.4f}, accuracy {two[1]:.1%}")
            near.append(two[0] < 1.1 * alone[0])
    print("two workers reach both objectives within 10 % :", near == [True, True])


if __name__ == "__main__":
    main()

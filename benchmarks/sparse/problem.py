"""Sparse linear models: the objective, and what one step may see of it.

w the weights, z an example with label y, N the training examples, d_u how many of them have
feature u, mu the weight decay:

    F(w) = 1/N sum of loss(y w.z)  +  mu/2 |w|^2
         = 1/N sum of ( loss(y w.z)  +  1/2 sum over u in z of (mu N / d_u) w_u^2 )

so that a step for one example reads and changes the weights of its own features alone (Niu et
al., Hogwild!, 2011, section 2). loss(m) is max(0, 1 - m) of an SVM, log(1 + exp(-m)) of a
logistic regression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparse.text import FEATURES, Examples

__all__ = ["LOSSES", "MU", "Batch", "Loss", "Problem", "batches"]

F32 = NDArray[np.float32]
MU: Final = 1e-5


class Loss(NamedTuple):
    """A loss of the margin m = y w.z.

    Attributes:
        of_tensor: the loss, for autograd.
        values: the losses of an array of margins.
        pull: minus the derivative at one margin.
    """

    of_tensor: Callable[[torch.Tensor], torch.Tensor]
    values: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    pull: Callable[[float], float]


LOSSES: Final = {
    "svm": Loss(
        lambda m: (1.0 - m).clamp(min=0.0),
        lambda m: np.maximum(0.0, 1.0 - m),
        lambda m: 1.0 if m < 1.0 else 0.0,
    ),
    "logistic": Loss(
        lambda m: nn.functional.softplus(-m),
        lambda m: np.logaddexp(0.0, -m),
        lambda m: 1.0 / (1.0 + math.exp(min(m, 700.0))),  # exp of more is no double
    ),
}


class Batch(NamedTuple):
    """Examples of one step, b of them with m non-zeros.

    Attributes:
        features: ``i64[m]``, example after example.
        value: ``f32[m]``: their values.
        decay: ``f32[m]``: mu N / d_u of each.
        row: ``i64[m]``: to which example each belongs, 0 to b - 1.
        label: ``f32[b]``.
    """

    features: NDArray[np.int64]
    value: F32
    decay: F32
    row: NDArray[np.int64]
    label: F32


class Problem:
    """An objective over training examples.

    Args:
        loss: a key of LOSSES.
        train: the examples.
    """

    def __init__(self, loss: str, train: Examples) -> None:
        self.loss = LOSSES[loss]
        self.train = train
        self.decay = (MU * len(train) / np.maximum(train.counts(), 1)).astype(np.float32)

    def of_batch(self, weight: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return N times the batch's part of the objective, for autograd.

        Args:
            weight: ``f32[m]``: weights of the batch's non-zeros, in their order.
            batch: the examples.
        """
        value, decay, row, label = map(torch.from_numpy, batch[1:])
        margin = label * torch.zeros(len(label)).index_add(0, row, weight * value)
        return self.loss.of_tensor(margin).sum() + 0.5 * (decay * weight.square()).sum()

    def move(self, weight: F32, batch: Batch) -> F32:
        """Return minus the gradient of a batch of one example, ``f32[m]``.

        Args:
            weight: ``f32[m]``: weights of the example's features.
            batch: one example.
        """
        label = float(batch.label[0])
        pull = self.loss.pull(label * float(weight @ batch.value))
        return np.float32(label * pull) * batch.value - batch.decay * weight

    def objective(self, weights: F32) -> float:
        """Return F of ``f32[FEATURES]`` over all training examples."""
        margins = self.train.label * scores(weights, self.train)
        norm = float(np.square(weights, dtype=np.float64).sum())
        return float(self.loss.values(margins).mean()) + 0.5 * MU * norm


def scores(weights: F32, examples: Examples) -> NDArray[np.float64]:
    """Return w.z of every example, ``f64[n]``."""
    products = (weights[examples.index] * examples.value).astype(np.float64)
    return np.add.reduceat(products, examples.first[:-1])


def accuracy(weights: F32, examples: Examples) -> float:
    """Return the share of examples whose label has the sign of w.z."""
    return float((scores(weights, examples) * examples.label > 0.0).mean())


def batches(
    problem: Problem, picked: NDArray[np.int64], size: int, random: np.random.Generator
) -> list[Batch]:
    """Return the picked training examples in random order, as batches of this size."""
    train = problem.train
    order = random.permutation(picked)
    return [
        _batch(problem, train, order[first : first + size].tolist())
        for first in range(0, len(order), size)
    ]


def _batch(problem: Problem, train: Examples, members: Sequence[int]) -> Batch:
    places = [slice(train.first[one], train.first[one + 1]) for one in members]
    features = np.concatenate([train.index[place] for place in places])
    return Batch(
        features,
        np.concatenate([train.value[place] for place in places]),
        problem.decay[features],
        np.repeat(np.arange(len(members)), [place.stop - place.start for place in places]),
        train.label[np.array(members)],
    )


def no_weights() -> F32:
    """Return the weights that every run begins with: zeros."""
    return np.zeros(FEATURES, np.float32)

from __future__ import annotations

import numpy as np
import pytest
import torch
from sparse.problem import LOSSES, MU, Problem, accuracy, batches, no_weights
from sparse.text import FEATURES, Examples

RANDOM = np.random.default_rng(5)


def few(count: int = 40, active: int = 6) -> Examples:
    index = [np.sort(RANDOM.choice(30, active, replace=False)) for _ in range(count)]
    value = RANDOM.normal(size=(count, active)).astype(np.float32)
    label = np.where(RANDOM.random(count) < 0.5, -1.0, 1.0).astype(np.float32)
    first = np.arange(count + 1, dtype=np.int64) * active
    return Examples(np.concatenate(index), value.reshape(-1), first, label)


def some_weights() -> np.ndarray:
    weights = no_weights()
    weights[:30] = RANDOM.normal(size=30)
    return weights


@pytest.mark.parametrize("loss", LOSSES)
def test_the_parts_of_all_examples_make_the_objective(loss: str):
    """So a step along a batch's part is one along an unbiased gradient of the objective."""
    problem, weights = Problem(loss, few()), some_weights()
    parts = [
        float(problem.of_batch(torch.from_numpy(weights[batch.features]), batch))
        for batch in batches(problem, np.arange(40), 7, np.random.default_rng(1))
    ]
    assert len(parts) == 6
    assert sum(parts) / 40 == pytest.approx(problem.objective(weights), rel=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_objective_is_that_of_the_definition(loss: str):
    problem, weights = Problem(loss, examples := few()), some_weights()
    dense = np.zeros((40, FEATURES))
    for row, (a, b) in enumerate(zip(examples.first[:-1], examples.first[1:], strict=True)):
        dense[row, examples.index[a:b]] = examples.value[a:b]
    margins = examples.label * (dense @ weights)
    losses = np.maximum(0, 1 - margins) if loss == "svm" else np.log(1 + np.exp(-margins))
    expected = losses.mean() + MU / 2 * (weights.astype(float) ** 2).sum()
    assert problem.objective(weights) == pytest.approx(expected, rel=1e-6)
    assert accuracy(weights, examples) == (margins > 0).mean()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_move_without_torch_is_what_autograd_says(loss: str):
    problem, weights = Problem(loss, few()), some_weights()
    for batch in batches(problem, np.arange(40), 1, np.random.default_rng(1)):
        own = torch.from_numpy(weights[batch.features]).requires_grad_()
        (gradient,) = torch.autograd.grad(problem.of_batch(own, batch), own)
        move = problem.move(weights[batch.features], batch)
        assert move.dtype == np.float32
        np.testing.assert_allclose(move, -gradient.numpy(), rtol=1e-4, atol=1e-6)


def test_a_far_margin_is_no_overflow():
    assert LOSSES["logistic"].pull(1e6) == pytest.approx(0.0, abs=1e-300)
    assert LOSSES["logistic"].pull(-1e6) == 1.0


def test_batches_have_every_picked_example_once():
    problem = Problem("svm", examples := few())
    picked = np.arange(1, 40, 2)
    found = batches(problem, picked, 8, np.random.default_rng(1))
    assert [len(batch.label) for batch in found] == [8, 8, 4]
    values = np.concatenate([batch.value for batch in found])
    assert sorted(values) == sorted(examples.value.reshape(40, -1)[picked].reshape(-1))
    for batch in found:
        assert batch.row.tolist() == sorted(batch.row.tolist())
        np.testing.assert_array_equal(batch.decay, problem.decay[batch.features])

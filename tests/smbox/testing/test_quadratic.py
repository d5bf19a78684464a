from __future__ import annotations

import numpy as np

from smbox.testing.quadratic import LR, SIZE, Descent, gradient, noise, start


class Point:
    """The part of a tensor that a descent needs."""

    def __init__(self, x: np.ndarray) -> None:
        self.x, self.grad, self.goal = x, np.zeros(SIZE, np.float32), np.zeros(SIZE)

    def new_tensor(self, goal: np.ndarray) -> Point:
        self.goal = goal
        return self

    def __sub__(self, other: Point) -> Point:
        return self

    __pow__ = __rmul__ = __sub__

    def sum(self) -> Point:
        return self

    def backward(self) -> None:
        self.grad += self.x - self.goal


class Steps:
    def __init__(self, point: Point) -> None:
        self.point = point

    def zero_grad(self) -> None:
        self.point.grad[:] = 0

    def step(self) -> None:
        self.point.x -= np.float32(LR) * self.point.grad


def test_every_worker_and_step_has_its_own_noise_and_the_same_start():
    assert np.array_equal(start(), start())
    assert np.array_equal(noise(1, 2), noise(1, 2))
    assert not np.array_equal(noise(1, 2), noise(2, 1))
    assert start().dtype == noise(0, 0).dtype == np.float32


def test_a_descent_follows_the_gradient_that_oracles_take():
    point, x = Point(start()), start()
    Descent(3, point, Steps(point)).run(4)
    for t in range(4):
        x -= np.float32(LR) * gradient(3)(x, t)
    np.testing.assert_array_equal(point.x, x)

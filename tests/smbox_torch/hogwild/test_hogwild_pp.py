from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from smbox.box import Box
from smbox.errors import ConfigError
from smbox.testing.quadratic import LR, SIZE, Descent, gradient, start
from smbox_torch.hogwild.hogwild import Hogwild
from smbox_torch.hogwild.hogwild_pp import (
    HogwildPP,
    default_update_delay,
    exchange,
    ring_weights,
)
from smbox_torch.world import World

TOLERANCE, DELAY = 0.05, 1


def made(box: Box, rank: int, workers: int, clusters: int, **options: Any) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start() + np.float32(rank)))
    options = {"tolerance": TOLERANCE, "update_delay": DELAY} | options
    world = World(rank, rank, workers, workers)
    sgd = torch.optim.SGD([x], lr=LR)
    return Descent(
        rank, x, HogwildPP(sgd, box, "run", clusters=clusters, world=world, **options)
    )


def close(workers: list[Descent]) -> None:
    for worker in workers:
        worker.optimizer.close()


@pytest.mark.parametrize("clusters", [1, 2, 3, 10])
def test_the_weights_of_the_ring_solve_their_equations(clusters: int):
    beta, lambda_ = ring_weights(clusters)
    assert beta**clusters + beta == pytest.approx(1.0, abs=1e-12)
    assert lambda_ == pytest.approx(1 - beta ** (clusters - 1), abs=1e-12)


@pytest.mark.parametrize(("moves", "travels"), [(2e-3, True), (5e-4, False)])
def test_the_default_tolerance_is_the_measured_one(leaders, moves: float, travels: bool):
    xs, team = leaders()
    xs[0].grad = torch.full((1,), moves)
    for each in reversed(team):
        each.step()
    assert (xs[1].item() != 0) is travels


def test_the_token_is_kept_for_as_long_as_in_the_papers_code():
    assert [default_update_delay(n) for n in (2, 4, 5, 10, 11)] == [64, 64, 16, 16, 4]


class Replay:
    """The paper's equations in float32: models of clusters, and leaders' steps in an order."""

    def __init__(self, clusters: int) -> None:
        self.beta, self.lambda_ = (np.float32(each) for each in ring_weights(clusters))
        self.w = [start() for _ in range(clusters)]
        self.u = [start() for _ in range(clusters)]
        self.token, self.keep = 0, -1

    def step(self, cluster: int, worker: int, t: int, *, leads: bool) -> None:
        w = self.w[cluster]
        w -= np.float32(LR) * gradient(worker)(w, t)
        if not leads or self.token != cluster:
            return
        if self.keep < 0:
            self.exchange(cluster, (cluster + 1) % len(self.w))
            self.keep = DELAY + 1
        self.keep -= 1
        if self.keep == 0:
            self.keep, self.token = -1, (cluster + 1) % len(self.w)

    def exchange(self, mine: int, following: int) -> None:
        beta, lambda_, one = self.beta, self.lambda_, np.float32(1)
        w, v = self.w[mine].copy(), self.w[following].copy()
        for j in range(SIZE):
            d = w[j] - self.u[mine][j]
            moves = abs(d) > np.float32(TOLERANCE)
            share = beta + lambda_ - one if moves else lambda_
            new = lambda_ * v[j] + (one - lambda_) * w[j] + share * d
            self.w[mine][j] = new
            self.u[mine][j] = new if moves else new - d
            if moves:
                self.w[following][j] = v[j] + beta * d


def test_workers_in_a_recorded_order_equal_the_replay(open_box):
    workers, clusters, steps = 4, 3, 60
    order = np.random.default_rng(5).integers(0, workers, steps).tolist()
    team = [made(open_box(), rank, workers, clusters) for rank in range(workers)]
    belongs = [each.optimizer.cluster for each in team]
    assert belongs == [0, 0, 1, 2]
    replay, clock = Replay(clusters), [0] * workers
    for worker in order:
        team[worker].run()
        leads = worker == belongs.index(belongs[worker])
        replay.step(belongs[worker], worker, clock[worker], leads=leads)
        clock[worker] += 1
    assert sum(each.optimizer.stats().exchanges for each in team) > 2 * clusters
    assert team[1].optimizer.stats().exchanges == 0
    for each, cluster in zip(team, belongs, strict=True):
        np.testing.assert_allclose(each.values(), replay.w[cluster], rtol=0, atol=1e-6)
    assert np.abs(replay.w[0] - replay.w[1]).max() > 1e-3  # they are models of their own
    close(team)


def test_one_cluster_is_hogwild_bit_for_bit(open_box):
    team = [made(open_box(), rank, 2, 1) for rank in range(2)]
    for t in range(8):
        team[t % 2].run()
    plain = []
    for rank in range(2):
        x = torch.nn.Parameter(torch.from_numpy(start()))
        plain.append(
            Descent(rank, x, Hogwild(torch.optim.SGD([x], lr=LR), open_box(), "plain"))
        )
    for t in range(8):
        plain[t % 2].run()
    assert team[0].values().tobytes() == plain[0].values().tobytes()
    close(team + plain)


def test_a_small_move_waits_and_is_not_written_to_the_neighbour():
    beta, lambda_ = ring_weights(2)
    w, u, v = torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.99]), torch.tensor([1.0, 5.0])
    exchange(w, v, u, beta=beta, lambda_=lambda_, tolerance=0.1)
    assert v.tolist() == pytest.approx([1 + beta, 5.0])
    assert (w - u).tolist() == pytest.approx([0.0, 0.01], abs=1e-6)
    assert w[1].item() == pytest.approx(lambda_ * 5 + (1 - lambda_) + lambda_ * 0.01)


def test_a_move_of_the_tolerance_waits_too():
    w, u, v = torch.tensor([1.0]), torch.tensor([0.5]), torch.tensor([3.0])
    exchange(w, v, u, beta=0.5, lambda_=0.5, tolerance=0.5)
    assert v.tolist() == [3.0]
    assert (w - u).tolist() == [0.5]


def test_a_step_of_another_worker_during_an_exchange_stays_in_w_and_in_its_next_move():
    class Neighbour(torch.Tensor):
        """A tensor that is written while another worker steps."""

        def view(self, *shape: int) -> torch.Tensor:
            w.add_(10.0)
            return super().view(*shape)

    w, u, v = torch.tensor([2.0]), torch.tensor([1.0]), torch.tensor([3.0])
    exchange(w, v.as_subclass(Neighbour), u, beta=0.5, lambda_=0.5, tolerance=0.0)
    assert (w - u).tolist() == [10.0]
    assert u.tolist() == [2.5]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_an_exchange_keeps_to_the_precision_of_the_model(dtype: torch.dtype):
    w, u, v = (torch.full((2, 2), each, dtype=dtype) for each in (2.0, 1.0, 3.0))
    beta, lambda_ = ring_weights(3)
    exchange(w, v, u, beta=beta, lambda_=lambda_, tolerance=0.0)
    precise = torch.finfo(dtype).eps * 8
    assert v[0, 0].item() == pytest.approx(3 + beta, rel=precise)
    assert w[1, 1].item() == pytest.approx(2 + lambda_ + (beta + lambda_ - 1), rel=precise)
    assert torch.equal(u, w)


def test_workers_at_once_bring_all_clusters_to_the_goal(open_box):
    team = [made(open_box(), rank, 4, 2, tolerance=1e-3) for rank in range(4)]
    goal = torch.linspace(-1, 1, SIZE)

    def train(one: Descent) -> None:
        for _ in range(300):
            one.optimizer.zero_grad()
            (0.5 * (one.x - goal) ** 2).sum().backward()
            one.optimizer.step()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(train, team))
    for one in team:
        assert (one.x - goal).abs().max() < 0.05
    latest = torch.nn.ParameterList([torch.zeros(SIZE)])
    team[3].optimizer.center_into(latest)
    assert (latest[0] - goal).abs().max() < 0.05
    close(team)


def test_the_center_is_matched_by_name_not_by_the_order_of_groups(open_box):
    model = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.LayerNorm(4))
    named = list(model.named_parameters())
    sgd = torch.optim.SGD([{"params": named[0::2]}, {"params": named[1::2]}], lr=LR)
    other = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.LayerNorm(4))
    with HogwildPP(sgd, open_box(), "run", clusters=1, world=World()) as optimizer:
        with torch.no_grad():
            for number, (_, parameter) in enumerate(named):
                parameter.fill_(number)
        optimizer.center_into(other)
        with pytest.raises(ConfigError):
            optimizer.center_into(torch.nn.Linear(4, 4))
    assert [p[0].item() for p in other.parameters()] == [0, 1, 2, 3]


def test_a_cluster_that_leaves_is_passed_over_and_keeps_a_copy(open_box):
    team = [made(open_box(), rank, 3, 3, update_delay=0) for rank in range(3)]
    for one in reversed(team):
        one.run()
    team[1].optimizer.close()
    left = team[1].values()
    for _ in range(4):
        team[2].run()
        team[0].run()
    assert team[2].optimizer.stats().exchanges >= 2
    assert team[0].optimizer.stats().exchanges >= 3
    assert team[1].values().tobytes() == left.tobytes()
    close(team)


def test_clusters_resume_where_they_were(open_box):
    team = [made(open_box(), rank, 2, 2) for rank in range(2)]
    for t in range(6):
        team[t % 2].run()
    saved = [one.optimizer.state_dict() for one in team]
    values = [one.values() for one in team]
    close(team)
    again = [
        Descent(rank, x, HogwildPP(sgd, open_box(), "again", clusters=2, world=world))
        for rank in range(2)
        for x in [torch.nn.Parameter(torch.zeros(SIZE))]
        for sgd in [torch.optim.SGD([x], lr=LR)]
        for world in [World(rank, rank, 2, 2)]
    ]
    for one, state, before in zip(again, saved, values, strict=True):
        one.optimizer.load_state_dict(state)
        assert one.values().tobytes() == before.tobytes()
        assert torch.equal(one.optimizer._old[0], one.x)
    close(again)


@pytest.mark.parametrize(
    "wrong", [{"clusters": 0}, {"clusters": 3}, {"tolerance": -1.0}, {"update_delay": -1}]
)
def test_impossible_arguments_are_refused(open_box, wrong):
    with pytest.raises(ConfigError):
        made(open_box(), 0, 2, **({"clusters": 2} | wrong))


def test_finish_leaves_the_model_of_the_cluster_that_has_the_token(open_box):
    team = [made(open_box(), rank, 2, 2) for rank in range(2)]
    team[0].x.grad = torch.ones_like(team[0].x)
    for _ in range(DELAY + 1):
        team[0].optimizer.step()  # then the other cluster has the token
    best = team[1].x.detach().clone()
    assert not torch.equal(team[0].x, best)
    with ThreadPoolExecutor(2) as pool:
        for ended in [pool.submit(each.optimizer.finish) for each in team]:
            ended.result()
    assert all(torch.equal(each.x, best) for each in team)

"""ParameterServer after a restart of all workers: all begin at the steps of the center."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from smbox.testing.model_box import ModelBox
from smbox_torch import ParameterServer

torch.set_num_threads(1)


def workers(box: ModelBox) -> list[ParameterServer]:
    sgds = [torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1) for _ in range(2)]
    return [ParameterServer(sgd, box, "run", rank=i, workers=2) for i, sgd in enumerate(sgds)]


def train(running: list[ParameterServer], steps: int) -> None:
    def run(one: ParameterServer) -> None:
        for _ in range(steps):
            one.zero_grad()
            one.param_groups[0]["params"][0].square().sum().backward()
            one.step()

    with ThreadPoolExecutor(len(running)) as pool:
        list(pool.map(run, running))


@pytest.mark.parametrize(
    ("launch", "restart", "steps"), [("one", "1", 2), ("none", "1", 2), ("two", "0", 0)]
)
def test_all_workers_begin_at_the_steps_of_the_center(
    monkeypatch: pytest.MonkeyPatch, launch: str, restart: str, steps: int
):
    """Whoever wrote the center. Another launch begins at 0."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none" if launch == "none" else "one")
    box = ModelBox()
    running = workers(box)
    train(running, 2)
    running[0].state_dict()  # writes the center
    train(running, 1)
    for one in running:
        one.close(exchange=False)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", launch)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
    again = workers(box)
    assert [one.steps for one in again] == [steps, steps]
    for one in again:
        one.close(exchange=False)

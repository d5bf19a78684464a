from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import torch

from smbox.testing.model_box import ModelBox
from smbox_torch.demo.digits import Digits
from smbox_torch.demo.worker import Outcome, Settings, train
from smbox_torch.workers.reporter import Reporter
from smbox_torch.world import World

torch.set_num_threads(1)
SETTINGS = Settings(steps=6, batch=4, period=2, look=3)


class Recorder(Reporter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[dict] = []

    def report(self, **fields) -> bool:
        self.told.append(fields)
        return True


def pictures(count: int) -> Digits:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(count, 1, 8, 8, generator=generator)
    return Digits(x, torch.arange(count) % 10)


def test_two_nodes_of_one_worker_share_a_center(tmp_path):
    box, reporters = ModelBox(), [Recorder(), Recorder()]
    settings = {"run_id": str(tmp_path), "group_world_size": 2}
    worlds = [World(rank, 0, 2, 1, group_rank=rank, **settings) for rank in range(2)]

    def work(world: World) -> Outcome:
        client = box.client(str(world.rank))
        return train(
            world, client, SETTINGS, (pictures(40), pictures(20)), reporters[world.rank]
        )

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(work, worlds))
    for outcome, reporter in zip(outcomes, reporters, strict=True):
        assert [point[0] for point in outcome.curve] == [3, 6]
        assert outcome.samples == 24
        assert outcome.exchange["exchanges"] == 4  # the last one as it closes
        assert [told["step"] for told in reporter.told] == [3, 6]
        assert {"loss", "accuracy", "staleness", "exchange_ms"} <= set(reporter.told[0])
        assert Outcome(**json.loads(json.dumps(asdict(outcome)))).center == outcome.center
    assert outcomes[0].center == outcomes[1].center is not None

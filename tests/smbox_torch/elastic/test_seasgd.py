from __future__ import annotations

import threading
import time
import warnings

import numpy as np
import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing import oracles
from smbox.testing.model_box import ModelBox
from smbox.testing.model_region import ModelRegion
from smbox.testing.quadratic import LR, Descent, gradient, start
from smbox_torch.elastic.seasgd import SEASGD
from smbox_torch.elastic.stability import StabilityWarning
from smbox_torch.optimizer import wrapper

torch.set_num_threads(1)
SETTINGS = {"steps": 9, "lr": LR, "moving_rate": 0.2, "period": 2}


def worker(number: int, box: ModelBox, **settings) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start()))
    sgd = torch.optim.SGD([x], lr=LR)
    settings = {"period": 2, "moving_rate": 0.2, **settings}
    return Descent(
        number, x, SEASGD(sgd, box.client(f"w{number}"), "run", **({"workers": 1} | settings))
    )


def finish(descent: Descent, steps: int) -> None:
    descent.run(steps)
    descent.optimizer.close(exchange=False)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("increment", [None, "w0"])
def test_one_worker_is_the_sequential_algorithm(overlap: bool, increment: str | None):
    box = ModelBox()
    one = worker(0, box, overlap=overlap, increment=increment)
    one.run(9)
    one.optimizer.close(exchange=False)
    x, c = start(), start()
    oracles.run(oracles.seasgd(x, c, gradient(0), **SETTINGS))
    np.testing.assert_array_equal(one.values(), x)
    np.testing.assert_array_equal(box.attach("run.float32").get(), c)


def test_several_workers_equal_the_replay_of_their_order():
    box = ModelBox()
    workers = [worker(i, box, overlap=False, workers=3) for i in range(3)]
    began = len(box.log)
    threads = [threading.Thread(target=finish, args=(w, 9)) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    xs, c = [start() for _ in workers], start()
    runs = {f"w{i}": oracles.seasgd(x, c, gradient(i), **SETTINGS) for i, x in enumerate(xs)}
    oracles.replay(runs, [entry.client for entry in box.log[began:]])
    np.testing.assert_allclose(box.attach("run.float32").get(), c, rtol=0, atol=1e-6)
    for one, x in zip(workers, xs, strict=True):
        np.testing.assert_allclose(one.values(), x, rtol=0, atol=1e-6)


class HeldBox(ModelBox):
    """Adds wait for a gate."""

    def __init__(self) -> None:
        super().__init__("w0")
        self.gate = threading.Event()

    def client(self, name: str) -> ModelBox:
        return self

    def create(self, *args, **kwargs):
        region, gate = super().create(*args, **kwargs), self.gate
        add = region.accumulate

        def accumulate(*values, **named):
            gate.wait()
            add(*values, **named)

        region.accumulate = accumulate
        return region


def test_the_main_thread_computes_on_while_the_add_runs_and_blocks_before_the_next_read():
    box = HeldBox()
    one = worker(0, box, period=1)
    one.run()  # returns although its add is held: T4 and T5 of the next step may run
    moved, began = one.values(), len(box.log)
    time.sleep(0.05)  # the computation, which hides a part of the add
    second = threading.Thread(target=one.run)
    second.start()
    second.join(0.05)
    assert second.is_alive()
    is_quiet = len(box.log) == began  # a read would miss its own add
    box.gate.set()
    second.join()
    assert is_quiet
    one.optimizer.close(exchange=False)
    assert not np.array_equal(one.values(), moved)
    assert box.order("run.float32", "accumulate") == ["w0", "w0"]
    stats = one.optimizer.stats()
    assert (stats.exchanges, stats.staleness) == (2, {0: 2})
    assert stats.hidden_ms > 0


def test_the_gradient_is_awaited_before_the_time_of_an_exchange_counts(monkeypatch):
    one, awaited = worker(0, ModelBox(), period=1), []
    monkeypatch.setattr(wrapper, "await_device", awaited.append)
    one.run()
    assert len(awaited) == 1
    one.optimizer.close(exchange=False)


@pytest.mark.parametrize("loads", [False, True])
def test_a_state_is_taken_and_loaded_after_the_add_under_way(waiting_opens, loads: bool):
    box = HeldBox()
    one = worker(0, box, period=1)
    saved = one.optimizer.state_dict()
    one.run()  # its add is held
    waiting_opens(box.gate)
    if loads:
        one.optimizer.load_state_dict(saved, force=True)
    else:
        saved = one.optimizer.state_dict()
    box.gate.set()
    one.optimizer.close(exchange=False)
    np.testing.assert_array_equal(
        saved["centers"][0]["float32"], box.attach("run.float32").get()
    )


def test_a_center_is_evaluated_after_the_add_under_way(waiting_opens, evaluated):
    box = HeldBox()
    one = worker(0, box, period=1)
    one.run()  # its add is held
    waiting_opens(box.gate)
    found = evaluated(one)
    box.gate.set()
    one.optimizer.close(exchange=False)
    np.testing.assert_array_equal(found, box.attach("run.float32").get())


class TurnBox(ModelBox):
    """Verbs of the clients happen one at a time, in an order drawn from a seed.

    Every client runs in a thread of its own, and pauses before each verb until it is drawn.
    """

    VERBS = ("get", "accumulate", "elastic")

    def __init__(self, client: str = "", store=None, turns=None) -> None:
        super().__init__(client, store)
        self.turns = turns or Turns()

    def client(self, name: str) -> TurnBox:
        return TurnBox(name, self.store, self.turns)

    def create(self, *args, **kwargs):
        region = super().create(*args, **kwargs)
        for verb in self.VERBS:
            setattr(region, verb, self._in_turn(getattr(region, verb)))
        return region

    def _in_turn(self, verb):
        def call(*args, **kwargs):
            self.turns.pause(self.name)
            return verb(*args, **kwargs)

        return call


class Turns:
    """Lets one of several threads run at a time, from one pause to its next."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.paused: set[str] = set()
        self.drawn: str | None = None
        self.is_on = False

    def pause(self, name: str) -> None:
        with self.changed:
            if not self.is_on:
                return
            self.paused.add(name)
            self.drawn = None
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.drawn == name, timeout=30)
            self.paused.remove(name)

    def run(self, work: dict, seed: int, look) -> None:
        random, self.is_on, left = np.random.default_rng(seed), True, set(work)

        def finish(name: str) -> None:
            self.pause(name)
            work[name]()
            with self.changed:
                left.remove(name)
                self.drawn = None
                self.changed.notify_all()

        threads = [threading.Thread(target=finish, args=(name,)) for name in work]
        for thread in threads:
            thread.start()
        with self.changed:
            while left:
                is_quiet = lambda: self.drawn is None and self.paused == left  # noqa: E731
                assert self.changed.wait_for(is_quiet, timeout=30)
                if left:
                    look()
                    self.drawn = str(random.choice(sorted(left)))
                    self.changed.notify_all()
        for thread in threads:
            thread.join()
        self.is_on = False


def test_no_order_of_the_workers_makes_a_running_variance_negative():
    lows, orders = [], set()
    for seed in range(30):
        box = TurnBox()
        nets = [torch.nn.BatchNorm1d(2) for _ in range(3)]
        team = {
            f"w{i}": SEASGD(
                torch.optim.SGD(net.parameters(), lr=0.1),
                box.client(f"w{i}"),
                "run",
                moving_rate=0.5,
                workers=3,
                overlap=False,
                model=net,
            )
            for i, net in enumerate(nets)
        }
        for i, net in enumerate(nets):
            net.running_var.fill_(1e-3 * i)  # the center still holds 1

        def look(box=box, nets=nets) -> None:
            shared = box.store.regions["run.buffers.float32"].data
            lows.append(min(shared[2:].min(), *(float(net.running_var.min()) for net in nets)))

        def work(one: SEASGD) -> None:
            for _ in range(3):
                one.exchange()

        began = len(box.log)
        tasks = {name: (lambda one=one: work(one)) for name, one in team.items()}
        box.turns.run(tasks, seed, look)
        look()
        orders.add(tuple(entry.client for entry in box.log[began:]))
    assert len(orders) > 20  # the orders differ
    assert min(lows) >= 0


def test_a_rate_beyond_the_bound_is_warned_of():
    with pytest.warns(StabilityWarning, match=r"1\.88"):
        worker(0, ModelBox(), workers=16, overlap=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        worker(0, ModelBox(), workers=8, overlap=False)


def test_a_period_below_one_is_refused():
    with pytest.raises(ConfigError):
        worker(0, ModelBox(), period=0)


def test_the_default_moving_rate_follows_the_number_of_workers():
    box = ModelBox()
    one = worker(0, box, moving_rate=None, period=1, overlap=False)
    one.run()
    before = one.values(), box.attach("run.float32").get()
    one.optimizer.team.size = 9
    one.run()
    x = before[0] - np.float32(LR) * gradient(0)(before[0], 1)
    np.testing.assert_allclose(one.values(), x - (x - before[1]) / 10, rtol=0, atol=1e-6)


def test_an_end_tells_that_the_last_add_failed(monkeypatch):
    one = worker(0, ModelBox(), period=1)

    def fail(*_args) -> None:
        raise ConnectionError("the memory is gone")

    monkeypatch.setattr(ModelRegion, "accumulate", fail)
    one.run()
    with pytest.raises(ConnectionError):
        one.optimizer.close()

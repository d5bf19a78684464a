from __future__ import annotations

import numpy as np
import pytest
import torch

from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, start
from smbox_torch.downpour.averaged import AveragedDownpour

torch.set_num_threads(1)


class Half(AveragedDownpour):
    def rate(self) -> float:
        return 0.5


def worker(box: ModelBox, kind: type = Half) -> Descent:
    x = torch.nn.Parameter(torch.from_numpy(start()))
    return Descent(0, x, kind(torch.optim.SGD([x], lr=LR), box, "run", workers=1))


def test_the_average_follows_the_center_and_leaves_the_worker_alone():
    box = ModelBox()
    one = worker(box)
    one.run()
    center, average = box.attach("run.float32").get(), box.attach("run.average.float32").get()
    np.testing.assert_array_equal(one.values(), center)
    np.testing.assert_allclose(average, (start() + center) / 2, rtol=1e-6)


def test_the_average_is_what_is_evaluated():
    box = ModelBox()
    one = worker(box)
    one.run(3)
    model = torch.nn.Module()
    model.x = torch.nn.Parameter(torch.zeros(len(start())))
    one.optimizer.center_into(model)
    np.testing.assert_array_equal(
        model.x.detach().numpy(), box.attach("run.average.float32").get()
    )


def test_who_joins_late_begins_at_the_center():
    box = ModelBox()
    worker(box).run(3)
    np.testing.assert_array_equal(worker(box).values(), box.attach("run.float32").get())


def test_a_checkpoint_holds_the_average():
    box, again = ModelBox(), ModelBox()
    one = worker(box)
    one.run(3)
    worker(again).optimizer.load_state_dict(one.optimizer.state_dict())
    np.testing.assert_array_equal(
        again.attach("run.average.float32").get(), box.attach("run.average.float32").get()
    )


def test_the_base_itself_has_no_rate():
    with pytest.raises(NotImplementedError):
        worker(ModelBox(), AveragedDownpour).run()

from __future__ import annotations

import json

import pytest

SCRIPT = """
import json
from smbox_torch.averaging.gradient_rounds import GradientRounds
from smbox_torch.averaging.summed_mean import SummedMean
from smbox_torch.averaging.sync_group import SyncGroup
from smbox_torch.averaging.torch_sum import TorchSum, root_of

def parameter(*values, dtype=torch.float32):
    return torch.nn.Parameter(torch.tensor(values, dtype=dtype))

def told(tensor):
    return None if tensor is None else tensor.tolist()

a, b = parameter(1.0 + rank, 2.0), parameter(3.0 + rank, dtype=torch.bfloat16)
c = parameter(4.0)
buffer = torch.tensor([5 + rank])
by = TorchSum(dist.group.WORLD, torch.device("cpu"))
mean = SummedMean([a, b, c], [buffer], by)
rounds = GradientRounds([a, b, c], mean, torch.optim.SGD([a, b, c]))
by.begin_alike([a, b, c, buffer])
begin = [told(each) for each in (a, b, c, buffer)]

rounds.weight = 1.0 + 2 * rank                       # 1 and 3
a.grad = torch.tensor([4.0, 8.0]) * (rank + 1)
if rank == 1:
    b.grad = torch.tensor([2.0], dtype=torch.bfloat16)
buffer += 1 + rank
rounds.finish()
means = [told(each.grad) for each in (a, b, c)]
rounds.close()
rounds.close()

net = torch.nn.Linear(2, 1, bias=False)
sgd = torch.optim.SGD(net.parameters(), lr=0.5)
with SyncGroup(sgd, net, group=dist.group.WORLD) as optimizer:
    before = net.weight.detach().clone()
    with optimizer.no_sync():
        net(torch.tensor([[1.0, 0.0]])).sum().backward()
    net(torch.tensor([[float(rank), 2.0]])).sum().backward()
    optimizer.step()
moved = (before - net.weight).detach().tolist()[0]
counts = rounds.recorder.exchanges, optimizer.stats().exchanges, optimizer.stats().steps
root = root_of(dist.group.WORLD)
groups = [dist.new_group([each]) for each in range(2)]
TorchSum(groups[rank], torch.device("cpu")).share(buffer, 0)
assert root_of(groups[rank]) == rank
print(json.dumps([root, begin, means, told(buffer), moved, counts]))
"""


def test_the_ranks_of_a_group_begin_alike_and_average(run_gloo):
    first, second = (json.loads(lines[-1]) for lines in run_gloo(SCRIPT))
    assert first == second
    root, begin, means, buffer, moved, counts = first
    assert root == 0
    assert begin == [[1.0, 2.0], [3.0], [4.0], [5]]  # rank 0's
    # Weights 1 and 3; a gradient that one rank lacks counts as zero, one that all lack is None.
    assert means == [[7.0, 14.0], [1.5], None]
    assert buffer == [6]
    assert moved == pytest.approx([0.75, 1.0])  # 0.5 * mean(1 + rank), 0.5 * 2
    assert counts == [1, 1, 1]


GUARDED = """
import json
from smbox.errors import StepMismatchError
from smbox_torch.averaging.sync_group import SyncGroup

def train(guard, steps):
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer = SyncGroup(sgd, net, group=dist.group.WORLD)
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(2 * step + rank))
        net(x).sum().backward()
        if step == 1 and rank == 1:
            net[1].weight.grad.view(-1)[0] += 0.0
        if not guard(step, net):
            optimizer.step()
    return net

def overflow(step, net):
    return step == 1                       # as a gradient scaler after an infinity: all ranks

net = train(overflow, 4)
state = [each.tolist() for each in net.state_dict().values()]
try:
    train(lambda step, net: step == 1 and rank == 1, 3)
    error = "none"
except StepMismatchError as caught:
    error = caught.facts["ranks"]
print(json.dumps([state, error]))
"""


def test_a_step_that_all_skip_parts_nobody_and_one_that_one_skips_is_an_error_for_all(run_gloo):
    first, second = (json.loads(lines[-1]) for lines in run_gloo(GUARDED))
    assert first == second
    assert first[1] == [1]
    assert 4 in first[0]  # num_batches_tracked


JOIN = """
import json
from smbox.testing.model_box import ModelBox
from smbox_torch.hybrid.hybrid import HybridSGD
from smbox_torch.averaging.sync_group import SyncGroup

def wrapped(kind, sgd):
    if kind == "sync":
        return SyncGroup(sgd, group=dist.group.WORLD)
    options = {"period": 2, "moving_rate": 0.5, "groups": 1, "overlap": kind == "overlap"}
    box = ModelBox() if rank == 0 else None
    return HybridSGD(sgd, box, "run", group=dist.group.WORLD, **options)

found = []
for kind in ("sync", "hybrid", "overlap"):
    for counts in ([1, 4], [4, 1]):
        x = torch.nn.Parameter(torch.ones(3) * (1 + rank))
        optimizer = wrapped(kind, torch.optim.SGD([x], lr=0.1, momentum=0.5))
        with optimizer.join():
            for _ in range(counts[rank]):
                optimizer.zero_grad()
                (x.square().sum() * (1 + rank)).backward()
                optimizer.step()
        optimizer.close()
        found.append([optimizer._rounds.steps, x.tolist()])

x = torch.nn.Parameter(torch.zeros(2))
optimizer = SyncGroup(torch.optim.SGD([x], lr=1.0), group=dist.group.WORLD)
with optimizer.join():
    for _ in range(1 + 2 * rank):
        optimizer.zero_grad()
        (x.sum() * (1 + 2 * rank)).backward()
        optimizer.step()
optimizer.close()
print(json.dumps([found, x.tolist()]))
"""


def test_ranks_of_a_group_that_run_out_of_batches_follow_the_others(run_gloo):
    first, second = (json.loads(lines[-1]) for lines in run_gloo(JOIN))
    assert first == second
    steps, x = first
    assert [count for count, _ in steps] == [4] * 6
    assert x == [-(1 + 3) / 2 - 3 - 3] * 2  # a rank without batches adds nothing


SKIPPED = """
from smbox.errors import StepMismatchError
from smbox.testing.model_box import ModelBox
from smbox_torch.hybrid.hybrid import HybridSGD

box = ModelBox() if rank == 0 else None
for overlap in (False, True):
    x = torch.nn.Parameter(torch.ones(3))
    sgd = torch.optim.SGD([x], lr=0.1)
    options = {"period": 1, "groups": 1, "group": dist.group.WORLD, "overlap": overlap}
    optimizer = HybridSGD(sgd, box, f"run{overlap}", **options)
    try:
        for step in range(3):
            optimizer.zero_grad()
            x.square().sum().backward()
            if step != 1 or rank != 0:
                optimizer.step()
    except StepMismatchError as error:
        print(error.facts["ranks"], flush=True)
"""


def test_a_root_of_a_group_that_skips_an_exchange_is_named(run_gloo):
    """The others would wait for its broadcast, and it for their gradients."""
    assert run_gloo(SKIPPED) == [["[0]", "[0]"]] * 2


DIFFERENT = """
from smbox.errors import ConfigError
from smbox_torch.averaging.sync_group import SyncGroup
weight = torch.nn.Parameter(torch.full((2 + rank, 3 - rank), float(rank)))
try:
    SyncGroup(torch.optim.SGD([weight], lr=0.5), group=dist.group.WORLD)
except ConfigError as error:
    print("models differ" in str(error), weight.mean().item() == rank)
"""


def test_models_that_differ_in_shape_alone_are_refused_by_all_ranks_of_a_group(run_gloo):
    assert [lines[-1] for lines in run_gloo(DIFFERENT)] == ["True True"] * 2

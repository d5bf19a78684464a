from __future__ import annotations

import json

import pytest
import torch

from smbox.errors import ConfigError
from smbox_torch.torch_sync import TorchSync

SCRIPT = """
import json
from smbox.errors import ConfigError
from smbox_torch.sync_group import SyncGroup
from smbox_torch.torch_sync import TorchSync, root_of

def parameter(*values, dtype=torch.float32):
    return torch.nn.Parameter(torch.tensor(values, dtype=dtype))

def told(tensor):
    return None if tensor is None else tensor.tolist()

a, b = parameter(1.0 + rank, 2.0), parameter(3.0 + rank, dtype=torch.bfloat16)
c = parameter(4.0)
buffer = torch.tensor([5 + rank])
sync = TorchSync([a, b, c], [buffer], dist.group.WORLD)
begin = [told(each) for each in (a, b, c, buffer)]

sync.weight = 1.0 + 2 * rank                       # 1 and 3
a.grad = torch.tensor([4.0, 8.0]) * (rank + 1)
if rank == 1:
    b.grad = torch.tensor([2.0], dtype=torch.bfloat16)
sync.finish()
means = [told(each.grad) for each in (a, b, c)]
buffer += 1 + rank
sync.publish()
sync.close()
sync.close()

net = torch.nn.Linear(2, 1, bias=False)
sgd = torch.optim.SGD(net.parameters(), lr=0.5)
with SyncGroup(sgd, net, group=dist.group.WORLD) as optimizer:
    before = net.weight.detach().clone()
    with optimizer.no_sync():
        net(torch.tensor([[1.0, 0.0]])).sum().backward()
    net(torch.tensor([[float(rank), 2.0]])).sum().backward()
    optimizer.synchronize()
    optimizer.step()
    try:
        with optimizer.join():
            refused = False
    except ConfigError:
        refused = True
moved = (before - net.weight).detach().tolist()[0]
rounds = sync.recorder.exchanges, optimizer.stats().exchanges, optimizer.stats().steps
root = root_of(dist.group.WORLD)
print(json.dumps([root, begin, means, told(buffer), moved, refused, rounds]))
"""


def test_the_ranks_of_a_group_begin_alike_and_average(run_gloo):
    first, second = (json.loads(lines[-1]) for lines in run_gloo(SCRIPT))
    assert first == second
    root, begin, means, buffer, moved, refused, rounds = first
    assert root == 0
    assert begin == [[1.0, 2.0], [3.0], [4.0], [5]]  # rank 0's
    # Weights 1 and 3; a gradient that one rank lacks counts as zero, one that all lack is None.
    assert means == [[7.0, 14.0], [1.5], None]
    assert buffer == [6]
    assert moved == pytest.approx([0.75, 1.0])  # 0.5 * mean(1 + rank), 0.5 * 2
    assert refused
    assert rounds == [1, 1, 1]


@pytest.mark.parametrize("parameters", [[], [torch.zeros(2, dtype=torch.int64)]])
def test_what_has_no_mean_is_refused(parameters):
    with pytest.raises(ConfigError, match="mean"):
        TorchSync(parameters, [], None)

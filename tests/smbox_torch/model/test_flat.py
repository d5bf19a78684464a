from __future__ import annotations

import gc
import io

import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox.testing.quadratic import LR, Descent, start
from smbox_torch import (
    EAMSGD,
    EASGD,
    SEASGD,
    SSP,
    ADownpour,
    Downpour,
    MDownpour,
    SyncEASGD,
)
from smbox_torch.adapter import as_array
from smbox_torch.model.flat import FlatBuffer, FlatParameters, own_storage, unique


def network() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


def test_parameters_keep_their_values_as_views_of_one_buffer():
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    (buffer,) = FlatParameters(model.parameters()).buffers
    assert buffer.size == 2 * 3 + 3 + 3 + 3
    for p, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, value)
    buffer.host[:] = 7.0
    assert all(bool((p == 7).all()) for p in model.parameters())


def test_each_dtype_has_its_buffer_and_tied_tensors_count_once():
    a = torch.nn.Parameter(torch.zeros(2))
    b = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    flat = FlatParameters([a, b, a])
    assert [(buffer.dtype, buffer.size) for buffer in flat.buffers] == [
        ("float32", 2),
        ("float64", 3),
    ]
    assert flat.nbytes == 2 * 4 + 3 * 8
    assert len(unique([a, b, a])) == 2


def test_bfloat16_has_a_buffer_too():
    pytest.importorskip("ml_dtypes", reason="the bf16 extra is not installed")
    p = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    (buffer,) = FlatParameters([p]).buffers
    buffer.host[:] = 2.0
    assert p.tolist() == [2.0, 2.0]


def test_strided_and_scalar_tensors_fit_in():
    wide = torch.nn.Parameter(torch.arange(6.0).view(2, 3).t())
    scalar = torch.nn.Parameter(torch.tensor(9.0))
    (buffer,) = FlatParameters([wide, scalar]).buffers
    assert buffer.host.tolist() == [0, 3, 1, 4, 2, 5, 9]
    assert wide.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_gradients_are_flat_and_stay_so():
    model = network()
    flat = FlatParameters(model.parameters(), gradients=True)
    for _ in range(2):
        flat.buffers[0].zero_gradients()
        model(torch.ones(4, 2)).square().sum().backward()
    gradient = flat.buffers[0].gradient
    assert gradient is not None
    joined = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.equal(gradient, joined)
    assert float(gradient.abs().sum()) > 0
    flat.buffers[0].zero_gradients()
    assert float(gradient.abs().sum()) == 0


def test_gradients_that_were_there_are_kept():
    p, q = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))
    p.grad = torch.ones(2)
    buffer = FlatBuffer([p, q])
    buffer.attach_gradients()
    assert buffer.gradient is not None
    assert buffer.gradient.tolist() == [1, 1, 0]


def test_a_gradient_that_was_cleared_is_zero():
    p = torch.nn.Parameter(torch.zeros(2))
    p.grad = torch.ones(2)
    buffer = FlatBuffer([p])
    buffer.attach_gradients()
    p.grad = None
    buffer.attach_gradients()
    assert buffer.gradient is not None
    assert buffer.gradient.tolist() == [0, 0]
    assert p.grad is None  # as torch's, whose optimizers skip such a parameter


def test_gradients_of_a_converted_model_are_not_cleared():
    model = network()
    flat = FlatParameters(model.parameters(), gradients=True)
    model.double()
    with pytest.raises(ConfigError, match="not in the flat buffer"):
        flat.buffers[0].zero_gradients()


def test_sparse_gradients_become_dense_and_add_up():
    table = torch.nn.Embedding(4, 2, sparse=True)
    buffer = FlatBuffer([table.weight])
    for times in (1, 2):
        table(torch.tensor([1, 3, 3])).sum().backward()
        buffer.attach_gradients()
        assert buffer.gradient is not None
        assert buffer.gradient.tolist() == [0, 0, times, times, 0, 0, 2 * times, 2 * times]


def test_the_graph_of_a_gradient_is_not_kept():
    p = torch.nn.Parameter(torch.ones(2))
    buffer = FlatBuffer([p])
    (p.grad,) = torch.autograd.grad(p.square().sum(), [p], create_graph=True)
    buffer.attach_gradients()
    assert buffer.gradient.tolist() == [2, 2]
    assert not buffer.gradient.requires_grad


def test_a_frozen_parameter_gets_no_gradient():
    p, q = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))
    buffer = FlatBuffer([p, q])
    buffer.attach_gradients()
    buffer.zero_gradients()
    assert p.grad is not None
    p.requires_grad_(False)
    buffer.zero_gradients()
    assert p.grad is None
    assert q.grad is not None


def test_a_parameter_that_left_is_found():
    model = network()
    flat = FlatParameters(model.parameters())
    flat.check()
    model.load_state_dict(network().state_dict())
    flat.check()
    model[0].weight.data = torch.zeros(3, 2)
    with pytest.raises(ConfigError, match=r"not in the flat buffer.* in place"):
        flat.check()


def test_a_model_whose_storage_torch_has_moved_is_found():
    model = network()
    flat = FlatParameters(model.parameters())
    model.share_memory()  # it moves the storage under each tensor that has it, views included
    with pytest.raises(ConfigError, match="not in the flat buffer"):
        flat.check()


def test_nothing_and_several_devices_are_refused():
    for tensors in ([], [torch.zeros(1), torch.zeros(1, device="meta")]):
        with pytest.raises(ConfigError):
            FlatParameters(tensors)


ALGORITHMS = [
    (EASGD, {"period": 1}),
    (EASGD, {"period": 1, "overlap": True}),
    (EAMSGD, {"period": 1}),
    (SEASGD, {"overlap": False}),
    (SyncEASGD, {"period": 1}),
    (Downpour, {"n_push": 1, "n_fetch": 2}),
    (ADownpour, {}),
    (MDownpour, {}),
    (SSP, {"staleness": 0}),
]


def part_from_host(buffer: FlatBuffer) -> None:
    """Give a buffer a host twin, as it has where its tensors live on a device."""
    buffer._twin = torch.full_like(buffer.flat, float("nan"))
    buffer.host = as_array(buffer._twin)


def trained(kind: type, settings: dict, *, on_device: bool) -> tuple[list[float], list[float]]:
    x = torch.nn.Parameter(torch.from_numpy(start()))
    box = ModelBox()
    opt = kind(torch.optim.SGD([x], lr=LR), box, "run", workers=1, **settings)
    if on_device:
        part_from_host(opt.flat.buffers[0])
    descent = Descent(0, x, opt)
    descent.run(4)
    saved = opt.state_dict()
    opt.load_state_dict(saved)
    descent.run(2)
    opt.close()
    return descent.values().tolist(), box.attach("run.float32").get().tolist()


@pytest.mark.parametrize(("kind", "settings"), ALGORITHMS)
def test_algorithms_go_by_the_host_twin_of_a_device(kind: type, settings: dict):
    """The worker's values and the center are those of a run whose twin is the buffer itself."""
    expected = trained(kind, settings, on_device=False)
    assert trained(kind, settings, on_device=True) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_view_has_a_storage_of_its_own_size(dtype: torch.dtype):
    """Else safetensors leaves tensors out of a file, and torch.save writes all for a part."""
    tensors = [torch.nn.Parameter(torch.full((n, 2), float(n), dtype=dtype)) for n in (1, 3)]
    (buffer,) = FlatParameters(tensors).buffers
    storages = [tensor.untyped_storage() for tensor in tensors]
    assert [s.nbytes() for s in storages] == [t.nbytes for t in tensors]
    assert len({s.data_ptr() for s in storages}) == 2
    buffer.flat.add_(1.0)
    assert tensors[1].tolist() == [[4.0, 4.0]] * 3
    file = io.BytesIO()
    torch.save(tensors[0], file)
    assert len(file.getvalue()) < 2000


def test_a_view_outlives_its_buffer():
    view = own_storage(torch.arange(1000.0)[10:12])
    gc.collect()
    view += 1
    assert view.tolist() == [11.0, 12.0]


def test_tensors_that_have_no_flat_buffer_are_refused_and_stay():
    one = torch.nn.Parameter(torch.ones(2))
    for other, cure in (
        (torch.zeros(2, dtype=torch.complex64), "view_as_complex in forward"),
        (torch.zeros(2, dtype=torch.int64), "leave others out"),
        (torch.zeros(2, device="meta"), "one device"),
    ):
        where = one.data_ptr()
        with pytest.raises(ConfigError, match=cure):
            FlatParameters([one, other])
        assert one.data_ptr() == where
    with pytest.raises(ConfigError, match="'meta' has none"):
        FlatParameters([torch.zeros(2, device="meta")])
    with pytest.raises(ConfigError, match="no parameters"):
        FlatParameters([])

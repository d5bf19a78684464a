"""Models of 16-bit floats, and 16-bit wires: centers in float32, compared with numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from smbox.errors import ConfigError
from smbox.testing.model_box import ModelBox
from smbox_torch import (
    EAMSGD,
    EASGD,
    SEASGD,
    SSP,
    Downpour,
    HybridSGD,
    MDownpour,
    MVADownpour,
    ServerDownpour,
    SyncEASGD,
)

HALVES = [torch.float16, torch.bfloat16]
NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
RATE = 0.02


def wrapped(kind, x: torch.Tensor, box, *, lr: float = 0.0, **settings):
    return kind(torch.optim.SGD([x], lr=lr), box, "run", workers=1, **settings)


def run(opt, x: torch.Tensor, steps: int, gradient: float = 0.0) -> None:
    for _ in range(steps):
        x.grad = torch.full_like(x, gradient)
        opt.step()


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@pytest.mark.filterwarnings("ignore:.*waiting for exchanges")  # 200 of them, on a busy machine
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (EASGD, {}),
        (EASGD, {"overlap": True}),
        (EAMSGD, {"momentum": 0.0}),
        (SEASGD, {}),
        (SyncEASGD, {}),
    ],
)
def test_moves_below_an_ulp_add_up_on_both_sides(kind, settings, half: torch.dtype):
    box, x = ModelBox(), torch.nn.Parameter(torch.ones(3, dtype=half))
    opt = wrapped(kind, x, box, period=1, moving_rate=RATE, **settings)
    region = box.attach(f"run.{name_of(half)}")
    assert region.dtype == np.float32
    far = 1.0 + 4 * torch.finfo(half).eps  # one move is a 12th of an ulp
    region.put(np.full(3, far, np.float32))
    run(opt, x, 200)
    master = opt.state_dict()["parameters"][name_of(half)].numpy()
    opt.close()
    middle = (1.0 + far) / 2
    np.testing.assert_allclose(region.get(), middle, atol=torch.finfo(half).eps / 50)
    np.testing.assert_allclose(x.detach().float(), middle, atol=torch.finfo(half).eps)
    np.testing.assert_allclose(region.get() + master, 1.0 + far, atol=3e-5)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_x_loses_what_the_center_gets_whatever_the_wire_rounds(wire: str, overlap: bool):
    rng, box = np.random.default_rng(5), ModelBox()
    x0, c = (rng.standard_normal(50).astype(np.float32) for _ in range(2))
    parameter = torch.nn.Parameter(torch.from_numpy(x0.copy()))
    opt = wrapped(EASGD, parameter, box, period=1, moving_rate=0.3, wire=wire, overlap=overlap)
    box.attach("run.float32").put(c)
    run(opt, parameter, 20)
    opt.close()
    x, rest, rate = x0.copy(), np.zeros(50, np.float32), np.float32(0.3)
    for _ in range(21):
        total = rest + x
        sent = total.astype(NUMPY[wire]).astype(np.float32)
        rest = total - sent
        d = rate * (sent - c)
        c, x = c + d, x - d
    np.testing.assert_array_equal(box.attach("run.float32").get(), c)
    np.testing.assert_array_equal(parameter.detach().numpy(), x)
    assert not np.array_equal(sent, x)
    assert opt.stats().nbytes == 21 * (2 + 4) * 50


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_where_workers_agree_a_rounded_wire_does_not_pull_the_center_aside(wire: str):
    box, value = ModelBox(), np.float32(1 / 3)
    x = torch.nn.Parameter(torch.full((1,), float(value)))
    opt = wrapped(EASGD, x, box, period=1, moving_rate=0.1, wire=wire)
    seen = []
    for _ in range(300):
        run(opt, x, 1)
        seen.append(float(box.attach("run.float32").get()[0]))
    error = float(value.astype(NUMPY[wire])) - float(value)  # a bias would be as large
    assert abs(np.mean(seen) - float(value)) < 0.1 * abs(error)


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_pushed_moves_add_up_whatever_the_wire_rounds(wire: str):
    for kind, settings in ((Downpour, {"n_fetch": 10**6}), (SSP, {"staleness": 10**6})):
        box, x = ModelBox(), torch.nn.Parameter(torch.zeros(2))
        opt = wrapped(kind, x, box, lr=0.1, wire=wire, **settings)
        run(opt, x, 101, gradient=-1 / 3)
        np.testing.assert_allclose(box.attach("run.float32").get(), 101 / 30, rtol=3e-5)
        assert opt.stats().nbytes == 101 * 2 * 2
    opt = wrapped(Downpour, torch.nn.Parameter(torch.zeros(2)), ModelBox(), wire=wire)
    opt.step()  # the answer to a push is the exact center
    assert opt.stats().nbytes == (2 + 4) * 2


@pytest.mark.parametrize("half", HALVES)
def test_a_server_steps_further_than_the_models_dtype_could(half: torch.dtype):
    box, x = ModelBox(), torch.nn.Parameter(torch.ones(2, dtype=half))
    opt = wrapped(ServerDownpour, x, box, lr=1e-4, server="momentum", settings={"momentum": 0})
    run(opt, x, 200, gradient=1.0)
    region = box.attach(f"run.{name_of(half)}")
    np.testing.assert_allclose(region.get(), 0.98, atol=3e-5)
    assert {each.dtype.name for each in box.regions() if "/" in each.name} == {"float32"}
    assert opt.stats().nbytes == 200 * 2 * 2 * 2


@pytest.mark.parametrize("half", HALVES)
def test_an_average_and_a_velocity_keep_small_weights(half: torch.dtype):
    box, x = ModelBox(), torch.nn.Parameter(torch.ones(1, dtype=half))
    opt = wrapped(MVADownpour, x, box, rate=1e-3)
    box.attach(f"run.average.{name_of(half)}").put(np.full(1, 0.9, np.float32))
    run(opt, x, 100)
    average = box.attach(f"run.average.{name_of(half)}").get()
    np.testing.assert_allclose(average, 1 - 0.1 * 0.999**100, rtol=1e-4)

    box, x = ModelBox(), torch.nn.Parameter(torch.zeros(1, dtype=half))
    opt = wrapped(MDownpour, x, box, lr=1.0, momentum=0.9)
    v = c = 0.0
    for _ in range(30):  # up to 215 local steps of 1, which every half has exactly
        run(opt, x, 1, gradient=-1.0)
        v = 0.9 * v + 1.0
        c += v
    np.testing.assert_allclose(box.attach(f"run.{name_of(half)}").get(), c, rtol=2e-3)


@pytest.mark.parametrize("exchange", ["elastic", "seasgd"])
@pytest.mark.parametrize("overlap", [False, True])
def test_ranks_of_a_group_hold_the_same_bits(run_ranks, overlap: bool, exchange: str):
    box, settings = ModelBox(), {"period": 2, "overlap": overlap, "exchange": exchange}

    def work(world) -> bytes:
        torch.manual_seed(1)
        x = torch.nn.Parameter(torch.randn(40, dtype=torch.bfloat16))
        sgd = torch.optim.SGD([x], lr=0.05)
        with HybridSGD(sgd, box, "run", world=world, **settings) as opt:
            for t in range(9):
                opt.zero_grad()
                (x * (world.rank + t + 1) / 10).square().mean().backward()
                opt.step()
        return x.detach().view(torch.int16).numpy().tobytes()

    one, other = run_ranks(2, work)
    assert one == other
    assert box.attach("run.bfloat16").dtype == np.float32


def mixed() -> torch.nn.Module:
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3)).bfloat16()
    model[1].float()
    return model


def test_a_mixed_model_has_two_centers_of_float32_and_resumes_exactly():
    def made(box: ModelBox) -> tuple[torch.nn.Module, EASGD]:
        model = mixed()
        sgd = torch.optim.SGD(model.parameters(), lr=0.05)
        options = {"workers": 1, "period": 1, "moving_rate": RATE, "wire": "float32"}
        return model, EASGD(sgd, box, "run", **options)

    def train(model: torch.nn.Module, opt: EASGD) -> None:
        for t in range(5):
            opt.zero_grad()
            model[1](model[0](torch.ones(2, 3).bfloat16()).float()).sin().sum().backward()
            for name in ("run.bfloat16", "run.float32"):
                region = opt.box.attach(name)
                assert region.dtype == np.float32
                region.accumulate(np.full(region.shape, 1e-4 * t, np.float32))
            opt.step()

    model, opt = made(ModelBox())
    train(model, opt)
    saved = opt.state_dict()
    assert saved["parameters"]["bfloat16"].dtype == torch.float32
    train(model, opt)
    other, rest = made(ModelBox())
    rest.load_state_dict(saved)
    train(other, rest)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
    (centers,), (again,) = opt.state_dict()["centers"], rest.state_dict()["centers"]
    assert all(torch.equal(centers[dtype], again[dtype]) for dtype in centers)


@pytest.mark.parametrize("half", HALVES)
def test_a_worker_that_joins_begins_at_the_center(half: torch.dtype):
    box = ModelBox()
    xs = [torch.full((3,), value, dtype=half) for value in (2.0, 5.0)]
    for x in xs:
        wrapped(EASGD, x, box)
    assert xs[1].tolist() == [2.0] * 3


@pytest.mark.parametrize("half", HALVES)
def test_a_value_that_is_set_is_the_value(half: torch.dtype):
    box, x = ModelBox(), torch.nn.Parameter(torch.full((2,), 100.0, dtype=half))
    opt = wrapped(EASGD, x, box, period=1, moving_rate=RATE)
    box.attach(f"run.{name_of(half)}").put(np.full(2, 100.01, np.float32))
    run(opt, x, 1)
    with torch.no_grad():
        x.fill_(1e-3)  # far below what rounding has left out of 100
    master = opt.state_dict()["parameters"][name_of(half)]
    assert torch.equal(master, x.detach().float())


def test_batch_norm_statistics_have_a_center_of_float32():
    box, model = ModelBox(), torch.nn.BatchNorm1d(2).bfloat16()
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    opt = EASGD(sgd, box, "run", model=model, workers=1, period=1, moving_rate=RATE)
    region = box.attach("run.buffers.bfloat16")
    region.put(np.array([0.01, 0.01, 1.0, 1.0], np.float32))
    for _ in range(150):
        opt.step()
    assert region.dtype == np.float32
    np.testing.assert_allclose(region.get()[:2], 0.005, rtol=0.02)


def test_batch_norm_statistics_are_never_rounded_for_a_wire():
    box, model = ModelBox(), torch.nn.BatchNorm1d(2)
    sgd, options = torch.optim.SGD(model.parameters(), lr=0.0), {"wire": "bfloat16"}
    opt = EASGD(sgd, box, "run", model=model, workers=1, moving_rate=0.5, **options)
    model.running_mean.fill_(1 / 3)
    opt.step()
    half = np.float32(1 / 3) / 2
    assert model.running_mean.tolist() == [half] * 2
    assert box.attach("run.buffers.float32").get()[:2].tolist() == [half] * 2


def test_a_wire_that_the_center_cannot_take_creates_nothing():
    box, x = ModelBox(), torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    with pytest.raises(ConfigError, match="wire"):
        wrapped(EASGD, x, box, wire="bfloat16")
    assert box.regions() == []


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_finish_leaves_the_exact_center_in_the_model(wire: str):
    box, x = ModelBox(), torch.nn.Parameter(torch.full((3,), 1 / 3))
    opt = wrapped(EASGD, x, box, wire=wire, lr=0.1)
    run(opt, x, 3, gradient=1.0)
    opt.finish()
    center = box.attach("run.float32").get()
    assert (center != center.astype(NUMPY[wire]).astype(np.float32)).all()
    np.testing.assert_array_equal(x.detach().numpy(), center)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("overlap", [False, True])
def test_closing_shares_the_rest_of_a_narrow_model(half: torch.dtype, overlap: bool):
    box, x = ModelBox(), torch.nn.Parameter(torch.ones(2, dtype=half))
    opt = wrapped(EASGD, x, box, period=10, moving_rate=0.5, overlap=overlap, lr=0.25)
    run(opt, x, 3, gradient=1.0)
    opt.close()
    assert box.attach(f"run.{name_of(half)}").get().tolist() == [0.625, 0.625]
    assert x.tolist() == [0.625, 0.625]


def test_a_center_too_large_for_a_narrow_model_is_an_error_and_no_infinity():
    box, x = ModelBox(), torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    one = wrapped(EASGD, x, box)
    center = box.attach("run.float16")
    center.put(np.full(2, 1e6, np.float32))
    with pytest.raises(ConfigError, match="too large"):
        run(one, x, 1)
    assert x.tolist() == [1.0, 1.0]
    assert np.isfinite(center.get()).all()
    one.close(exchange=False)

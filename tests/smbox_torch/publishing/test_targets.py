"""What a pull may write to: modules and state dicts of every kind, or nothing at all."""

from __future__ import annotations

import asyncio

import pytest
import torch
from torch import nn

import smbox
from smbox_torch import EASGD, Publisher, Subscriber

pytestmark = pytest.mark.shares

SIZE = 1000


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return {"a": torch.full((SIZE,), 3.0), "b": torch.full((SIZE,), 3.0), "n": torch.tensor(3)}


@pytest.fixture
def published(box, name, state) -> None:
    with Publisher(box, name, state) as publisher:
        publisher.publish()


def values(state) -> list[list[float]]:
    return [tensor.unique().tolist() for tensor in state.values()]


def test_a_module_is_published_and_filled_as_its_wrapped_optimizer_keeps_it(box, name):
    model, target = nn.Linear(3, 2), nn.Linear(3, 2)
    with Publisher(box, name, nn.DataParallel(model).module) as publisher:
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        with EASGD(sgd, box, f"{name}.run", workers=1) as optimizer:
            model(torch.ones(3)).sum().backward()
            optimizer.step()
            publisher.publish()
            Subscriber(box, name).pull(into=target)
            assert torch.equal(target.weight, model.weight)


def test_a_module_takes_values_in_its_own_type(box, name):
    model = nn.Sequential(nn.Linear(300, 400), nn.BatchNorm1d(400))
    model(torch.randn(5, 300))
    with Publisher(box, name, model, dtype=torch.bfloat16) as publisher:
        publisher.publish()
    target = nn.Sequential(nn.Linear(300, 400), nn.BatchNorm1d(400)).double()
    assert Subscriber(box, name).pull(into=target) == 1
    for key, tensor in target.state_dict().items():
        wanted = model.state_dict()[key]
        if wanted.is_floating_point():
            assert tensor.dtype is torch.float64
            wanted = wanted.bfloat16().double()
        assert torch.equal(tensor, wanted)
    assert all(parameter.requires_grad for parameter in target.parameters())


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("is_inside", [False, True])
def test_tensors_of_inference_mode_are_filled(box, name, state, is_inside):
    with torch.inference_mode():
        target = {key: torch.zeros_like(tensor) for key, tensor in state.items()}
    target["b"] = nn.Parameter(torch.zeros(SIZE))
    with torch.inference_mode(is_inside):
        assert asyncio.run(Subscriber(box, name).apull(into=target)) == 1
        assert Subscriber(box, name).pull(into=target) == 1
    assert values(target) == [[3], [3], [3]]
    assert target["b"]._version == 2  # autograd learns of it


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    "change",
    [
        {"b": None},
        {"c": torch.zeros(1)},
        {"b": torch.zeros(SIZE - 1)},
        {"b": torch.zeros(SIZE, dtype=torch.int32)},
        {"n": torch.tensor(0, dtype=torch.int32)},
        {"n": torch.tensor(0.0)},
        {"b": torch.zeros(1).expand(SIZE)},
        {"b": torch.empty(SIZE, device="meta")},
        {"b": torch.zeros(SIZE).to_sparse()},
        {"b": 3},
        {"b": nn.UninitializedParameter()},
    ],
    ids=[
        *("less", "more", "short", "ints", "narrow", "floats", "overlaps", "meta"),
        *("sparse", "no tensor", "lazy"),
    ],
)
def test_a_target_that_does_not_fit_is_left_alone(box, name, state, change):
    target = {key: tensor.clone().fill_(1) for key, tensor in state.items()} | change
    target = {key: tensor for key, tensor in target.items() if tensor is not None}
    with pytest.raises(smbox.LayoutMismatchError):
        Subscriber(box, name).pull(into=target)
    assert target["a"].unique().tolist() == [1]


@pytest.mark.usefixtures("published")
def test_a_target_with_a_tensor_without_memory_is_left_alone(box, name, state, wrapped):
    target = {"a": torch.ones(SIZE), "b": wrapped(torch.ones(SIZE)), "n": torch.tensor(1)}
    with pytest.raises(smbox.LayoutMismatchError) as caught:
        Subscriber(box, name).pull(into=target)
    assert caught.value.facts["entry"] == "b"
    assert target["a"].unique().tolist() == [1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tied_tensor_takes_one_value_from_all_its_names_or_nothing(box, name, dtype):
    source = {"a": torch.ones(SIZE), "b": torch.full((SIZE,), 2.0), "c": torch.ones(1)}
    tied = torch.zeros(SIZE)
    target = {"c": torch.zeros(1), "a": tied, "b": tied.view(SIZE)}
    with Publisher(box, name, source, dtype=dtype) as publisher:
        publisher.publish()
        subscriber = Subscriber(box, name)
        with pytest.raises(smbox.LayoutMismatchError, match="tied") as caught:
            subscriber.pull(into=target)
        assert caught.value.facts["entries"] == ["a", "b"]
        assert values(target) == [[0], [0], [0]]
        assert subscriber.pull(into=target, names=["b", "c"]) == 1
        assert values(target) == [[1], [2], [2]]
        source["b"] = source["a"].clone()  # untied, with the values of tied ones
        publisher.publish()
        assert subscriber.pull(into=target, newer_than=1) == 2
        assert values(target) == [[1], [1], [1]]


def test_tensors_without_elements_are_never_refused_as_tied(box, name):
    source = {"a": torch.ones(0), "b": torch.ones(0, dtype=torch.float16), "c": torch.ones(1)}
    target = {"a": torch.ones(0), "b": torch.ones(0), "c": torch.zeros(1)}
    with Publisher(box, name, source) as publisher:
        publisher.publish()
        assert Subscriber(box, name).pull(into=target) == 1
    assert values(target) == [[], [], [1]]


def test_a_tied_tensor_takes_values_that_are_equal_bit_by_bit(box, name):
    source = {key: torch.tensor([torch.nan, 0.0]) for key in "ab"}
    tied = torch.ones(2)
    target = {"a": tied, "b": tied}
    with Publisher(box, name, source) as publisher:
        publisher.publish()
        assert Subscriber(box, name).pull(into=target) == 1
        assert tied.isnan().tolist() == [True, False]
        source["b"][1] = -0.0
        publisher.publish()
    with pytest.raises(smbox.LayoutMismatchError, match="tied"):
        Subscriber(box, name).pull(into=target)


def test_a_tied_tensor_does_not_take_the_same_bytes_of_two_dtypes(box, name):
    half = torch.ones(SIZE, dtype=torch.float16)
    tied = torch.zeros(SIZE)
    with Publisher(box, name, {"a": half, "b": half.view(torch.bfloat16)}) as publisher:
        publisher.publish()
    with pytest.raises(smbox.LayoutMismatchError, match="tied"):
        Subscriber(box, name).pull(into={"a": tied, "b": tied})
    assert tied.unique().tolist() == [0]


def test_a_target_whose_elements_share_memory_is_refused_and_other_strides_are_filled(
    box, name
):
    numbers = torch.arange(12.0).view(3, 4)
    with Publisher(box, name, {"w": numbers}) as publisher:
        publisher.publish()
    subscriber, windows = Subscriber(box, name), torch.zeros(6)
    with pytest.raises(smbox.LayoutMismatchError):
        subscriber.pull(into={"w": windows.unfold(0, 4, 1)})
    assert windows.tolist() == [0.0] * 6
    for target in (torch.zeros(4, 3).t(), torch.zeros(6, 8)[::2, ::2]):
        subscriber.pull(into={"w": target})
        assert torch.equal(target, numbers)


def test_a_dimension_of_one_element_shares_no_memory(box, name):
    numbers = torch.arange(4.0).view(1, 4)
    with Publisher(box, name, {"w": numbers}) as publisher:
        publisher.publish()
    target = torch.zeros(4)
    Subscriber(box, name).pull(into={"w": target.as_strided((1, 4), (0, 1))})
    assert torch.equal(target, numbers[0])


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("error", [smbox.RequestTimeoutError("silent"), KeyboardInterrupt()])
def test_a_read_that_does_not_end_is_cancelled(box, name, hooked, error):
    """Else it would go on with the requests of other calls."""
    cancelled = []

    class Silent:
        def result(self):
            raise error

        def facts(self):
            return {}

        def cancel(self):
            cancelled.append(self)

    def read(verb, _region):
        return (lambda out: Silent()) if verb == "get_nb" else None

    with pytest.raises(type(error)):
        Subscriber(hooked(box, read), name).pull(timeout_s=0.0)
    assert len(cancelled) == 1


@pytest.mark.usefixtures("published")
def test_a_read_whose_cancel_is_interrupted_does_not_write_to_a_later_pull(
    box, name, state, hooked
):
    """As by the second of two Ctrl-C; the read goes on with the requests of other calls."""
    memories = []

    class Silent:
        def result(self):
            raise smbox.RequestTimeoutError("silent")

        def facts(self):
            return {}

        def cancel(self):
            raise KeyboardInterrupt

    def read(verb, region):
        def start(out):
            memories.append(out)
            return Silent()

        return start if verb == "get_nb" and region.nbytes > SIZE and not memories else None

    subscriber = Subscriber(hooked(box, read), name)
    for is_cut in (False, True, False):
        if is_cut:
            memories.clear()
            with pytest.raises(KeyboardInterrupt):
                subscriber.pull(timeout_s=0.0)
        else:
            memories.append(None)  # reads as usual
            assert subscriber.pull(timeout_s=0.0) == 1
    memories[0].fill_(9)
    assert values(subscriber.state) == values(state)

from __future__ import annotations

import gc
import os
import socket
import uuid

import pytest
import torch
from torch import nn

import smbox
from smbox_torch import Publisher, Subscriber

pytestmark = pytest.mark.shares


@pytest.fixture
def name() -> str:
    """A name that no other test publishes under; with dots."""
    return f"run.{uuid.uuid4().hex}"


def states_equal(found, wanted):
    assert list(found) == list(wanted)
    for key, tensor in wanted.items():
        assert found[key].dtype is tensor.dtype
        assert found[key].shape == tensor.shape
        assert torch.equal(found[key], tensor)


def regions_of(box, name):
    return {info.name for info in box.regions() if info.name.startswith(f"{name}.")}


def pulled(box, name):
    subscriber = Subscriber(box, name)
    return subscriber.pull(timeout_s=0.0), subscriber.state


def test_a_publisher_that_is_collected_has_released_its_name(box, name):
    publisher = Publisher(box, name, {"w": torch.ones(3)})
    publisher.publish()
    del publisher
    gc.collect()
    with Publisher(box, name, {"w": torch.zeros(3)}) as successor:
        assert successor.publish() == 2


def tensors() -> dict[str, torch.Tensor]:
    """A tensor of each kind that is easily forgotten."""
    return {
        "encoder.0.weight": torch.randn(600, 700),  # over a megabyte, written by itself
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 7),
        "empty.too": torch.empty(0),
        "transposed": torch.randn(30, 20).T,
        "transposed.large": torch.randn(800, 700).T,
        "step": torch.tensor(2**62 + 1),
        "mask": torch.tensor([True, False, True]),
        "bytes": torch.arange(256, dtype=torch.uint8),
        "int8": torch.tensor([-128, 127], dtype=torch.int8),
        "int16": torch.tensor([-(2**15)], dtype=torch.int16),
        "int32": torch.tensor([2**31 - 1], dtype=torch.int32),
        "half": torch.randn(5, dtype=torch.float16),
        "bfloat16": torch.randn(5, dtype=torch.bfloat16),
        "double": torch.randn(5, dtype=torch.float64),
        "flipped": torch.randn(4, dtype=torch.complex64).conj().imag,  # a negative view
        "tail": torch.randn(3),
    }


def test_versions_count_from_one_and_hold_every_tensor(box, name):
    state = tensors()
    with Publisher(box, name, state) as publisher:
        for version in range(1, 6):
            state["tail"] += 1
            state["step"] -= 1
            assert publisher.publish() == version
            found, tensors_found = pulled(box, name)
            assert found == version
            states_equal(tensors_found, state)


@pytest.mark.parametrize("times", [1, 1 << 18])
def test_a_dtype_is_that_of_floats_alone(box, name, times):
    state = {"w": torch.tensor([1 / 3, 1e30]).repeat(times), "n": torch.tensor([2**53 + 1])}
    with Publisher(box, name, state, dtype=torch.float16) as publisher:
        publisher.publish()
    _, found = pulled(box, name)
    halves = torch.tensor([1 / 3, torch.inf]).half().repeat(times)
    states_equal(found, {"w": halves, "n": state["n"]})


def test_tied_parameters_travel_once(box, name):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(1000, 100)
            self.head = nn.Linear(100, 1000, bias=False)
            self.head.weight = self.embedding.weight

    model, other = Tied(), Tied()
    with Publisher(box, name, model) as publisher:
        publisher.publish()
    (size,) = (i.nbytes for i in box.regions() if i.name == f"{name}.1.buffer-1")
    assert 400_000 <= size < 500_000
    subscriber = Subscriber(box, name)
    subscriber.pull(into=other)
    assert torch.equal(other.head.weight, model.head.weight)
    assert other.head.weight is other.embedding.weight
    state = subscriber.state
    assert state["head.weight"].data_ptr() == state["embedding.weight"].data_ptr()


@pytest.mark.parametrize("size", [3, 1 << 19])
def test_a_conjugates_imaginary_part_is_not_tied_to_the_numbers(box, name, size):
    """Both are the same memory, of which torch reads one with the other sign."""
    numbers = torch.full((size,), 1 + 2j)
    state = {"imag": numbers.imag, "conjugate": numbers.conj().imag}
    with Publisher(box, name, state) as publisher:
        publisher.publish()
    _, found = pulled(box, name)
    assert [found[key].unique().tolist() for key in state] == [[2.0], [-2.0]]


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_views_of_one_tensor_are_not_tied(box, name, dtype):
    square = torch.arange(9.0).view(3, 3)
    views = {
        "rows": square[:2],
        "all": square,
        "turned": square.T,
        "bits": square.view(torch.int32),
    }
    state = views | {"again": views["rows"], "more": torch.ones(40)}
    with Publisher(box, name, state, dtype=dtype) as publisher:
        publisher.publish()
    _, found = pulled(box, name)
    for key, tensor in state.items():
        assert torch.equal(found[key], tensor), key


def test_a_successor_goes_on_with_the_next_version(box, name):
    first, second = {"w": torch.ones(3)}, {"w": torch.full((3,), 2.0)}
    with Publisher(box, name, first) as publisher:
        assert [publisher.publish(), publisher.publish()] == [1, 2]
    with Publisher(box, name, second, keep=3) as publisher:
        version, state = pulled(box, name)
        assert (version, state["w"].tolist()) == (2, [1.0] * 3)
        assert publisher.publish() == 3
        version, state = pulled(box, name)
        assert (version, state["w"].tolist()) == (3, [2.0] * 3)


def test_a_successor_needs_no_more_memory_than_two_buffers_until_it_publishes(name):
    weights = {"w": torch.ones(4 << 20)}  # 16 MiB
    with smbox.local(memory="48MiB") as box:
        for number in range(4):
            with Publisher(box, name, weights) as publisher:
                assert publisher.publish() == 2 * number + 1
                assert publisher.publish() == 2 * number + 2


def test_a_new_layout_needs_no_more_memory_than_two_buffers(name):
    weights = {"w": torch.ones(4 << 20)}  # 16 MiB
    with smbox.local(memory="48MiB") as box, Publisher(box, name, weights) as publisher:
        assert [publisher.publish(), publisher.publish()] == [1, 2]
        weights["w"] = torch.ones(4, 1 << 20)
        assert [publisher.publish(), publisher.publish()] == [3, 4]


def test_a_model_that_has_changed_is_published_as_it_is(box, name):
    model = nn.Sequential(nn.Linear(2, 3))
    with Publisher(box, name, model) as publisher:
        assert publisher.publish() == 1
        model.append(nn.Linear(3, 4))
        assert publisher.publish() == 2
    subscriber = Subscriber(box, name)
    target = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    assert subscriber.pull(into=target) == 2
    states_equal(target.state_dict(), model.state_dict())


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"lr": 0.1},
        {3: torch.ones(1)},
        {"z": torch.ones(1, dtype=torch.complex64)},
        {"s": torch.eye(3).to_sparse()},
        {"m": torch.empty(3, device="meta")},
        {"l": nn.UninitializedParameter()},
        {"\ud800": torch.ones(1)},
    ],
    ids=["nothing", "a float", "no name", "complex", "sparse", "meta", "lazy", "no text"],
)
def test_what_cannot_travel_is_refused(box, name, source):
    with pytest.raises(smbox.ConfigError):
        Publisher(box, name, source)
    with pytest.raises(smbox.ConfigError):
        Publisher(box, name, {"w": torch.ones(2)} | source, keep=1)
    assert regions_of(box, name) == set()


def test_tensors_without_memory_are_not_taken_for_tied_ones(box, name, wrapped):
    state = {"w": wrapped(torch.ones(3)), "v": wrapped(torch.zeros(3))}
    with pytest.raises(smbox.ConfigError, match="full_tensor") as caught:
        Publisher(box, name, state)
    assert caught.value.facts["entry"] == "w"
    assert regions_of(box, name) == set()


def test_an_entry_that_is_no_tensor_is_refused_by_name_when_it_comes_later(box, name):
    state = {"w": torch.ones(2)}
    with Publisher(box, name, state) as publisher:
        publisher.publish()
        state["extra"] = "words"
        with pytest.raises(smbox.ConfigError, match="extra"):
            publisher.publish()
        del state["extra"]
        assert publisher.publish() == 2


def test_there_is_one_publisher_of_a_name(box, name):
    first = Publisher(box, name, {"w": torch.ones(2)})
    with pytest.raises(smbox.RankTakenError) as caught:
        Publisher(box, name, {"w": torch.ones(2)}, lease_s=0.5)
    assert caught.value.facts["publication"] == name
    holder = socket.gethostname(), os.getpid()
    assert (caught.value.facts["host"], caught.value.facts["pid"]) == holder
    assert first.publish() == 1
    first.close()
    first.close()
    with pytest.raises(smbox.LeaseLostError):
        first.publish()
    with Publisher(box, name, {"w": torch.ones(2)}) as second:
        assert second.publish() == 2


def test_impossible_settings_are_refused(box, name):
    for more in ({"keep": 1}, {"dtype": torch.int32}):
        with pytest.raises(smbox.ConfigError):
            Publisher(box, name, {"w": torch.ones(2)}, **more)
    assert regions_of(box, name) == set()


def test_the_last_version_of_all_is_told(box, name):
    box.counter(f"{name}.newest", init=(1 << 40) + (1 << 40) - 2)
    with Publisher(box, name, {"w": torch.ones(2)}) as publisher:
        assert publisher.publish() == (1 << 40) - 1
        assert pulled(box, name)[0] == (1 << 40) - 1
        with pytest.raises(smbox.LimitError):
            publisher.publish()
        assert pulled(box, name)[0] == (1 << 40) - 1


def test_the_last_term_of_all_is_told(box, name):
    box.counter(f"{name}.terms", init=(1 << 23) - 1)
    with (
        Publisher(box, name, {"w": torch.ones(2)}) as publisher,
        pytest.raises(smbox.LimitError, match="another name") as caught,
    ):
        publisher.publish()
    assert caught.value.facts["term"] == 1 << 23


def test_a_publish_inside_publish_is_refused(box, name):
    """As in a signal handler, which would wait for the call that it interrupts."""

    class Model(nn.Linear):
        def state_dict(self, *args, **kwargs):
            if nested:
                with pytest.raises(smbox.ConfigError, match="set a flag and return"):
                    nested.pop().publish()
            return super().state_dict(*args, **kwargs)

    nested: list[Publisher] = []
    with Publisher(box, name, Model(2, 1)) as publisher:
        nested.append(publisher)
        assert publisher.publish() == 1
        assert publisher.publish() == 2
    assert nested == []


def test_no_room_is_told_and_the_last_version_stays(name):
    with smbox.local(memory="32MiB") as box:
        publisher = Publisher(box, name, {"w": torch.ones(5 << 20)})  # 20 MiB
        assert publisher.publish() == 1
        with pytest.raises(smbox.OutOfMemoryError):
            publisher.publish()
        assert pulled(box, name)[0] == 1
        publisher.close()

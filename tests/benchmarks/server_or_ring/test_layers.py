from __future__ import annotations

from importlib.util import find_spec

import pytest
from server_or_ring.layers import even, layers_of

from smbox_torch.planning import models

pytestmark = pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")


@pytest.mark.parametrize("model", ["alexnet", "resnet50"])
def test_layers_have_all_parameters_and_all_of_the_computation(model: str):
    layers = layers_of(model)
    sizes = sum(size for layer in layers for size in layer.sizes)
    assert sizes == models.count_parameters(model)
    assert sum(layer.share for layer in layers) == pytest.approx(1.0)


def test_alexnet_computes_in_its_convolutions_and_keeps_its_parameters_behind_them():
    convolutions, linear = layers_of("alexnet")[:5], layers_of("alexnet")[5:]
    assert sum(layer.share for layer in convolutions) > 0.9
    assert sum(sum(layer.sizes) for layer in linear) > 0.9 * 61_100_840


def test_even_layers_share_the_computation():
    layers = even(1000)
    assert sum(sum(layer.sizes) for layer in layers) == 1000
    assert sum(layer.share for layer in layers) == 1.0

"""f(xW₁ + b₁)W₂ + b₂ with each f written out over numbers."""

import math
from collections.abc import Callable

import pytest
import torch

from layers.feed_forward import ACTIVATION, Activation, FeedForward

BY_HAND: dict[Activation, Callable[[float], float]] = {
    "relu": lambda x: max(0.0, x),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "mish": lambda x: x * math.tanh(math.log(1 + math.exp(x))),
    "swish": lambda x: x / (1 + math.exp(-x)),
}

activations = pytest.mark.parametrize("name", list(ACTIVATION))


@activations
def test_the_activation_is_its_formula(name: Activation) -> None:
    x = torch.linspace(-6, 6, 97, dtype=torch.float64)
    expected = torch.tensor([BY_HAND[name](number) for number in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(ACTIVATION[name](x), expected, atol=1e-12, rtol=1e-12)


@activations
def test_each_position_goes_alone_through_both_layers(name: Activation) -> None:
    torch.manual_seed(0)
    feed, x = FeedForward(3, 5, name).double(), torch.randn(2, 4, 3, dtype=torch.float64)
    w1, b1, w2, b2 = (parameter.tolist() for parameter in feed.parameters())
    out = feed(x)
    for b, t in torch.cartesian_prod(torch.arange(2), torch.arange(4)).tolist():
        inner = [BY_HAND[name](sum(x[b, t, i].item() * w1[j][i] for i in range(3)) + b1[j]) for j in range(5)]
        outer = [sum(inner[j] * w2[i][j] for j in range(5)) + b2[i] for i in range(3)]
        torch.testing.assert_close(out[b, t], torch.tensor(outer, dtype=torch.float64))


def test_dropout_stands_between_the_activation_and_the_second_layer() -> None:
    torch.manual_seed(0)
    feed, x = FeedForward(4, 4, "gelu", dropout=0.5), torch.randn(2, 8, 4)
    torch.nn.init.eye_(feed.narrow.weight)
    torch.nn.init.ones_(feed.narrow.bias)
    dropped, kept = feed(x) - 1, feed.eval()(x) - 1
    torch.testing.assert_close(dropped, torch.where(dropped == 0, 0, 2 * kept))
    assert 16 < dropped.count_nonzero() < 48

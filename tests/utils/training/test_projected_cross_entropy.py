"""The loss in slices against torch's, which holds all logits at once."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from utils.training import loss as module
from utils.training.loss import projected_cross_entropy


def example(with_bias: bool) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(13, 8), (11, 8), *([(11,)] if with_bias else [])]
    inputs = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    return inputs, torch.randint(11, (13,), generator=generator)


def whole(inputs: list[Tensor], target: Tensor, smoothing: float) -> Tensor:
    logits = F.linear(*inputs).float()
    return F.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing)


def sliced(inputs: list[Tensor], target: Tensor, smoothing: float) -> Tensor:
    hidden, weight, *bias = inputs
    return projected_cross_entropy(hidden, weight, bias[0] if bias else None, target, smoothing)


# a row at a time; three and a rest, in pieces of two and one; all at once
@pytest.mark.parametrize(("in_slice", "in_piece"), [(1, 1), (33, 22), (2**23, 2**23)])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_value_and_gradients_are_those_of_the_whole(
    smoothing: float, with_bias: bool, in_slice: int, in_piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module._SLICE, "cpu", in_slice)
    monkeypatch.setitem(module._PIECE, "cpu", in_piece)
    inputs, target = example(with_bias)
    ours, theirs = 3 * sliced(inputs, target, smoothing), 3 * whole(inputs, target, smoothing)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs))


def test_a_certain_network_has_a_finite_loss() -> None:
    hidden, weight = torch.full((2, 4), 1000.0, requires_grad=True), torch.eye(4, requires_grad=True) * 1000
    hidden = hidden * torch.tensor([1.0, 0, 0, 0])
    nats = projected_cross_entropy(hidden, weight, None, torch.tensor([0, 1]), 0.0)
    assert nats.item() == pytest.approx(1e6)  # nothing for the first, the whole distance for the second


def test_bf16_keeps_the_sums_in_single_precision() -> None:
    inputs, target = example(with_bias=True)
    with torch.autocast("cpu", torch.bfloat16):
        ours = sliced(inputs, target, 0.1)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, whole(inputs, target, 0.1), rtol=1e-2, atol=0)
    low = torch.autograd.grad(ours, inputs)
    high = torch.autograd.grad(whole(inputs, target, 0.1), inputs)
    for a, b in zip(low, high, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() < 0.02 * b.norm()


def test_without_gradients_none_are_made() -> None:
    inputs, target = example(with_bias=True)
    with torch.no_grad():
        nats = sliced(inputs, target, 0.1)
    assert not nats.requires_grad
    torch.testing.assert_close(nats, whole(inputs, target, 0.1))


@pytest.mark.parametrize("in_piece", [11, 2**18])
def test_a_position_that_does_not_count_is_as_if_it_were_not_there(
    in_piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module._PIECE, "cpu", in_piece)
    inputs, target = example(with_bias=True)
    hidden, weight, bias = inputs
    counted = torch.arange(13) % 3 != 0
    ours = projected_cross_entropy(hidden, weight, bias, target, 0.1, counted)
    theirs = sliced([hidden[counted], weight, bias], target[counted], 0.1)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs))

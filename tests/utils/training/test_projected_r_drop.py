"""The loss of R-Drop in slices, and its gradient by hand, against autograd over all logits at once."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from utils.training import loss as module
from utils.training.loss import projected_cross_entropy, projected_r_drop

N, D, V = 7, 5, 11


def example(with_bias: bool = True, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, N, D), (V, D), *([(V,)] if with_bias else [])]
    inputs = [torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True) for shape in shapes]
    return inputs, torch.randint(V, (N,), generator=generator)


def whole(inputs: list[Tensor], target: Tensor, smoothing: float, alpha: float) -> Tensor:
    """½ (CE₁ + CE₂) + α/4 (KL(p₁‖p₂) + KL(p₂‖p₁))."""
    first, second = F.linear(*inputs)
    cross = sum(
        F.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing) for logits in (first, second)
    )
    log_p, log_q = first.log_softmax(-1), second.log_softmax(-1)
    there = F.kl_div(log_q, log_p, reduction="sum", log_target=True)  # torch's KL(p‖q) takes q first
    back = F.kl_div(log_p, log_q, reduction="sum", log_target=True)
    return cross / 2 + alpha / 4 * (there + back)


def sliced(inputs: list[Tensor], target: Tensor, smoothing: float, alpha: float) -> Tensor:
    hidden, weight, *bias = inputs
    return projected_r_drop(hidden, weight, bias[0] if bias else None, target, smoothing, alpha)


# a position at a time; three and a rest, in pieces of two and one; all at once
@pytest.mark.parametrize(("in_slice", "in_piece"), [(1, 1), (6 * V, 4 * V), (2**23, 2**23)])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("smoothing", "alpha"), [(0.0, 1.0), (0.1, 5.0), (0.6, 0.0), (1.0, 0.3)])
def test_value_and_gradients_are_those_of_the_whole(
    smoothing: float, alpha: float, with_bias: bool, in_slice: int, in_piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module._SLICE, "cpu", in_slice)
    monkeypatch.setitem(module._PIECE, "cpu", in_piece)
    inputs, target = example(with_bias)
    ours, theirs = (3 * loss(inputs, target, smoothing, alpha) for loss in (sliced, whole))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs))


def test_the_gradient_is_that_of_finite_differences() -> None:
    inputs, target = example()
    assert torch.autograd.gradcheck(lambda *x: sliced(list(x), target, 0.1, 5.0), inputs)


def test_two_passes_that_agree_cost_what_one_does() -> None:
    (hidden, weight, bias), target = example(dtype=torch.float32)
    once = projected_cross_entropy(hidden[0], weight, bias, target, 0.1)
    twice = projected_r_drop(hidden[:1].expand(2, -1, -1), weight, bias, target, 0.1, 5.0)
    torch.testing.assert_close(twice, once)
    inputs = [hidden, weight, bias]
    torch.testing.assert_close(torch.autograd.grad(twice, inputs), torch.autograd.grad(once, inputs))


def test_which_pass_was_first_does_not_matter() -> None:
    (hidden, *rest), target = example()
    torch.testing.assert_close(
        sliced([hidden.flip(0), *rest], target, 0.1, 5.0), sliced([hidden, *rest], target, 0.1, 5.0)
    )


def test_passes_that_are_certain_of_different_tokens_have_a_finite_loss() -> None:
    hidden = torch.tensor([[[1000.0, 0]], [[0, 1000.0]]], requires_grad=True)
    nats = projected_r_drop(hidden, torch.eye(2), None, torch.tensor([0]), 0.0, 2.0)
    assert nats.item() == pytest.approx(1000 / 2 + 2 / 4 * 2 * 1000)
    (gradient,) = torch.autograd.grad(nats, hidden)
    assert gradient.isfinite().all()


def test_bf16_keeps_the_sums_in_single_precision() -> None:
    inputs, target = example(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours = sliced(inputs, target, 0.1, 5.0)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, whole(inputs, target, 0.1, 5.0), rtol=2e-2, atol=0)
    low = torch.autograd.grad(ours, inputs)
    high = torch.autograd.grad(whole(inputs, target, 0.1, 5.0), inputs)
    for a, b in zip(low, high, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() < 0.03 * b.norm()


def test_without_gradients_none_are_made() -> None:
    inputs, target = example()
    with torch.no_grad():
        nats = sliced(inputs, target, 0.1, 5.0)
    assert not nats.requires_grad
    torch.testing.assert_close(nats, whole(inputs, target, 0.1, 5.0))

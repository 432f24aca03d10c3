"""The quick attention against the formula written out: numbers, gradients, masks, and what is dropped."""

import pytest
import torch
from torch import Tensor

from layers.keys_first_attention import keys_first_attention
from layers.mask import causal_mask
from layers.scaled_dot_product_attention import FusedScaledDotProductAttention, ScaledDotProductAttention

B, H, T, S, K = 3, 2, 5, 7, 4

PADDING = (torch.arange(S) < torch.tensor([[7], [5], [1]]))[:, None, None]
MASKS = {
    "none": None,
    "padding": PADDING,
    "causal": causal_mask(T, S),
    "both": PADDING & causal_mask(T, S),
    "by head": torch.arange(H * S).view(H, 1, S) != 9,
}

masks = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value as a layer splits them off: not contiguous."""
    draw = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(B, n, H, K, generator=draw, dtype=torch.float64).to(dtype).requires_grad_().transpose(1, 2)
        for n in (T, S, S)
    )
    return query, key, value


def with_gradients(mixed: Tensor, wanted: tuple[Tensor, ...]) -> list[Tensor]:
    direction = torch.linspace(-1, 1, mixed.numel()).view(mixed.shape).cos().to(mixed.dtype)
    return [mixed.detach(), *torch.autograd.grad((mixed * direction).sum(), wanted)]


@masks
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_without_dropout_it_is_the_formula(dtype: torch.dtype, mask: Tensor | None) -> None:
    given = inputs(dtype)
    quick = with_gradients(keys_first_attention(*given, mask, 0.0), given)
    formula = with_gradients(ScaledDotProductAttention()(*given, mask)[0], given)
    for a, b in zip(quick, formula, strict=True):
        torch.testing.assert_close(a, b)


@masks
def test_in_half_precision_it_strays_no_further_than_the_formula_does(mask: Tensor | None) -> None:
    given = inputs(torch.bfloat16)
    exact = tuple(x.detach().double().requires_grad_() for x in given)
    truth = with_gradients(ScaledDotProductAttention()(*exact, mask)[0], exact)
    quick = with_gradients(FusedScaledDotProductAttention()(*given, mask)[0], given)
    formula = with_gradients(ScaledDotProductAttention()(*given, mask)[0], given)
    for true, ours, theirs in zip(truth, quick, formula, strict=True):
        assert ours.dtype == torch.bfloat16
        assert (ours - true).norm() < 1.5 * (theirs - true).norm() + 2e-3 * true.norm()


@masks
def test_the_gradient_by_hand_is_that_of_differences(mask: Tensor | None) -> None:
    def forward(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        torch.manual_seed(0)
        return keys_first_attention(query, key, value, mask, 0.25)

    assert torch.autograd.gradcheck(forward, inputs(torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_share_p_of_the_weights_is_dropped_and_the_rest_grows(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    even, eye = torch.zeros(16, 4, 16, 16, dtype=dtype), torch.eye(16, dtype=dtype).expand(16, 4, 16, 16)
    out, again = (keys_first_attention(even, even, eye, None, 0.25) for _ in range(2))
    assert set(out.unique().tolist()) == {0.0, torch.tensor(4 / 3 / 16, dtype=dtype).item()}
    assert (out == 0).double().mean().item() == pytest.approx(0.25, abs=0.02)
    assert not out.equal(again)


def test_what_may_not_be_seen_has_no_weight_however_well_it_fits() -> None:
    query, key = torch.full((1, 1, 1, 4), 30.0), torch.tensor([0.0, 30.0])[None, None, :, None].expand(1, 1, 2, 4)
    seen = torch.tensor([True, False])
    weight = keys_first_attention(query, key, torch.eye(2, 4)[None, None], seen, 0.0)
    assert weight.flatten().tolist() == [1.0, 0.0, 0.0, 0.0]


def name_of_what_runs(given: tuple[Tensor, Tensor, Tensor], attention: torch.nn.Module, bias: Tensor | None) -> str:
    return str(attention(*given, None, bias)[0].grad_fn.name())


def test_the_fused_attention_takes_it_where_a_cpu_learns_in_half_precision() -> None:
    half, single = inputs(torch.bfloat16), inputs(torch.float32)
    fused, formula = FusedScaledDotProductAttention(), ScaledDotProductAttention()
    assert "KeysFirst" in name_of_what_runs(half, fused, None)
    assert "KeysFirst" not in name_of_what_runs(half, formula, None)
    assert "KeysFirst" not in name_of_what_runs(single, fused, None)
    assert "KeysFirst" not in name_of_what_runs(half, fused, torch.zeros(B, H, T, S, dtype=torch.bfloat16))


def test_the_fused_attention_drops_only_in_training() -> None:
    given, fused = inputs(torch.bfloat16), FusedScaledDotProductAttention(0.5)
    assert not fused(*given)[0].equal(fused(*given)[0])
    fused.eval()
    assert fused(*given)[0].equal(fused(*given)[0])

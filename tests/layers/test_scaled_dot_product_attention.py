"""Attention against loops over numbers, against torch's own, and the fused twin against the explicit one.

Where gradients are wanted, and for the few queries of many rows that a step of decoding asks, the fused twin leaves
the kernel alone on a CPU: so it is also called without the ones, and in other shapes.
"""

import math
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layers.mask import causal_mask
from layers.scaled_dot_product_attention import (
    FusedScaledDotProductAttention,
    ScaledDotProductAttention,
    attention_kernel,
)

B, H, T, S, K = 2, 3, 4, 6, 5  # all different: no axis can be taken for another

REAL = torch.tensor([[True, True, True, True, True, True], [True, True, True, False, False, False]])
MASKS = {
    "none": None,
    "padding": REAL[:, None, None, :],
    "causal": causal_mask(T, S),
    "padding & causal": REAL[:, None, None, :] & causal_mask(T, S),
    "per head": torch.arange(B * H * T * S).view(B, H, T, S) % 3 != 1,
}

masked = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
biased = pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
twins = pytest.mark.parametrize("twin", [ScaledDotProductAttention, FusedScaledDotProductAttention])
with_and_without_gradients = pytest.mark.parametrize("gradients", [True, False], ids=["training", "no_grad"])
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


class Inputs(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor


@pytest.fixture
def inputs() -> Inputs:
    draw = torch.Generator().manual_seed(0)
    shapes = (B, H, T, K), (B, H, S, K), (B, H, S, K), (B, H, T, S)
    return Inputs(*(torch.randn(shape, generator=draw, dtype=torch.float64).requires_grad_() for shape in shapes))


def by_hand(inputs: Inputs, mask: Tensor | None, biased: bool) -> tuple[Tensor, Tensor]:
    """Equation 1 over Python numbers."""
    query, key, value, bias = (tensor.tolist() for tensor in inputs)
    allowed = torch.ones(B, H, T, S).bool() if mask is None else mask.expand(B, H, T, S)
    mixed, weights = torch.zeros(B, H, T, K).double(), torch.zeros(B, H, T, S).double()
    for b, h, t in torch.cartesian_prod(torch.arange(B), torch.arange(H), torch.arange(T)).tolist():
        power = [0.0] * S
        for s in range(S):
            if allowed[b, h, t, s]:
                dot = sum(q * k for q, k in zip(query[b][h][t], key[b][h][s], strict=True))
                power[s] = math.exp((dot + biased * bias[b][h][t][s]) / math.sqrt(K))
        for s in range(S):
            weights[b, h, t, s] = power[s] / sum(power)
            for k in range(K):
                mixed[b, h, t, k] += power[s] / sum(power) * value[b][h][s][k]
    return mixed, weights


@masked
@biased
def test_explicit_is_equation_1(inputs: Inputs, mask: Tensor | None, biased: bool) -> None:
    mixed, weights = ScaledDotProductAttention()(*inputs[:3], mask, inputs.bias if biased else None)
    expected_mixed, expected_weights = by_hand(inputs, mask, biased)
    torch.testing.assert_close(mixed, expected_mixed)
    torch.testing.assert_close(weights, expected_weights)


@masked
def test_explicit_is_torchs_own(inputs: Inputs, mask: Tensor | None) -> None:
    mixed, _ = ScaledDotProductAttention()(*inputs[:3], mask)
    torch.testing.assert_close(mixed, F.scaled_dot_product_attention(*inputs[:3], attn_mask=mask))


@masked
@biased
def test_fused_is_explicit_without_gradients(inputs: Inputs, mask: Tensor | None, biased: bool) -> None:
    arguments = *inputs[:3], mask, inputs.bias if biased else None
    with torch.no_grad():
        fused, _ = FusedScaledDotProductAttention()(*arguments)
        explicit, _ = ScaledDotProductAttention()(*arguments)
    torch.testing.assert_close(fused, explicit)


@masked
@biased
@devices
def test_fused_is_explicit_in_values_and_gradients(
    inputs: Inputs, mask: Tensor | None, biased: bool, device: str
) -> None:
    inputs = Inputs(*(tensor.detach().to(device).requires_grad_() for tensor in inputs))
    mask = mask.to(device) if mask is not None else None
    direction = torch.randn(B, H, T, K, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)
    wanted = inputs if biased else inputs[:3]
    explicit, fused = (
        (mixed, *torch.autograd.grad((mixed * direction).sum(), wanted))
        for mixed, _ in (
            twin(*inputs[:3], mask, inputs.bias if biased else None)
            for twin in (ScaledDotProductAttention(), FusedScaledDotProductAttention())
        )
    )
    for ours, theirs in zip(explicit, fused, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("rows", "queries", "device", "gradients", "by_kernel"),
    [
        (9, 8, "cpu", False, False),  # a step of decoding
        (9, 1, "cpu", False, False),
        (8, 8, "cpu", False, True),
        (9, 9, "cpu", False, True),
        (2, 4, "cpu", True, False),
        (9, 9, "cpu", True, False),
        pytest.param(9, 8, "cuda", False, True, marks=pytest.mark.gpu),
        pytest.param(9, 8, "cuda", True, True, marks=pytest.mark.gpu),
    ],
)
@biased
def test_the_kernel_runs_where_it_is_faster_and_agrees_on_both_sides_of_the_rule(
    rows: int,
    queries: int,
    device: str,
    gradients: bool,
    by_kernel: bool,
    biased: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = torch.Generator().manual_seed(0)
    shapes = (rows, H, queries, K), (rows, H, S, K), (rows, H, S, K), (rows, H, queries, S)
    query, key, value, bias = (torch.randn(shape, generator=draw, dtype=torch.float64).to(device) for shape in shapes)
    mask = REAL[1].to(device)
    calls: list[torch.Size] = []
    kernel = F.scaled_dot_product_attention

    def watched(*inputs: Any, **options: Any) -> Tensor:
        calls.append(inputs[0].shape)
        return kernel(*inputs, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    arguments = query, key, value, mask.expand(queries, S), bias if biased else None
    with torch.set_grad_enabled(gradients):
        fused, weights = FusedScaledDotProductAttention()(*arguments)
        explicit, _ = ScaledDotProductAttention()(*arguments)
    assert weights is None
    assert calls == [query.shape] * by_kernel
    torch.testing.assert_close(fused, explicit)


@twins
@with_and_without_gradients
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_masked_key_counts_for_nothing_in_every_precision(
    inputs: Inputs, twin: type[nn.Module], dtype: torch.dtype, gradients: bool
) -> None:
    query, key, value, _ = (tensor.detach().to(dtype) for tensor in inputs)
    mask = REAL[1]
    loud_key, loud_value = (tensor.masked_fill(~mask[:, None], 1000.0) for tensor in (key, value))
    with torch.set_grad_enabled(gradients):
        quiet, _ = twin()(query, key, value, mask.expand(T, S))
        loud, weights = twin()(query, loud_key, loud_value, mask.expand(T, S))
    assert quiet.equal(loud)
    if weights is not None:
        assert weights[..., ~mask].count_nonzero() == 0
        torch.testing.assert_close(weights.float().sum(-1), torch.ones(B, H, T), atol=1e-2, rtol=0)


@twins
@with_and_without_gradients
def test_a_masked_key_counts_for_nothing_however_badly_the_others_fit(
    inputs: Inputs, twin: type[nn.Module], gradients: bool
) -> None:
    query, key, value, _ = (tensor.detach() for tensor in inputs)
    with torch.set_grad_enabled(gradients):
        mixed, _ = twin()(query, key, value, REAL[1].expand(T, S), torch.full((B, H, T, S), -1e30).double())
    expected = value[:, :, REAL[1]].mean(2, keepdim=True).expand(B, H, T, K)  # all fit equally badly
    torch.testing.assert_close(mixed, expected)


@twins
@with_and_without_gradients
def test_dropout_drops_weights_while_training_only(twin: type[nn.Module], gradients: bool) -> None:
    torch.manual_seed(0)
    attention, one = twin(0.5), torch.ones(1, 1, 64, 1)
    with torch.set_grad_enabled(gradients):
        dropped, _ = attention(one, one[:, :, :1], one[:, :, :1])  # one key: a weight of 1, kept doubled or dropped
        kept, _ = attention.eval()(one, one[:, :, :1], one[:, :, :1])
    assert set(dropped.flatten().tolist()) == {0.0, 2.0}
    assert kept.equal(one)


def test_weights_are_shown_as_they_were_before_dropout(inputs: Inputs) -> None:
    _, dropped = ScaledDotProductAttention(0.9)(*inputs[:3])
    _, kept = ScaledDotProductAttention()(*inputs[:3])
    assert dropped.equal(kept)


@pytest.mark.parametrize("fused", [False, True])
@with_and_without_gradients
def test_the_kernel_asked_for_is_the_one_given(fused: bool, gradients: bool) -> None:
    torch.manual_seed(0)
    one = torch.ones(1, 1, 64, 1)
    with torch.set_grad_enabled(gradients):
        mixed, weights = attention_kernel(fused, 0.5)(one, one[:, :, :1], one[:, :, :1])
    assert (weights is None) == fused
    assert set(mixed.flatten().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("n_keys", [1, 15, 16, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_shorter_and_longer_than_a_processors_vector_are_torchs_own(n_keys: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, 2, n, 3, generator=draw, dtype=dtype).requires_grad_() for n in (4, n_keys, n_keys)
    )
    mask = torch.arange(n_keys) < n_keys - n_keys // 4
    mixed, weights = ScaledDotProductAttention()(query, key, value, mask)
    expected = F.scaled_dot_product_attention(query, key, value, mask.expand(4, -1))
    torch.testing.assert_close(mixed, expected)
    assert weights.shape == (2, 2, 4, n_keys)
    for a, b in zip(
        *(torch.autograd.grad(out.cos().sum(), (query, key, value)) for out in (mixed, expected)), strict=True
    ):
        torch.testing.assert_close(a, b)

"""RelativePositionBias against the paper's equation, one pair of a query and a key at a time."""

import math

import pytest
import torch
from torch import Tensor, nn

from layers.mask import causal_mask
from layers.multi_head_attention import MultiHeadAttention
from layers.packed import packed
from layers.relative_position_bias import RelativePositionBias
from layers.scaled_dot_product_attention import attention_kernel

B, H, D = 3, 2, 8
K = D // H

# queries and keys: alone, without a memory, with one, a step behind one, and more heads than places
lengths = pytest.mark.parametrize(("t_len", "s_len"), [(1, 1), (5, 5), (3, 7), (1, 6), (4, 5), (2, 2)])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def lively() -> RelativePositionBias:
    u, v = (nn.Parameter(torch.empty(H, K)) for _ in range(2))
    bias = RelativePositionBias(D, H, u, v).double()
    for parameter in bias.parameters():
        nn.init.normal_(parameter)
    return bias


def sinusoid_of(distance: int) -> Tensor:
    angles = [distance / 10000 ** (2 * (i // 2) / D) for i in range(D)]
    return torch.tensor([math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(angles)], dtype=torch.float64)


def pair_by_pair(bias: RelativePositionBias, query: Tensor, key: Tensor) -> Tensor:
    """uᵀ k_j + (q_i + v)ᵀ W_{k,R} R_{i-j} for every key up to the query's own position; 0 after it."""
    rows, heads, t_len, s_len = *query.shape[:3], key.size(2)
    scores = torch.zeros(rows, heads, t_len, s_len, dtype=torch.float64)
    for row in range(rows):
        for head in range(heads):
            for t in range(t_len):
                i = s_len - t_len + t
                for j in range(i + 1):
                    distance_key = bias.distance_key.weight[head * K : (head + 1) * K] @ sinusoid_of(i - j)
                    q, k = query[row, head, t], key[row, head, j]
                    scores[row, head, t, j] = bias.u[head] @ k + (q + bias.v[head]) @ distance_key
    return scores


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@lengths
def test_it_is_the_equation_in_values_and_gradients(t_len: int, s_len: int) -> None:
    bias, query, key = lively(), noise(B, H, t_len, K), noise(B, H, s_len, K)
    fast, slow = bias(query, key) * causal_mask(t_len, s_len), pair_by_pair(bias, query, key)
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=0)
    wanted = query, key, *bias.parameters()
    direction = torch.randn_like(fast)
    ours, theirs = (torch.autograd.grad((x * direction).sum(), wanted, allow_unused=True) for x in (fast, slow))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=0)


@lengths
@pytest.mark.parametrize("fused", [False, True], ids=["explicit", "fused"])
@pytest.mark.parametrize("learning", [False, True], ids=["inference", "learning"])
def test_inside_an_attention_scores_are_the_papers(t_len: int, s_len: int, fused: bool, learning: bool) -> None:
    attention = MultiHeadAttention(D, H, attention_kernel(fused, 0.0), lively()).double()
    x, memory = noise(B, t_len, D), noise(B, s_len, D)
    query = attention.query(x).unflatten(-1, (H, K)).transpose(1, 2)
    key, value = attention.project(memory)
    assert isinstance(attention.score_bias, RelativePositionBias)
    scores = query @ key.transpose(-2, -1) + pair_by_pair(attention.score_bias, query, key)
    scores = (scores / math.sqrt(K)).masked_fill(~causal_mask(t_len, s_len), -math.inf)
    expected = attention.output((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
    with torch.set_grad_enabled(learning):  # two kernels, where fused
        found = attention(x, memory, causal_mask(t_len, s_len))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_what_lies_in_the_future_is_a_number() -> None:
    assert lively()(noise(B, H, 6, K), noise(B, H, 9, K)).isfinite().all()


@pytest.mark.parametrize("order", [(2, 4, 8, 17, 5, 64), (64, 2)])
def test_the_table_of_distances_grows_and_stays_the_sinusoid(order: tuple[int, ...]) -> None:
    bias = lively()
    for s_len in order:
        query, key = noise(1, H, 1, K), noise(1, H, s_len, K)
        torch.testing.assert_close(bias(query, key), pair_by_pair(bias, query, key), atol=1e-5, rtol=0)
        assert len(bias.table) > s_len
    assert not any("table" in name for name in bias.state_dict())


def test_a_table_made_while_inferring_serves_training_too() -> None:
    bias = lively()
    with torch.inference_mode():
        bias(torch.randn(1, H, 1, K).double(), torch.randn(1, H, 9, K).double())
    bias(noise(1, H, 2, K), noise(1, H, 4, K)).sum().backward()
    assert bias.distance_key.weight.grad is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_computes_in_the_precision_of_query_and_key(dtype: torch.dtype) -> None:
    bias, query, key = lively(), noise(B, H, 4, K), noise(B, H, 9, K)
    expected = pair_by_pair(bias, query, key)
    for lower in (packed(bias.float(), dtype), bias.to(dtype)):  # u and v in single precision, or like the rest
        near = lower(query.to(dtype), key.to(dtype))
        assert near.dtype == dtype
        torch.testing.assert_close(near.double() * causal_mask(4, 9), expected, atol=0.3, rtol=0.05)

"""Attention against loops over numbers and torch's own: the formula, its fused twin, heads, masks, positions."""

import math
from typing import NamedTuple
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from layers.mask import causal_mask, padding_mask
from layers.multi_head_attention import MultiHeadAttention
from layers.packed import packed
from layers.probe import recorded_weights, silenced_head
from layers.relative_position_bias import RelativePositionBias
from layers.rotary_embedding import RotaryEmbedding
from layers.scaled_dot_product_attention import (
    FusedScaledDotProductAttention,
    ScaledDotProductAttention,
    attention_kernel,
)
from tests.tiny import assert_twin, attention_state, drawn
from utils.device import pick_device


@pytest.mark.parametrize("pad_id", range(5))
def test_only_real_tokens_are_attended_to(pad_id: int) -> None:
    ids = torch.arange(24).view(4, 6) % 5
    assert padding_mask(ids, pad_id)[:, 0, 0].tolist() == [[token != pad_id for token in row] for row in ids.tolist()]


@settings(max_examples=30)
@given(t_len=st.integers(1, 6), memory=st.integers(0, 6))
def test_each_query_sees_the_keys_up_to_its_own_place(t_len: int, memory: int) -> None:
    mask = causal_mask(t_len, memory + t_len)
    assert mask.tolist() == [[s <= memory + t for s in range(memory + t_len)] for t in range(t_len)]


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
both_kernels = pytest.mark.parametrize("twin", [ScaledDotProductAttention, FusedScaledDotProductAttention])
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
@biased
@devices
def test_fused_is_explicit_in_values_and_gradients(
    inputs: Inputs, mask: Tensor | None, biased: bool, device: str
) -> None:
    inputs = Inputs(*(tensor.detach().to(device).requires_grad_() for tensor in inputs))
    mask = mask.to(device) if mask is not None else None
    arguments = *inputs[:3], mask, inputs.bias if biased else None
    expected, _ = ScaledDotProductAttention()(*arguments)
    assert_twin(lambda: FusedScaledDotProductAttention()(*arguments)[0], expected, *(inputs if biased else inputs[:3]))


@pytest.mark.gpu
@pytest.mark.parametrize("length", [63, 64, 65])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["none", "padding", "causal"])
def test_kernels_of_a_gpu_are_explicit_in_half_precision(length: int, dtype: torch.dtype, name: str) -> None:
    """As pick_device leaves them; at lengths where each of them has rounded up, or read beyond the end."""
    device = pick_device("cuda")
    draw = torch.Generator().manual_seed(0)
    query, key, value, direction = (torch.randn(3, 5, length, 64, generator=draw).to(device, dtype) for _ in range(4))
    positions = torch.arange(length, device=device)
    mask = {
        "none": None,
        "padding": (positions < torch.tensor([[length], [40], [1]], device=device))[:, None, None],
        "causal": causal_mask(length, length, device),
    }[name]

    def results(attention: nn.Module, dtype: torch.dtype) -> tuple[Tensor, ...]:
        inputs = [tensor.to(dtype).requires_grad_() for tensor in (query, key, value)]
        mixed, _ = attention(*inputs, mask)
        return mixed, *torch.autograd.grad((mixed * direction.to(dtype)).sum(), inputs)

    fused, explicit = FusedScaledDotProductAttention(), ScaledDotProductAttention()
    for ours, theirs in zip(results(fused, dtype), results(explicit, torch.float), strict=True):
        torch.testing.assert_close(ours.float(), theirs, atol=0.05, rtol=0.02)


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
    kernel = Mock(wraps=F.scaled_dot_product_attention)
    monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
    arguments = query, key, value, mask.expand(queries, S), bias if biased else None
    with torch.set_grad_enabled(gradients):
        fused, weights = FusedScaledDotProductAttention()(*arguments)
        explicit, _ = ScaledDotProductAttention()(*arguments)
    assert weights is None
    assert kernel.called is by_kernel
    torch.testing.assert_close(fused, explicit)


@both_kernels
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


@both_kernels
@with_and_without_gradients
def test_a_masked_key_counts_for_nothing_however_badly_the_others_fit(
    inputs: Inputs, twin: type[nn.Module], gradients: bool
) -> None:
    query, key, value, _ = (tensor.detach() for tensor in inputs)
    with torch.set_grad_enabled(gradients):
        mixed, _ = twin()(query, key, value, REAL[1].expand(T, S), torch.full((B, H, T, S), -1e30).double())
    expected = value[:, :, REAL[1]].mean(2, keepdim=True).expand(B, H, T, K)  # all fit equally badly
    torch.testing.assert_close(mixed, expected)


@both_kernels
@with_and_without_gradients
def test_dropout_drops_weights_while_training_only(twin: type[nn.Module], gradients: bool) -> None:
    torch.manual_seed(0)
    attention, ones = twin(0.5), torch.ones(1, 1, 64, 1)
    with torch.set_grad_enabled(gradients):
        dropped, _ = attention(ones, ones[:, :, :1], ones[:, :, :1])  # one key: a weight of 1, kept doubled or dropped
        kept, _ = attention.eval()(ones, ones[:, :, :1], ones[:, :, :1])
    assert set(dropped.flatten().tolist()) == {0.0, 2.0}
    assert kept.equal(ones)


D = H * K

IDS = torch.tensor([[4, 5, 6, 7, 8, 9], [4, 5, 6, 0, 0, 0]])

kernels = pytest.mark.parametrize("fused", [False, True], ids=["explicit", "fused"])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def twins(fused: bool) -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    """Ours and torch's with the same weights, in float64."""
    theirs = drawn(nn.MultiheadAttention(D, H, batch_first=True).double(), 1)
    ours = MultiHeadAttention(D, H, attention_kernel(fused, 0.0)).double()
    ours.load_state_dict(attention_state(theirs))
    return ours, theirs


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@kernels
@pytest.mark.parametrize("padding", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["free", "causal"])
@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
def test_heads_are_torchs_own(fused: bool, padding: bool, causal: bool, cross: bool) -> None:
    ours, theirs = twins(fused)
    memory = noise(B, S, D)
    x = noise(B, T, D) if cross else memory
    t_len = x.size(1)
    mask = torch.ones(t_len, S).bool()
    if padding:
        mask = mask & padding_mask(IDS, 0)
    if causal:
        mask = mask & causal_mask(t_len, S)
    asked = x, memory, mask if padding or causal else None
    expected, _ = theirs(
        x,
        memory,
        memory,
        key_padding_mask=IDS == 0 if padding else None,
        attn_mask=~causal_mask(t_len, S) if causal else None,
    )
    assert_twin(lambda: ours(*asked), expected, *((x, memory) if cross else (x,)))


def test_widths_that_do_not_split_are_refused_with_their_numbers() -> None:
    with pytest.raises(ValueError, match=r"d_model=10 .*n_heads=4"):
        MultiHeadAttention(10, 4)
    with pytest.raises(ValueError, match="5 components"):
        RotaryEmbedding(5, 8)


def test_rotary_positions_are_the_matrix_of_the_paper() -> None:
    """Su et al. 2021, eq. 15: a rotation of each pair of components, written out."""
    x, width = torch.randn(1, 1, 5, 6, dtype=torch.float64), 6
    turned = RotaryEmbedding(width, 5)(x, start=0)
    for m in range(5):
        matrix = torch.zeros(width, width, dtype=torch.float64)
        for j in range(width // 2):
            angle = m * 10000 ** (-2 * j / width)
            matrix[2 * j : 2 * j + 2, 2 * j : 2 * j + 2] = torch.tensor(
                [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
            )
        torch.testing.assert_close(turned[0, 0, m], matrix @ x[0, 0, m], atol=1e-6, rtol=1e-6)


def test_a_start_is_a_slice_of_the_whole_also_past_the_table() -> None:
    rotary, x = RotaryEmbedding(4, 3), torch.randn(2, 3, 7, 4)
    torch.testing.assert_close(rotary(x[:, :, 5:], start=5), rotary(x)[:, :, 5:])


def test_half_precision_stays_half_and_the_gradient_is_turned_back() -> None:
    rotary = RotaryEmbedding(4, 8)
    assert rotary(torch.randn(1, 1, 8, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
    x = torch.randn(1, 1, 8, 4, requires_grad=True)
    y = rotary(x)
    (gradient,) = torch.autograd.grad(y, x, y.detach())  # a rotation's transpose is its inverse
    torch.testing.assert_close(gradient, x)


# queries and keys: alone, without a memory, with one, a step behind one, and more heads than places
lengths = pytest.mark.parametrize(("t_len", "s_len"), [(1, 1), (5, 5), (3, 7), (1, 6), (4, 5), (2, 2)])


def lively_bias() -> RelativePositionBias:
    u, v = (nn.Parameter(torch.empty(H, K)) for _ in range(2))
    return drawn(RelativePositionBias(D, H, u, v).double(), 1)


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


@lengths
def test_relative_positions_are_the_equation_in_values_and_gradients(t_len: int, s_len: int) -> None:
    bias, query, key = lively_bias(), noise(B, H, t_len, K), noise(B, H, s_len, K)
    fast, slow = bias(query, key) * causal_mask(t_len, s_len), pair_by_pair(bias, query, key)
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=0)
    wanted = query, key, *bias.parameters()
    direction = torch.randn_like(fast)
    ours, theirs = (torch.autograd.grad((x * direction).sum(), wanted, allow_unused=True) for x in (fast, slow))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=0)


@pytest.mark.parametrize("order", [(2, 4, 8, 17, 5, 64), (64, 2)])
def test_the_table_of_distances_grows_and_stays_the_sinusoid(order: tuple[int, ...]) -> None:
    bias = lively_bias()
    for s_len in order:
        query, key = noise(1, H, 1, K), noise(1, H, s_len, K)
        torch.testing.assert_close(bias(query, key), pair_by_pair(bias, query, key), atol=1e-5, rtol=0)
        assert len(bias.table) > s_len
    assert not any("table" in name for name in bias.state_dict())


def test_a_table_made_while_inferring_serves_training_too() -> None:
    bias = lively_bias()
    with torch.inference_mode():
        bias(torch.randn(1, H, 1, K).double(), torch.randn(1, H, 9, K).double())
    bias(noise(1, H, 2, K), noise(1, H, 4, K)).sum().backward()
    assert bias.distance_key.weight.grad is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_bias_has_the_precision_of_query_and_key(dtype: torch.dtype) -> None:
    bias, query, key = lively_bias(), noise(B, H, 4, K), noise(B, H, 9, K)
    expected = pair_by_pair(bias, query, key)
    for lower in (packed(bias.float(), dtype), bias.to(dtype)):  # u and v in single precision, or like the rest
        near = lower(query.to(dtype), key.to(dtype))
        assert near.dtype == dtype
        torch.testing.assert_close(near.double() * causal_mask(4, 9), expected, atol=0.3, rtol=0.05)


def recorded_attention(seed: int, fused: bool = False) -> MultiHeadAttention:
    torch.manual_seed(seed)
    return MultiHeadAttention(8, 2, attention_kernel(fused, 0.0))


def some(seed: int, length: int) -> Tensor:
    return torch.randn(3, length, 8, generator=torch.Generator().manual_seed(seed))


def test_the_weights_of_each_call_are_kept_in_the_order_of_the_calls() -> None:
    first, second, other = (recorded_attention(seed) for seed in range(3))
    calls = [(second, some(0, 3)), (other, some(1, 4)), (first, some(2, 5)), (second, some(3, 6))]
    with recorded_weights([first, second]) as weights:
        for module, queries in calls:
            module(queries, some(4, 7))
    assert [tuple(weight.shape) for weight in weights] == [(3, 2, 3, 7), (3, 2, 5, 7), (3, 2, 6, 7)]
    for weight, (module, queries) in zip(weights, [calls[0], calls[2], calls[3]], strict=True):
        kv = module.project(some(4, 7))
        query = module.query(queries).unflatten(-1, (2, 4)).transpose(1, 2)
        torch.testing.assert_close(weight, (query @ kv.key.transpose(-2, -1) / 2).softmax(-1))


@pytest.mark.parametrize("fused", [False, True])
@torch.no_grad()
def test_weights_are_those_of_the_explicit_kernel_and_the_attention_is_as_it_was_afterwards(fused: bool) -> None:
    """Even when the block fails."""
    module, explicit = recorded_attention(0, fused).eval(), recorded_attention(0).eval()
    x, mask, modules = some(1, 5), causal_mask(5, 5), dict(module.named_modules())
    plain = module(x, x, mask)
    with recorded_weights([module]) as weights:
        torch.testing.assert_close(module(x, x, mask), plain)
    with pytest.raises(ZeroDivisionError), recorded_weights([module]):
        raise ZeroDivisionError
    assert dict(module.named_modules()) == modules
    module(x, x, mask)
    with recorded_weights([explicit]) as expected:
        explicit(x, x, mask)
    assert len(weights) == 1
    assert weights[0].equal(expected[0])


def test_an_explicit_kernel_is_taken_as_it_is_and_a_fused_one_refused() -> None:
    module = recorded_attention(0)
    with recorded_weights([module.attention]) as weights:
        module(some(0, 3), some(1, 3))
    assert len(weights) == 1
    fused = recorded_attention(0, fused=True)
    message = r"^the fused attention has no weights to show: give the multi-head attention around it$"
    with pytest.raises(ValueError, match=message), recorded_weights([module, fused.attention]):
        pass


X = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
MEMORY = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(1))


def without(module: MultiHeadAttention, head: int) -> Tensor:
    """The sum of what the other heads add to the output, head by head: Michel et al.'s formula, ξ_h = 0."""
    kv = module.project(MEMORY)
    query = module.query(X).unflatten(-1, (3, 4)).transpose(1, 2)
    total = module.output.bias.expand(2, 5, 12)
    for other in range(3):
        if other != head:
            weights = (query[:, other] @ kv.key[:, other].transpose(-2, -1) / 2).softmax(-1)
            total = total + weights @ kv.value[:, other] @ module.output.weight[:, 4 * other : 4 * other + 4].T
    return total


@pytest.mark.parametrize("form", ["explicit", "fused", "packed"])
@torch.no_grad()
def test_the_other_heads_are_all_that_the_output_knows(form: str) -> None:
    """One head or several fall silent, beside what records them."""
    original = MultiHeadAttention(12, 3, attention_kernel(form == "fused", 0.0)).eval()
    module = packed(original, torch.float32) if form == "packed" else original
    for head in range(3):
        with silenced_head(module, head), recorded_weights([module]) as weights:
            torch.testing.assert_close(module(X, MEMORY), without(original, head), atol=1e-5, rtol=1e-4)
        assert weights[0].shape == (2, 3, 5, 7)
    with silenced_head(module, 0), silenced_head(module, 1):
        expected = without(original, 0) + without(original, 1) - without(original, -1)
        torch.testing.assert_close(module(X, MEMORY), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(module(X, MEMORY), without(original, -1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("head", [-1, 3])
def test_a_head_that_is_not_there_is_refused(head: int) -> None:
    message = rf"^head={head} of an attention with n_heads=3: give 0 to 2$"
    with pytest.raises(ValueError, match=message), silenced_head(MultiHeadAttention(12, 3), head):
        pass

"""MultiHeadAttention against `nn.MultiheadAttention`, whose masks are True where one may NOT attend."""

import pytest
import torch
from torch import Tensor, nn

from layers.mask import causal_mask, padding_mask
from layers.multi_head_attention import KeyValue, MultiHeadAttention
from layers.scaled_dot_product_attention import attention_kernel
from tests.oracle import attention_state

B, T, S, D, H = 3, 4, 6, 8, 2

IDS = torch.tensor([[4, 5, 6, 7, 8, 9], [4, 5, 6, 0, 0, 0], [4, 0, 0, 0, 0, 0]])

kernels = pytest.mark.parametrize("fused", [False, True], ids=["explicit", "fused"])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def twins(fused: bool) -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    """Ours and torch's with the same weights, in float64."""
    theirs = nn.MultiheadAttention(D, H, batch_first=True).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours = MultiHeadAttention(D, H, attention_kernel(fused, 0.0)).double()
    ours.load_state_dict(attention_state(theirs))
    return ours, theirs


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@kernels
@pytest.mark.parametrize("padding", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["free", "causal"])
@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
def test_it_is_torchs_own(fused: bool, padding: bool, causal: bool, cross: bool) -> None:
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
    a = ours(*asked)
    b, _ = theirs(
        x,
        memory,
        memory,
        key_padding_mask=IDS == 0 if padding else None,
        attn_mask=~causal_mask(t_len, S) if causal else None,
    )
    torch.testing.assert_close(a, b)
    with torch.no_grad():  # another kernel, where fused
        torch.testing.assert_close(ours(*asked), b)
    direction = torch.randn_like(a)
    wanted = (x, memory) if cross else (x,)
    for mine, other in zip(
        torch.autograd.grad((a * direction).sum(), wanted),
        torch.autograd.grad((b * direction).sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)


@kernels
@torch.no_grad()
def test_a_sentence_is_the_same_alone_where_batch_and_heads_and_lengths_are_equal(fused: bool) -> None:
    attention = MultiHeadAttention(9, 3, attention_kernel(fused, 0.0))
    x = torch.randn(3, 3, 9)
    mask = padding_mask(torch.tensor([[4, 5, 6], [4, 5, 0], [4, 0, 0]]), 0)
    together = attention(x, x, mask)
    for row in range(3):
        real = 3 - row
        alone = attention(x[row : row + 1], x[row : row + 1, :real])
        torch.testing.assert_close(together[row : row + 1], alone)


@kernels
def test_no_gradient_comes_from_the_future(fused: bool) -> None:
    attention = MultiHeadAttention(D, H, attention_kernel(fused, 0.0))
    x = torch.randn(1, T, D)

    def forward(x: Tensor) -> Tensor:
        return attention(x, x, causal_mask(T, T))[0].sum(-1)

    flows = torch.autograd.functional.jacobian(forward, x)[:, 0].abs().sum(-1) > 0
    assert flows.equal(causal_mask(T, T))


@kernels
def test_the_gradient_reaches_every_weight_through_masks(fused: bool) -> None:
    attention, _ = twins(fused)
    x, memory = noise(B, T, D), noise(B, S, D)
    attention(x, memory, padding_mask(IDS, 0)).square().sum().backward()
    for name, parameter in attention.named_parameters():
        assert parameter.grad is not None, name
        for half, gradient in zip(("key", "value"), parameter.grad.chunk(2), strict=True):
            if (name, half) == ("key_value.bias", "key"):  # adds q·b to all scores of a query: softmax forgets it
                torch.testing.assert_close(gradient, torch.zeros_like(gradient))
            else:
                assert gradient.abs().max() > 1e-3, (name, half)


class Slope(nn.Module):
    """A bias that depends on query, key and how far apart they stand."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        apart = torch.arange(key.size(2)) - torch.arange(query.size(2))[:, None]
        return apart * query.sum(-1)[..., :, None] * key.mean(-1)[..., None, :]


@kernels
def test_the_score_bias_is_added_before_scaling(fused: bool) -> None:
    attention = MultiHeadAttention(D, H, attention_kernel(fused, 0.0), score_bias=Slope()).double()
    x, memory = noise(B, T, D), noise(B, S, D)
    query = torch.einsum("btd,hkd->bhtk", x, attention.query.weight.view(H, D // H, D))
    query = query + attention.query.bias.view(H, 1, -1)
    key, value = attention.project(memory)
    scores = (torch.einsum("bhtk,bhsk->bhts", query, key) + Slope()(query, key)) / (D // H) ** 0.5
    heads = torch.einsum("bhts,bhsk->bthk", scores.softmax(-1), value)
    expected = attention.output(heads.reshape(B, T, D))
    torch.testing.assert_close(attention(x, memory), expected)
    with torch.no_grad():
        torch.testing.assert_close(attention(x, memory), expected)


@kernels
@torch.no_grad()
def test_keys_and_values_that_grow_by_a_token_are_those_of_the_whole(fused: bool) -> None:
    attention, _ = twins(fused)
    x = noise(B, T, D)
    whole = attention(x, x, causal_mask(T, T))
    past = attention.project(x[:, :0])
    for t in range(T):
        past = past.append(attention.project(x[:, t : t + 1]))
        torch.testing.assert_close(attention.attend(x[:, t : t + 1], past), whole[:, t : t + 1])


def gradients_under(precision: torch.dtype, attention: MultiHeadAttention, x: Tensor, memory: Tensor) -> list[Tensor]:
    wanted = [x, *attention.parameters()]
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        out = attention(x, memory)
    return [out.detach(), *torch.autograd.grad(out.float().sin().sum(), wanted)]


@kernels
def test_looking_at_itself_under_autocast_costs_no_precision(fused: bool) -> None:
    attention = MultiHeadAttention(D, H, attention_kernel(fused, 0.0))
    x = torch.randn(B, S, D, requires_grad=True)
    exact = gradients_under(torch.float32, attention, x, x)
    own = gradients_under(torch.bfloat16, attention, x, x)
    apart = gradients_under(torch.bfloat16, attention, x, x + 0.0)  # two tensors, lowered one by one
    for true, ours, theirs in zip(exact, own, apart, strict=True):
        assert ours.dtype == theirs.dtype
        assert (ours - true).norm() < 1.5 * (theirs - true).norm() + 5e-3 * true.norm()


def test_looking_at_itself_lowers_its_input_once_and_never_what_is_exact() -> None:
    attention, x = MultiHeadAttention(D, H), torch.randn(B, S, D)
    seen: list[Tensor] = []
    for product in (attention.query, attention.key_value):
        product.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.autocast("cpu", torch.bfloat16):
        attention(x, x)
        assert attention.double()(x.double(), x.double()).dtype == torch.float64
    assert seen[0].dtype == torch.bfloat16
    assert seen[0] is seen[1]


def test_rows_are_taken_in_the_order_asked_for_and_more_than_once() -> None:
    kv = KeyValue(torch.randn(3, H, S, 4), torch.randn(3, H, S, 4))
    chosen = kv.select(torch.tensor([2, 0, 2, 1]))
    for at, row in enumerate([2, 0, 2, 1]):
        assert chosen.key[at].equal(kv.key[row])
        assert chosen.value[at].equal(kv.value[row])


def test_keys_and_values_laid_out_head_by_head_are_the_same() -> None:
    attention, _ = twins(fused=False)
    views = attention.project(noise(B, S, D))
    own = views.contiguous()
    for before, after in zip(views, own, strict=True):
        assert not before.is_contiguous()
        assert after.is_contiguous()
        assert after.equal(before)


def test_heads_that_do_not_divide_the_width_are_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"d_model=10 .*n_heads=4"):
        MultiHeadAttention(10, 4)

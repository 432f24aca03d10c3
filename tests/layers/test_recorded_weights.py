import pytest
import torch
from torch import Tensor

from layers.mask import causal_mask
from layers.multi_head_attention import MultiHeadAttention
from layers.probe import recorded_weights
from layers.scaled_dot_product_attention import FusedScaledDotProductAttention, ScaledDotProductAttention


def attention(seed: int, fused: bool = False, dropout: float = 0.0) -> MultiHeadAttention:
    torch.manual_seed(seed)
    kernel = FusedScaledDotProductAttention(dropout) if fused else ScaledDotProductAttention(dropout)
    return MultiHeadAttention(8, 2, kernel)


def x(seed: int, length: int) -> Tensor:
    return torch.randn(3, length, 8, generator=torch.Generator().manual_seed(seed))


def test_the_weights_of_each_call_are_kept_in_the_order_of_the_calls() -> None:
    first, second, other = (attention(seed) for seed in range(3))
    calls = [(second, x(0, 3)), (other, x(1, 4)), (first, x(2, 5)), (second, x(3, 6))]
    with recorded_weights([first, second]) as weights:
        for module, queries in calls:
            module(queries, x(4, 7))
    assert [tuple(weight.shape) for weight in weights] == [(3, 2, 3, 7), (3, 2, 5, 7), (3, 2, 6, 7)]
    for weight, (module, queries) in zip(weights, [calls[0], calls[2], calls[3]], strict=True):
        kv = module.project(x(4, 7))
        query = module.query(queries).unflatten(-1, (2, 4)).transpose(1, 2)
        torch.testing.assert_close(weight, (query @ kv.key.transpose(-2, -1) / 2).softmax(-1))


@torch.no_grad()
def test_a_fused_attention_shows_those_of_its_explicit_twin_and_computes_what_it_did() -> None:
    fused, explicit = attention(0, fused=True).eval(), attention(0).eval()
    mask = causal_mask(5, 5)
    plain = fused(x(1, 5), x(1, 5), mask)
    with recorded_weights([fused]) as weights, recorded_weights([explicit]) as expected:
        seen = fused(x(1, 5), x(1, 5), mask)
        explicit(x(1, 5), x(1, 5), mask)
    assert weights[0].equal(expected[0])
    torch.testing.assert_close(seen, plain)


def test_they_belong_to_no_graph() -> None:
    module = attention(0)
    with recorded_weights([module]) as weights:
        module(x(0, 3), x(1, 3))
    assert not weights[0].requires_grad


@pytest.mark.parametrize("fused", [False, True])
def test_the_attention_is_as_it_was_even_when_the_block_fails(fused: bool) -> None:
    module = attention(0, fused)
    kernel, modules = module.attention, dict(module.named_modules())

    def fail() -> None:
        with recorded_weights([module]):
            assert any(part._forward_hooks for part in module.modules())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert module.attention is kernel
    assert dict(module.named_modules()) == modules
    assert not any(part._forward_hooks for part in module.modules())


def test_it_can_be_asked_twice_at_once() -> None:
    module = attention(0, fused=True)
    kernel = module.attention
    with recorded_weights([module]) as outer:
        with recorded_weights([module]) as inner:
            module(x(0, 3), x(1, 3))
        module(x(0, 3), x(1, 3))
    assert (len(outer), len(inner)) == (2, 1)
    assert outer[0].equal(inner[0])
    assert module.attention is kernel


def test_what_drops_weights_in_training_goes_on_to_do_so() -> None:
    module = attention(0, fused=True, dropout=0.5).train()
    with recorded_weights([module]) as weights, torch.no_grad():
        assert not module(x(0, 3), x(0, 3)).equal(module(x(0, 3), x(0, 3)))
    assert weights[0].equal(weights[1])


def test_an_explicit_kernel_is_taken_as_it_is_and_a_fused_one_refused() -> None:
    module = attention(0)
    with recorded_weights([module.attention]) as weights:
        module(x(0, 3), x(1, 3))
    assert len(weights) == 1
    fused = attention(0, fused=True)
    message = r"^the fused attention has no weights to show: give the multi-head attention around it$"
    with pytest.raises(ValueError, match=message), recorded_weights([module, fused.attention]):
        pass
    assert not any(part._forward_hooks for part in module.modules())

import pytest
import torch
from torch import Tensor

from layers.recorded_weights import recorded_weights
from layers.scaled_dot_product_attention import FusedScaledDotProductAttention, ScaledDotProductAttention


def inputs(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values with two heads, three queries and five keys."""
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(1, 2, length, 4, generator=draw) for length in (3, 5, 5))  # type: ignore[return-value]


def test_the_weights_of_each_call_are_kept_in_the_order_of_the_calls() -> None:
    first, second, other = (ScaledDotProductAttention() for _ in range(3))
    calls = [(second, inputs(0)), (other, inputs(1)), (first, inputs(2)), (second, inputs(3))]
    with recorded_weights([first, second]) as weights:
        made = [(attention, attention(*qkv)[1]) for attention, qkv in calls]
    expected = [weight for attention, weight in made if attention is not other]
    assert len(weights) == 3
    assert all(ours.equal(theirs) for ours, theirs in zip(weights, expected, strict=True))


def test_they_belong_to_no_graph() -> None:
    attention = ScaledDotProductAttention()
    with recorded_weights([attention]) as weights:
        attention(*(x.requires_grad_() for x in inputs(0)))
    assert not weights[0].requires_grad


def test_it_ends_with_the_block_even_when_that_fails() -> None:
    attention = ScaledDotProductAttention()

    def fail() -> None:
        with recorded_weights([attention]):
            assert len(attention._forward_hooks) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not attention._forward_hooks


def test_a_fused_attention_is_refused_and_none_is_touched() -> None:
    explicit = ScaledDotProductAttention()
    with (
        pytest.raises(
            ValueError,
            match=r"^the fused attention has no weights to show: use ScaledDotProductAttention, fused=False$",
        ),
        recorded_weights([explicit, FusedScaledDotProductAttention()]),
    ):
        pass
    assert not explicit._forward_hooks

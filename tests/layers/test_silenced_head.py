import pytest
import torch
from torch import Tensor

from layers.multi_head_attention import MultiHeadAttention
from layers.packed import packed
from layers.probe import recorded_weights, silenced_head
from layers.scaled_dot_product_attention import attention_kernel

X = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
MEMORY = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(1))


def attention(fused: bool) -> MultiHeadAttention:
    torch.manual_seed(2)
    return MultiHeadAttention(12, 3, attention_kernel(fused, 0.0)).eval()


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


@pytest.mark.parametrize("head", range(3))
@pytest.mark.parametrize("fused", [False, True])
@torch.no_grad()
def test_the_other_heads_are_all_that_the_output_knows(fused: bool, head: int) -> None:
    module = attention(fused)
    with silenced_head(module, head):
        torch.testing.assert_close(module(X, MEMORY), without(module, head))
    torch.testing.assert_close(module(X, MEMORY), without(module, -1))


@torch.no_grad()
def test_heads_fall_silent_together_and_beside_what_records_them() -> None:
    module = attention(fused=True)
    with silenced_head(module, 0), recorded_weights([module]) as weights, silenced_head(module, 1):
        torch.testing.assert_close(
            module(X, MEMORY), without(module, 0) + without(module, 1) - without(module, -1), atol=1e-5, rtol=1e-4
        )
    assert weights[0].shape == (2, 3, 5, 7)


@torch.no_grad()
def test_a_packed_attention_obeys_too() -> None:
    module = attention(fused=True)
    twin = packed(module, torch.float32)
    with silenced_head(twin, 2):
        torch.testing.assert_close(twin(X, MEMORY), without(module, 2), atol=1e-5, rtol=1e-4)


def test_it_speaks_again_afterwards_even_when_the_block_fails() -> None:
    module = attention(fused=True)

    def fail() -> None:
        with silenced_head(module, 0):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not any(part._forward_pre_hooks for part in module.modules())


@pytest.mark.parametrize("head", [-1, 3])
def test_a_head_that_is_not_there_is_refused(head: int) -> None:
    message = rf"^head={head} of an attention with n_heads=3: give 0 to 2$"
    with pytest.raises(ValueError, match=message), silenced_head(attention(fused=True), head):
        pass


def test_what_the_projection_is_handed_is_left_as_it_was() -> None:
    module, mixed = attention(fused=True), X.clone()
    with silenced_head(module, 1), torch.no_grad():
        module.output(mixed)
    assert mixed.equal(X)

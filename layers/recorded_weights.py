"""Recording of the attention weights that a network computes."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from layers.multi_head_attention import MultiHeadAttention
from layers.scaled_dot_product_attention import FusedScaledDotProductAttention, ScaledDotProductAttention


@contextmanager
def recorded_weights(attentions: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Within the block, append the weights (B, H, T, S) of each of these attentions to the list as it is called.

    The fused kernel has no weights, so within the block it is replaced by its explicit twin, which computes the same.

    Args:
        attentions: multi-head attentions; or explicit kernels, recorded as they are.

    Raises:
        ValueError: a bare fused kernel, which cannot be replaced.
    """
    weights: list[Tensor] = []
    with ExitStack() as afterwards:
        for attention in attentions:
            kernel = attention.attention if isinstance(attention, MultiHeadAttention) else attention
            if isinstance(attention, MultiHeadAttention) and isinstance(kernel, FusedScaledDotProductAttention):
                afterwards.callback(setattr, attention, "attention", kernel)
                attention.attention = kernel = kernel.explicit
            if not isinstance(kernel, ScaledDotProductAttention):
                raise ValueError("the fused attention has no weights to show: give the multi-head attention around it")
            hook = kernel.register_forward_hook(lambda _module, _inputs, output: weights.append(output[1].detach()))
            afterwards.callback(hook.remove)
        yield weights

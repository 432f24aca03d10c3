"""The weights of attentions that are at work inside a network, taken from outside."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from layers.multi_head_attention import MultiHeadAttention
from layers.scaled_dot_product_attention import FusedScaledDotProductAttention, ScaledDotProductAttention


@contextmanager
def recorded_weights(attentions: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Inside, the list grows by the weights (B, H, T, S) of each of these attentions as it is called.

    The fused kernel makes no weights, so inside its explicit twin, which computes the same, does its work.

    Args:
        attentions: multi-head attentions; or explicit kernels, to be taken as they are.

    Raises:
        ValueError: a fused kernel by itself, in whose place nothing can be put.
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

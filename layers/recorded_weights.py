"""The weights of attentions that are at work inside a network, taken from outside."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from layers.scaled_dot_product_attention import ScaledDotProductAttention


@contextmanager
def recorded_weights(attentions: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Inside, the list grows by the weights (B, H, T, S) of each of these explicit attentions as it is called.

    Raises:
        ValueError: one of them is fused, which never makes weights.
    """
    weights: list[Tensor] = []
    if not all(isinstance(attention, ScaledDotProductAttention) for attention in attentions):
        raise ValueError("the fused attention has no weights to show: use ScaledDotProductAttention, fused=False")
    hooks = [
        attention.register_forward_hook(lambda _module, _inputs, output: weights.append(output[1].detach()))
        for attention in attentions
    ]
    try:
        yield weights
    finally:
        for hook in hooks:
            hook.remove()

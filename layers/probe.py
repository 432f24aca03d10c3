"""Looking into a network while it computes: its parts, its attention weights, and what it does without a head."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from layers.multi_head_attention import MultiHeadAttention
from layers.scaled_dot_product_attention import FusedScaledDotProductAttention, ScaledDotProductAttention


@contextmanager
def recorded_calls(modules: Iterable[nn.Module]) -> Iterator[list[tuple[Any, Any]]]:
    """Within the block, append what each of these modules is given and what it returns to the list as it is called."""
    calls: list[tuple[Any, Any]] = []
    with ExitStack() as afterwards:
        for module in modules:
            hook = module.register_forward_hook(lambda _module, inputs, output: calls.append((inputs, output)))
            afterwards.callback(hook.remove)
        yield calls


@contextmanager
def recorded_weights(attentions: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Within the block, append the weights (B, H, T, S) of each of these attentions to the list as it is called.

    They are multi-head attentions, or what returns its weights second, as an explicit kernel does. The fused kernel has
    no weights, so within the block its explicit twin, which computes the same, replaces it in a multi-head attention.
    """
    weights: list[Tensor] = []
    with ExitStack() as afterwards:
        for attention in attentions:
            kernel = attention.attention if isinstance(attention, MultiHeadAttention) else attention
            if isinstance(attention, MultiHeadAttention) and isinstance(kernel, FusedScaledDotProductAttention):
                afterwards.callback(setattr, attention, "attention", kernel)
                kernel = ScaledDotProductAttention(kernel.dropout.p, kernel.scaled).train(kernel.training)
                attention.attention = kernel
            if isinstance(kernel, FusedScaledDotProductAttention):
                raise ValueError("the fused attention has no weights to show: give the multi-head attention around it")
            hook = kernel.register_forward_hook(lambda _module, _inputs, output: weights.append(output[1].detach()))
            afterwards.callback(hook.remove)
        yield weights


@contextmanager
def silenced_head(attention: MultiHeadAttention, head: int) -> Iterator[None]:
    """Within the block, the output projection reads zeros in place of this head's output.

    MHAtt(x) = Σ_h ξ_h Att_h(x) with ξ_h = 0 for one head, counted from 0, Michel et al. 2019, 2.3.
    """
    n_heads = attention.n_heads
    if not 0 <= head < n_heads:
        raise ValueError(f"head={head} of an attention with n_heads={n_heads}: give 0 to {n_heads - 1}")

    def silence(_module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        heads = inputs[0].unflatten(-1, (n_heads, -1)).clone()
        heads[..., head, :] = 0
        return (heads.flatten(-2),)

    hook = attention.output.register_forward_pre_hook(silence)
    try:
        yield
    finally:
        hook.remove()

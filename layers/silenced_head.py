"""Ablation of a head: MHAtt(x) = Σ_h ξ_h Att_h(x) with ξ_h = 0 for one head, Michel et al. 2019, 2.3."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from layers.multi_head_attention import MultiHeadAttention


@contextmanager
def silenced_head(attention: MultiHeadAttention, head: int) -> Iterator[None]:
    """Within the block, the output projection reads zeros in place of this head's output.

    Args:
        attention: explicit or fused attention, whose layers may be packed.
        head: number of the head, counted from 0.

    Raises:
        ValueError: there is no such head.
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

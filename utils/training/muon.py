"""Muon (Jordan et al. 2024): every step of a hidden layer's weight matrix is orthogonal.

Adam treats each entry of a matrix separately. The gradient of a matrix, however, is dominated by a few directions, and
what is rare in the text lies in the rest. Muon takes the running mean of the gradients, M = U S Vᵀ, and steps by U Vᵀ:
equally far in all directions. No decomposition is needed: an odd polynomial of a matrix acts on its singular values,
and applying a few of them in turn, with matrix products alone, brings all singular values near 1.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from layers.decoder_block import DecoderBlock
from layers.encoder_block import EncoderBlock
from layers.feed_forward import FeedForward
from layers.multi_head_attention import MultiHeadAttention
from layers.relative_position_bias import RelativePositionBias

# a, b, c of x ← a x + b x³ + c x⁵: the best polynomials for singular values down to 1/1000 of the whole, Amsel et al.
# 2025 ("The Polar Express"), section 3.3
_POLYNOMIALS = (
    (8.287212, -23.595887, 17.300387),
    (4.107059, -2.947850, 0.544843),
    (3.948691, -2.908902, 0.551819),
    (3.318420, -2.488488, 0.510049),
    (2.300652, -1.668904, 0.418807),
)
# Headroom left by all but the last polynomial: rounding that makes a result larger by more than this share leaves the
# range in which they converge, and a step of 10⁹ follows. With the 1.01 of the paper it has happened, in bfloat16.
_SAFETY = 1.05
_TINY = 1e-7
# Root mean square of a step per learning rate, about that of Adam: one rate fits both (Liu et al. 2025, 2.2)
_SIZE = 0.2

Split = Callable[[Tensor], Float[Tensor, "N R C"]]


def orthogonal(x: Float[Tensor, "N R C"], dtype: torch.dtype = torch.float32) -> Float[Tensor, "N R C"]:
    """Return about U Vᵀ for each matrix U S Vᵀ: singular values from 0.85 to 1.15 where those of x exceed 1/1000.

    The matrices have no more rows than columns; a zero matrix stays zero. The products are made in `dtype`.
    """
    x = (x / (x.norm(dim=(1, 2), keepdim=True) * _SAFETY + _TINY)).to(dtype)
    for i, (a, b, c) in enumerate(_POLYNOMIALS, 1):
        s = 1.0 if i == len(_POLYNOMIALS) else _SAFETY
        square = x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=b / s**3, alpha=c / s**5)
        x = torch.baddbmm(x, polynomial, x, beta=a / s)
    return x


def _by_rows(n: int, x: Float[Tensor, "R C"]) -> Float[Tensor, "N R C"]:
    parts = x.unflatten(0, (n, -1))
    return parts if parts.size(1) <= parts.size(2) else parts.mT


def _by_columns(n: int, x: Float[Tensor, "R C"]) -> Float[Tensor, "N C R"]:
    return x.unflatten(1, (n, -1)).permute(1, 2, 0)


def block_matrices(net: nn.Module) -> dict[Tensor, Split]:
    """Return the matrices of a network's blocks, each with the function that splits it, as a view, for `orthogonal`.

    Projections are split into those of their heads, which are independent of one another. Embeddings, the output
    matrix, biases and norms are not included.
    """
    splits: dict[Tensor, Split] = {}
    for block in net.modules():
        if not isinstance(block, EncoderBlock | DecoderBlock):
            continue
        for part in block.modules():
            if isinstance(part, MultiHeadAttention):
                width = part.query.out_features // part.n_heads
                for projection in (part.query, part.key_value):
                    splits[projection.weight] = partial(_by_rows, projection.out_features // width)
                splits[part.output.weight] = partial(_by_columns, part.n_heads)
            elif isinstance(part, RelativePositionBias):
                splits[part.distance_key.weight] = partial(_by_rows, part.n_heads)
            elif isinstance(part, FeedForward):
                splits[part.widen.weight] = partial(_by_rows, part.n_wide)
            elif isinstance(part, nn.Linear):
                splits.setdefault(part.weight, partial(_by_rows, 1))
    return splits


class Muon:
    """Optimizer that moves matrices by orthogonal steps, with Nesterov momentum.

    Each of the `matrices` comes with its splitting function; those of one shape are made orthogonal together, by
    products in `dtype`.
    """

    def __init__(self, matrices: dict[Tensor, Split], momentum: float, weight_decay: float, dtype: torch.dtype) -> None:
        self.momentum, self.weight_decay, self.dtype = momentum, weight_decay, dtype
        by_shape: dict[torch.Size, list[tuple[Tensor, Split]]] = defaultdict(list)
        for parameter, split in matrices.items():
            by_shape[split(parameter).shape[1:]].append((parameter, split))
        self._groups = list(by_shape.values())
        self._means = [torch.cat([torch.zeros_like(split(p)) for p, split in group]) for group in self._groups]

    @torch.no_grad()
    def step(self, learning_rate: float, divisor: Tensor, finite: Bool[Tensor, ""]) -> None:
        """Update the matrices by their gradients over `divisor`, without waiting for the device.

        Where the gradients are not finite, nothing changes.
        """
        keeps, rate = (1 - self.momentum) * finite, learning_rate * finite
        for group, mean in zip(self._groups, self._means, strict=True):
            gradient = torch.cat([split(torch.zeros_like(p) if p.grad is None else p.grad) for p, split in group])
            gradient = gradient.div_(divisor).masked_fill_(~finite, 0)
            mean.lerp_(gradient, keeps)
            direction = orthogonal(gradient.lerp_(mean, self.momentum), self.dtype)
            size = _SIZE * math.sqrt(direction.size(2))
            steps = direction * (-rate * size).to(self.dtype)
            parts = steps.split([len(split(p)) for p, split in group])
            for (parameter, split), part in zip(group, parts, strict=True):
                if self.weight_decay:
                    parameter.mul_(1 - rate * self.weight_decay)
                split(parameter).add_(part)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume from here."""
        return {"momentum": self._means}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the `state_dict` of an optimizer of the same network."""
        for mean, saved in zip(self._means, state["momentum"], strict=True):
            mean.copy_(saved)

"""Muon (Jordan et al. 2024): every step of a hidden layer's matrix is an orthogonal one.

Adam looks at each number of a matrix by itself. The gradient of a matrix, however, is mostly a few directions, and what
is rare in the text lies in the others. Muon takes the mean of the last gradients, M = U S Vᵀ, and steps by U Vᵀ: all
directions at the same length. Nothing is decomposed for that: an odd polynomial of a matrix is one of its singular
values, and a few of them in a row, products of matrices alone, bring all of these near 1.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from layers.block import Block
from layers.multi_head_attention import MultiHeadAttention
from layers.relative_position_bias import RelativePositionBias
from utils.training.distributed import Processes

# a, b, c of x ← a x + b x³ + c x⁵: the best polynomials for singular values down to 1/1000 of the whole, Amsel et al.
# 2025 ("The Polar Express"), section 3.3
_POLYNOMIALS = (
    (8.287212, -23.595887, 17.300387),
    (4.107059, -2.947850, 0.544843),
    (3.948691, -2.908902, 0.551819),
    (3.318420, -2.488488, 0.510049),
    (2.300652, -1.668904, 0.418807),
)
_SAFETY = 1.01  # all but the last make values this much smaller than they might: rounding must bring none above 1
_TINY = 1e-7
# Of a step's root mean square in the learning rate, about as Adam's is: one rate fits both (Liu et al. 2025, 2.2)
_SIZE = 0.2

Cut = Callable[[Tensor], Float[Tensor, "N R C"]]


def orthogonal(x: Float[Tensor, "N R C"], dtype: torch.dtype = torch.float32) -> Float[Tensor, "N R C"]:
    """U Vᵀ of each matrix U S Vᵀ, nearly: singular values between 0.85 and 1.15, where x has them above 1/1000.

    Args:
        x: N matrices, none with more rows than columns; one that is zero stays so.
        dtype: of the products, and of what comes back.
    """
    x = (x / (x.norm(dim=(1, 2), keepdim=True) * _SAFETY + _TINY)).to(dtype)
    for i, (a, b, c) in enumerate(_POLYNOMIALS, 1):
        s = 1.0 if i == len(_POLYNOMIALS) else _SAFETY
        square = x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=b / s**3, alpha=c / s**5)
        x = torch.baddbmm(x, polynomial, x, beta=a / s)
    return x


def _flat(x: Float[Tensor, "R C"]) -> Float[Tensor, "1 R C"]:
    return (x if x.size(0) <= x.size(1) else x.mT)[None]


def _by_rows(n: int, x: Float[Tensor, "R C"]) -> Float[Tensor, "N R C"]:
    return x.unflatten(0, (n, -1))


def _by_columns(n: int, x: Float[Tensor, "R C"]) -> Float[Tensor, "N C R"]:
    return x.unflatten(1, (n, -1)).permute(1, 2, 0)


def hidden_matrices(net: nn.Module) -> dict[Tensor, Cut]:
    """The matrices of a network's blocks, and how each is cut into those that are made orthogonal, as a view of it.

    Projections are cut into those of their heads, which have nothing to do with one another. Embeddings, the output's
    matrix, biases and norms are not among them.
    """
    cuts: dict[Tensor, Cut] = {}
    for block in net.modules():
        if not isinstance(block, Block):
            continue
        for part in block.modules():
            if isinstance(part, MultiHeadAttention):
                width = part.query.out_features // part.n_heads
                for projection in (part.query, part.key_value):
                    cuts[projection.weight] = partial(_by_rows, projection.out_features // width)
                cuts[part.output.weight] = partial(_by_columns, part.n_heads)
            elif isinstance(part, RelativePositionBias):
                cuts[part.distance_key.weight] = partial(_by_rows, part.n_heads)
            elif isinstance(part, nn.Linear):
                cuts.setdefault(part.weight, _flat)
    return cuts


@dataclass
class _Alike:
    """Matrices of one shape, which are made orthogonal together.

    Args:
        parameters: whose they are, each with its cut.
        momentum: the mean of their last gradients.
    """

    parameters: list[tuple[Tensor, Cut]]
    momentum: Float[Tensor, "N R C"]

    def gradient(self) -> Float[Tensor, "N R C"]:
        """Of all of them; zero where there is none."""
        return torch.cat([cut(torch.zeros_like(p) if p.grad is None else p.grad) for p, cut in self.parameters])

    def move(self, step: Float[Tensor, "N R C"]) -> None:
        """All of them."""
        begin = 0
        for parameter, cut in self.parameters:
            weight = cut(parameter)
            weight.add_(step[begin : begin + len(weight)])
            begin += len(weight)

    def shrink(self, share: Tensor) -> None:
        """All of them, towards zero."""
        for parameter, _ in self.parameters:
            parameter.mul_(1 - share)


class Muon:
    """Moves matrices by orthogonal steps, along the momentum of Nesterov.

    Args:
        matrices: the parameters, and how each is cut.
        momentum: share of the mean gradient that an update keeps.
        weight_decay: an update shrinks each matrix by this share times the learning rate.
        dtype: of the products.
        processes: those that train together, with the same gradients: each makes some of the matrices orthogonal.
    """

    def __init__(
        self,
        matrices: dict[Tensor, Cut],
        momentum: float,
        weight_decay: float,
        dtype: torch.dtype,
        processes: Processes | None = None,
    ) -> None:
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.dtype = dtype
        self.processes = processes or Processes()
        by_shape: dict[torch.Size, list[tuple[Tensor, Cut]]] = defaultdict(list)
        for parameter, cut in matrices.items():
            by_shape[cut(parameter).shape[1:]].append((parameter, cut))
        self._alike = [
            _Alike(alike, torch.cat([torch.zeros_like(cut(parameter)) for parameter, cut in alike]))
            for alike in by_shape.values()
        ]

    @torch.no_grad()
    def step(self, learning_rate: float, divisor: Tensor, finite: Bool[Tensor, ""]) -> None:
        """Move the matrices; the device is not waited for.

        Args:
            learning_rate: the root mean square of a step is a fifth of it.
            divisor: of the gradients.
            finite: whether they are; if not, nothing moves.
        """
        keeps, rate = (1 - self.momentum) * finite, learning_rate * finite
        directions = []
        for alike in self._alike:
            gradient = alike.gradient().div_(divisor).masked_fill_(~finite, 0)
            alike.momentum.lerp_(gradient, keeps)
            directions.append(self._orthogonal_together(gradient.lerp_(alike.momentum, self.momentum)))
        self.processes.add_up(directions)
        for alike, direction in zip(self._alike, directions, strict=True):
            size = _SIZE * math.sqrt(direction.size(2))
            if self.weight_decay:
                alike.shrink(rate * self.weight_decay)
            alike.move(direction * (-rate * size).to(self.dtype))

    def _orthogonal_together(self, x: Float[Tensor, "N R C"]) -> Float[Tensor, "N R C"]:
        """This process's share of the matrices, and zero in place of what the others have."""
        rank, size = self.processes.rank, self.processes.size
        begin, end = len(x) * rank // size, len(x) * (rank + 1) // size
        return F.pad(orthogonal(x[begin:end], self.dtype), (0, 0, 0, 0, begin, len(x) - end))

    def state_dict(self) -> dict[str, Any]:
        """All that going on from here needs."""
        return {"momentum": [alike.momentum for alike in self._alike]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same network."""
        for alike, momentum in zip(self._alike, state["momentum"], strict=True):
            alike.momentum.copy_(momentum)
